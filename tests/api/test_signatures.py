"""What `sweeper` exports, with its signatures: a change of them is a diff in review."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import sweeper
from sweeper.api.shown import LadderVerdict
from tests.golden import Golden

PAGE = Path(__file__).parents[2] / "docs/api.md"
METHODS = (sweeper.Study, sweeper.Transfer, LadderVerdict, sweeper.TransferPlan)
"""Classes whose members users call."""


def lines() -> Iterator[str]:
    """A line a name, and of some classes a line a member."""
    for name in sorted(sweeper.__all__):
        value = getattr(sweeper, name)
        if name != "__version__":
            yield f"{name}{_signature(value)}"
    for kind in METHODS:
        for name, value in sorted(inspect.getmembers(kind)):
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}{_signature(value) if callable(value) else ''}"


def _signature(value: object) -> str:
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def test_public_signatures_are_kept(golden: Golden) -> None:
    golden.check("api/signatures", "\n".join(lines()))


def test_every_name_is_on_the_page() -> None:
    page = PAGE.read_text()
    missing = [
        name for name in sweeper.__all__ if not re.search(rf"^::: sweeper\S*\.{name}$", page, re.M)
    ]
    assert missing == ["__version__"]
