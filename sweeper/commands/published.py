"""`sweeper explain --from`: what the multipliers of a published model stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.commands.output import DONE, Output
from sweeper.errors import BadInput
from sweeper.export.published import Published
from sweeper.report.grid import Grid


def explain_published(path: Path, words: Sequence[str], output: Output) -> int:
    """Scheme and base of a config.json, and our muP from that base beside it."""
    if words:
        raise BadInput(f"--from reads one file, and takes no settings: {' '.join(words)}")
    model = Published.of(_fields(path))
    shape = model.shape
    sizes = f"width {shape.width}, {shape.depth} layers, heads of {shape.head_size}"
    output.say(f"{path}: {model.family}, {sizes}")
    for line in model.lines():
        output.say(f"- {line}")
    output.say(f"It stands for {model.scheme}.")
    filled = Grid(
        f"muP from width {model.base_width}, depth {model.base_depth}, every constant 1",
        ["", "published", "ours", "lr / eta", "eps / eps"],
    )
    for row in model.ours():
        names = ("published", "ours", "lr", "eps")
        filled.add_row(row["what"], *(_cell(row.get(name)) for name in names))
    output.people.print(filled, crop=False)
    output.say(
        "Numbers of parameters are standard deviations of initial values, published as one "
        "initializer_range. The configuration does not say learning rates and eps by parameter, "
        "nor weight decay: a plan of ours does."
    )
    output.document(model.to_json())
    return DONE


def _fields(path: Path) -> Mapping[str, Any]:
    """The JSON object in the file, or in the config.json of a folder; BadInput where it is none."""
    file = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BadInput(f"{file} is no JSON: {error}") from error
    if not isinstance(fields, Mapping):
        raise BadInput(f"{file} is no configuration: a JSON object is expected")
    return fields


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
