"""Judge the claims of docs/papers.md once more, from what docs/figures/ keeps of every figure.

python scripts/figures/rejudge.py [FOLDER] [write]

Trains nothing: each figure's script runs on the numbers of its record, and what its claims say now
stands beside what they said. FOLDER holds other records than docs/figures/; with `write` the
records get what the claims say now, and claims.py makes the page of them.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import Document, Lab, arguments, shift_at_the_end
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from sweeper.decide.target import NO_THEORY
from sweeper.decide.trend import judge_with_target
from sweeper.files import write_json
from sweeper.records import from_json, to_json
from sweeper.report.sentences_transfer import worded
from sweeper.stats.curve import fit_curves
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve, curves_along

RECORDS = Path(__file__).parents[2] / "docs" / "figures"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim as it is kept and as it is now."""

    figure: str
    claim: str
    kept: str
    now: str

    @property
    def changed(self) -> bool:
        """Whether it says something else."""
        return self.now != self.kept


@dataclass(kw_only=True)
class Kept(Lab):
    """A figure whose studies are those of its record."""

    record: Document

    def measured(self, name: str, measure: Callable[[], object]) -> Any:
        """The numbers that the record keeps."""
        return self.record["numbers"][name]

    def search(self, study: str, *overrides: str) -> Document:
        """Of a search what a ladder needs of it: its base."""
        names = [name for name in self.record["ladders"] if name.split()[0] == study]
        return {"base": self.record["ladders"][names[0]]["axes"][0]["base"]}

    def transfer(
        self, study: str, width: int, *overrides: str, hyperparameter: str = "eta"
    ) -> Document:
        """The ladder that the record keeps, judged by the rules of today."""
        other = [] if hyperparameter == "eta" else [f"transfer.hyperparameter={hyperparameter}"]
        return judged_again(self.record["ladders"][" ".join([study, *other])])

    def finish(self, draw: Callable[[], Figure], about: str = "") -> None:
        """The picture is that of the losses, which are the same."""


def judged_again(ladder: Document) -> Document:
    """The validation that a record keeps the losses of."""
    curves = [from_json(SizeCurve, one) for one in ladder["curves"]]
    planned = ladder["planned_log2"]
    rule = LadderRule(widths=(1,))  # the thresholds: what was trained is in the curves
    axes, trend = [], None
    for said in ladder["axes"]:
        axis, base = said["axis"], from_json(LadderSize, said["base"])
        along = curves_along(axis, curves, [from_json(LadderSize, one) for one in said["sizes"]])
        fits = fit_curves(along, planned)
        verdict, drift = judge_with_target(axis, along, fits, planned, base, rule, NO_THEORY, None)
        axes.append(to_json(worded(verdict)))
        trend = to_json(drift) if drift and axis == "width" else trend
    return {**ladder, "axes": axes, "trend": trend}


def main() -> None:
    """The table of what changed, and how much did."""
    words = arguments(sys.argv[1:], str(__doc__))
    write, words = "write" in words, [word for word in words if word != "write"]
    if len(words) > 1:
        sys.exit("Error: one folder at most; --help says what is taken")
    folder = Path(words[0]) if words else RECORDS
    records = {path: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    table, rows = Table(box=box.SIMPLE_HEAD), []
    for column in ("figure", "claim", "kept", "now"):
        table.add_column(column, overflow="fold")
    for path, record in records.items():
        rows += [*rejudged(path.stem, record)]
        if write and "claims" in record:
            write_json(path, {**record, "claims": claims_now(record)}, summed=False)
    for row in rows:
        if row.changed:
            table.add_row(row.figure, row.claim, row.kept, row.now)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(f"{sum(row.changed for row in rows)} of {len(rows)} claims changed.")


def rejudged(figure: str, record: Document) -> Iterator[Row]:
    """A row a claim of a record."""
    if "verdicts" in record:
        yield from _of_pictures(figure, record)
    else:
        claims = record["claims"]
        for old, new in zip(claims, claims_now(record), strict=True):
            yield Row(figure=figure, claim=new["claim"], kept=_said(old), now=_said(new))


def claims_now(record: Document) -> list[Mapping[str, str]]:
    """What a figure's script claims of the numbers in its record."""
    lab = Kept(name=record["figure"], words=record["command"].split()[2:], record=record)
    of = Lab.__dict__["of"]
    try:
        Lab.of = lambda name: lab  # type: ignore[method-assign]
        importlib.import_module(record["figure"]).main()
    finally:
        Lab.of = of  # type: ignore[method-assign]
    return [asdict(one) for one in lab.claims]


def _said(claim: Mapping[str, str]) -> str:
    return " | ".join(claim[key] for key in ("answer", "source", "claim", "measured"))


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
        yield Row(figure=figure, claim=f"{name} over width", kept=kept, now=now)


if __name__ == "__main__":
    main()
