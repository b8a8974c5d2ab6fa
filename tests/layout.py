"""Figures drawn without being laid out, which takes half of their time."""

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
