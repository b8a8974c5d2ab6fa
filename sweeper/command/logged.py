"""Numbers that a run's log has beside its loss, such as gradient norms and tokens a second.

They are read where a page shows them, of a few runs, and mean nothing to a search: whatever
stands in a line as a name and a number, beside a step, is a curve.
"""

from __future__ import annotations

import csv
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
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
MOST_BYTES = 2_000_000
"""Of a file, from its beginning: a curve of a page needs no more."""
MOST_LETTERS = 2_000
"""Of a line that is no JSON."""
LEAST = 4
"""Points of a curve."""


def logged(folder: Path) -> dict[str, Curve]:
    """The curves in the log and the metric files of the run in `folder`, but those of losses."""
    curves: dict[str, Curve] = {}
    for rows in (_rows(path) for path in _files(folder)):
        for row in rows:
            pairs = {k: float(v) for k, v in row.items() if math.isfinite(float(v))}
            step = next((value for name, value in pairs.items() if STEP.search(name)), None)
            for name, value in pairs.items() if step is not None else ():
                if not STEP.search(name) and "loss" not in name.lower():
                    curves.setdefault(name, []).append((step or 0.0, value))
    return {
        name: curve
        for name, curve in curves.items()
        if len(curve) >= LEAST and len({value for _, value in curve}) > 1
    }


def _files(folder: Path) -> list[Path]:
    """The log, rows of JSON and CSV, Lightning's wherever they lie, the Trainer's longest state."""
    states = list[Path]()
    with suppress(OSError):  # a run that goes on removes old checkpoints
        states = sorted(folder.glob("**/trainer_state.json"), key=lambda path: path.stat().st_size)
    tables = sorted({*folder.glob("*.csv"), *folder.glob("**/metrics.csv")})
    return [folder / "log.txt", *sorted(folder.glob("*.jsonl")), *tables, *states[-1:]]


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    """The numbers of each line, row or entry by their names, as texts."""
    # As texts: a whole number may be too large for `float`, which of a text makes inf.
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return
    if path.suffix == ".csv":
        with suppress(csv.Error):
            for cells in csv.DictReader(text.splitlines()):
                yield {k: v for k, v in cells.items() if k and NUMBER.match(str(v))}
    elif path.suffix == ".json":
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
            history = document.get("log_history") if isinstance(document, dict) else None
            yield from map(_numbers, history if isinstance(history, list) else ())
    else:
        for line in text.splitlines():
            record = None
            if line.lstrip().startswith("{"):
                with suppress(ValueError, RecursionError):
                    record = json.loads(line)
            if isinstance(record, Mapping):
                yield _numbers(record)
            else:
                # A pattern takes the square of a line's length, and no reader's line is as long.
                found = PAIR.findall(line[:MOST_LETTERS])
                yield {name: number.replace(",", "") for name, number in found}


def _numbers(record: object) -> Mapping[str, str]:
    if not isinstance(record, Mapping):
        return {}
    return {name: str(value) for name, value in record.items() if type(value) in (int, float)}
