"""Numbers that a run's log has beside its loss, such as gradient norms and tokens a second.

They are read where a page shows them, of a few runs, and mean nothing to a search: whatever
stands in a line as a name and a number, beside a step, is a curve.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

Curve = list[tuple[float, float]]
"""(step, value), in the order of the log."""
PAIR = re.compile(
    r"([A-Za-z_][\w/.-]*(?: (?:norm|rate|time))?)[\"']?(?:\s*[:=]\s*|\s+)"
    r"([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)(?![\w.]*\w)"
)
STEP = re.compile(r"(?:^|[_ ./])(?:step|iter|iteration)s?$")
MOST_BYTES = 2_000_000
"""Of a file, from its beginning: a curve of a page needs no more."""
MOST_LETTERS = 2_000
"""Of a line that is no JSON."""
LEAST = 4
"""Points of a curve."""


def logged(folder: Path) -> dict[str, Curve]:
    """The curves in the log and the JSON lines of the run in `folder`, but those of losses."""
    curves: dict[str, Curve] = {}
    for path in (folder / "log.txt", *sorted(folder.glob("*.jsonl"))):
        for pairs in _lines(path):
            step = next((value for name, value in pairs.items() if STEP.search(name)), None)
            for name, value in pairs.items() if step is not None else ():
                if not STEP.search(name) and "loss" not in name.lower():
                    curves.setdefault(name, []).append((step or 0.0, value))
    return {
        name: curve
        for name, curve in curves.items()
        if len(curve) >= LEAST and len({value for _, value in curve}) > 1
    }


def _lines(path: Path) -> Iterator[Mapping[str, float]]:
    """The numbers of each line by their names."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        record = None
        if line.lstrip().startswith("{"):
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
        if isinstance(record, Mapping):
            # As texts: a whole number may be too large for `float`, which of a text makes inf.
            pairs = {k: str(v) for k, v in record.items() if type(v) in (int, float)}
        else:
            # A pattern takes the square of a line's length, and no reader's line is as long.
            found = PAIR.findall(line[:MOST_LETTERS])
            pairs = {name: number.replace(",", "") for name, number in found}
        numbers = {name: float(value) for name, value in pairs.items()}
        yield {name: value for name, value in numbers.items() if math.isfinite(value)}
