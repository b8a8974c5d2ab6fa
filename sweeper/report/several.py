"""The page of several studies: their curves side by side, and how they rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from sweeper.files import private_folder, write_atomically
from sweeper.report import comparison as show
from sweeper.report.documents import Document, axis_verdict, interval, number
from sweeper.report.drawing import save, svg
from sweeper.report.ladders import AXIS, Panel, ladders_figure
from sweeper.report.rendering import rendered
from sweeper.transfer.comparison import Comparison
from sweeper.transfer.cost import Cost


@dataclass(frozen=True, kw_only=True)
class Several:
    """What the page is made from; `comparison` is None where `notes` say why there is none.

    By study: the record of its validation, its scheme, what tuning and proving took, and its page.
    """

    validations: Mapping[str, Document]
    schemes: Mapping[str, str]
    costs: Mapping[str, tuple[Cost, Cost]]
    pages: Mapping[str, str]
    comparison: Comparison | None
    notes: Sequence[str]

    @property
    def panels(self) -> list[Panel]:
        """A panel a study."""
        return [Panel(title=name, validation=one) for name, one in self.validations.items()]

    @property
    def verdicts(self) -> dict[str, str]:
        """The answer over the width, by study."""
        return {
            name: str(axis_verdict(one, AXIS).get("answer", "no verdict yet"))
            for name, one in self.validations.items()
        }


def write_several(found: Several, folder: Path) -> Path:
    """Write `report.html` into `folder`, and the figures beside it as PNG and SVG."""
    private_folder(folder)
    path, comparison = folder / "report.html", found.comparison
    figure = ladders_figure(found.panels)
    drawings = {"ladders": svg(figure, "f1")}
    save(figure, folder / "ladders")
    told = []
    if comparison is not None:
        compared = show.comparison_figure(comparison)
        drawings["comparison"] = svg(compared, "f2")
        save(compared, folder / "comparison")
        told = show.tables(comparison, found.schemes, found.costs)
    page = rendered(
        "several.html.j2",
        found=found,
        rows=[_row(found, name) for name in found.validations],
        sentences=show.found(comparison) if comparison else [],
        told=told,
        drawings={name: Markup(text) for name, text in drawings.items()},
    )
    write_atomically(path, page)
    return path


def _row(found: Several, name: str) -> dict[str, object]:
    """A study in the table at the top: verdict, and the optima at both ends of its ladder."""
    sizes = axis_verdict(found.validations[name], AXIS).get("sizes") or ()
    last = [*sizes][-1] if sizes else {}
    ends = [str((size.get("size") or {}).get(AXIS, "")) for size in (*sizes[:1], last)]
    loss = number((last.get("loss") or {}).get("value"))
    return {
        "name": name,
        "page": found.pages.get(name, ""),
        "scheme": found.schemes[name],
        "answer": found.verdicts[name],
        "widths": " to ".join(ends),
        "shift": interval(last.get("shift_log2"), "{:+z.2f}"),
        "gap": interval(last.get("loss_gap"), "{:z.2f}", scale=100 / loss if loss else math.nan),
    }
