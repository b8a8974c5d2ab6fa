"""Figures that are not laid out, which takes half of their time, or not even drawn."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from matplotlib.figure import Figure


@contextmanager
def without_layout() -> Iterator[None]:
    """Leave every part of a figure where it is first put; all of them are drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "get_layout_engine", lambda self: None)
        yield


DRAW = Figure.draw


@contextmanager
def without_drawing() -> Iterator[None]:
    """Build figures and write them as files, but leave these blank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "draw", lambda self, renderer: None)
        patch.setattr(Figure, "get_layout_engine", lambda self: None)
        yield
