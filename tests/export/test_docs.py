"""The table of docs/export.md is what the code finds."""

from __future__ import annotations

from pathlib import Path

import sweeper
from sweeper.export.compare import NAMES
from sweeper.export.registry import EXPORTERS
from sweeper.transfer.plan import TransferPlan
from tests.export.plans import HPS, OPTIONS, missing, plan
from tests.transfer.test_planning import TOKENS, Decoder

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


def frozen() -> TransferPlan:
    """A plan in which the positions are not trained."""
    base, target = {"n_embd": 32, "n_layer": 2}, {"n_embd": 64, "n_layer": 2}
    return sweeper.plan_for(
        Decoder, base, target, "mup", HPS["mup"], inputs=TOKENS, frozen=["wpe.*"]
    )


def found() -> list[str]:
    """A row a name: "no" where muP or CompleteP lacks it, "u-muP" where that alone does."""
    plain = [plan("mup"), plan("completep"), plan("mup", "lion"), frozen()]
    lacks = {to: {name for one in plain for name in missing(one, to)} for to in EXPORTERS}
    unit = {to: set(missing(plan("umup"), to)) for to in EXPORTERS}
    lines = ["| | " + " | ".join(f"`{to}`" for to in EXPORTERS) + " |"]
    lines.append("|---" * (len(EXPORTERS) + 1) + "|")
    for name in NAMES:
        marks = [
            "no" if name in lacks[to] else "u-muP" if name in unit[to] else "" for to in EXPORTERS
        ]
        if any(marks):
            cells = "".join(f" {mark} |" if mark else " |" for mark in marks)
            lines.append(f"| `{name}` |{cells}")
    return lines


def test_the_table_is_what_the_code_finds() -> None:
    page = PAGE.read_text()
    assert "\n".join(found()) in page, "\n".join(["the table is now", *found()])


def test_every_name_and_trainer_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert all(f"| `{name}` |" in page for name in NAMES)
    assert all(f"`{to}`" in page for to in EXPORTERS) and OPTIONS
