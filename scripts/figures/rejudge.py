"""Judge every ladder that docs/figures/ keeps once more, and say what has changed. Trains nothing.

python scripts/figures/rejudge.py [FOLDER]

The records keep the losses behind their verdicts. Where rules of judging change, claims that rest
on them are stale: run the figure that is named again, or take the new answer over. FOLDER holds
other records than docs/figures/. It fails nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import Document, arguments, shift_at_the_end
from rich import box
from rich.console import Console
from rich.table import Table

from sweeper.decide.ladder_verdict import judge_ladder
from sweeper.records import from_json, to_json
from sweeper.report.sentences_transfer import worded
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve, curves_along

RECORDS = Path(__file__).parents[2] / "docs" / "figures"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A verdict as it is kept and as it is now; an empty `now` where no losses are kept."""

    figure: str
    ladder: str
    kept: str
    now: str

    @property
    def changed(self) -> bool:
        """Whether the answer or the shift is another one."""
        return self.now not in ("", self.kept)


def main() -> None:
    """The table, what changed first, and in one line how much did."""
    words = arguments(sys.argv[1:], str(__doc__))
    if len(words) > 1:
        sys.exit("Error: one folder at most; --help says what is taken")
    rows = sorted(rejudged(Path(words[0]) if words else RECORDS), key=lambda row: not row.changed)
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("figure", "ladder", "kept", "now"):
        table.add_column(column, overflow="fold")
    for row in rows:
        if row.now:
            now = row.now if row.changed else "the same"
            table.add_row(row.figure, row.ladder, row.kept, now)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    judged = [row for row in rows if row.now]
    print(f"{sum(row.changed for row in judged)} of {len(judged)} verdicts changed.")
    if unknown := sorted({row.figure for row in rows if not row.now}):
        print(f"No losses are kept of {', '.join(unknown)}: scripts/figures/NAME.py writes them.")


def rejudged(folder: Path) -> Iterator[Row]:
    """A row a ladder of all records in `folder`; one a figure whose record has no losses."""
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if "verdicts" in record:
            yield from _of_pictures(path.stem, record)
        elif "ladders" not in record and _says_shifts(record):
            yield Row(figure=path.stem, ladder="", kept="", now="")
        for name, ladder in record.get("ladders", {}).items() if "claims" in record else ():
            curves = [from_json(SizeCurve, one) for one in ladder["curves"]]
            for said in ladder["axes"]:
                sizes = [from_json(LadderSize, size) for size in said["sizes"]]
                now = told(
                    judge_ladder(
                        said["axis"],
                        curves_along(said["axis"], curves, sizes),
                        ladder["planned_log2"],
                        from_json(LadderSize, said["base"]),
                        LadderRule(
                            widths=(1,)
                        ),  # the thresholds: what was trained is in the curves
                    )
                )
                kept = f"{said['answer']}: {said['shift']}"
                yield Row(
                    figure=path.stem, ladder=f"{name} over {said['axis']}", kept=kept, now=now
                )


def _says_shifts(record: Document) -> bool:
    """Whether a claim rests on a verdict."""
    return any("shift " in claim["measured"] for claim in record["claims"])


def _of_pictures(figure: str, record: Document) -> Iterator[Row]:
    """Of the README's own record, whose curves are of widths alone."""
    from idea import judged

    for name, verdict in record["verdicts"].items():
        curves = {
            int(width): {float(eta): losses for eta, losses in points.items()}
            for width, points in record["ladders"][name]["curves"].items()
        }
        kept, now = (
            f"{one['answer']}: {shift_at_the_end(one)}" for one in (verdict, judged(curves))
        )
        yield Row(figure=figure, ladder=f"{name} over width", kept=kept, now=now)


def told(verdict: object) -> str:
    """A verdict's answer and its shift at the end of the ladder, as claims quote them."""
    record = to_json(worded(verdict))  # type: ignore[type-var]
    return f"{record['answer']}: {shift_at_the_end(record)}"


if __name__ == "__main__":
    main()
