"""Figures that are not laid out, which takes half of their time, not drawn, or not even made."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import IO, Any

import pytest
from matplotlib.figure import Figure


@contextmanager
def without_layout() -> Iterator[None]:
    """Leave every part of a figure where it is first put; all of them are drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "get_layout_engine", lambda self: None)
        yield


SAVE = Figure.savefig


def _blank(figure: Figure, file: IO[Any], *, format: str, **_: object) -> None:
    file.write("<svg></svg>" if format == "svg" else b"")


@contextmanager
def without_drawing() -> Iterator[None]:
    """Build figures and write them as files, but leave these blank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _blank)
        patch.setattr(Figure, "get_layout_engine", lambda self: None)
        yield


PAGES = [f"sweeper.report.{name}" for name in ("checks", "study_page", "transferred")]
PAGES += [
    f"sweeper.evidence.{name}.page"
    for name in ("compare", "follow", "judge", "predict", "rates")
    if find_spec("sweeper.evidence") is not None
]


@contextmanager
def without_figures() -> Iterator[dict[tuple[ModuleType, str], object]]:
    """Leave the figures of pages empty: to make them takes longest.

    What makes them is told, by where it stands.
    """
    made = {
        (module, name): value
        for module in map(import_module, PAGES)
        for name, value in vars(module).items()
        if name.endswith("_figure") and name != "new_figure"
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, name in made:
            patch.setattr(module, name, lambda *_, **__: Figure((1, 1)))
        yield made
