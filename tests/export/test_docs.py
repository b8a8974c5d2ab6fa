"""The table of docs/export.md is what the code finds."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import sweeper
from sweeper.export.exporter import EXPORTERS
from sweeper.export.lacks import NAMES
from sweeper.plan.factors import PlannedFactor
from sweeper.plan.plan import PlannedParameter, TransferPlan
from sweeper.scaling.prescription import Prescription
from tests.export.plans import HPS, made, missing, nano_plan, plan, planned_settings
from tests.toy_models import DECAY, TOKENS, NanoDecoder

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


class Tied(NanoDecoder):
    def __init__(self, n_embd: int, n_layer: int) -> None:
        super().__init__(n_embd, n_layer)
        self.lm_head.weight = self.wte.weight


ADAMW = {"name": "adamw", "weight_decay": DECAY}


def table() -> dict[str, list[str]]:
    """By name and trainer: "no" where muP or CompleteP lacks it, "u-muP" where that alone does."""
    frozen = nano_plan(64, 2, "mup", HPS["mup"], ADAMW, frozen=["wpe.*"])
    plain = [plan("mup"), plan("completep"), plan("mup", "lion"), frozen]
    lacks = {to: {name for plan in plain for name in missing(plan, to)} for to in EXPORTERS}
    hps = {"eta": 1.0, "alpha_attn": 2.0, "alpha_loss_softmax": 0.5}  # a table without gammas
    umup = nano_plan(128, 4, "umup", hps, ADAMW)
    unit = {to: set(missing(umup, to)) for to in EXPORTERS}
    return {
        name: [
            "no" if name in lacks[to] else "u-muP" if name in unit[to] else "" for to in EXPORTERS
        ]
        for name in NAMES
    }


def test_the_table_is_what_the_code_finds() -> None:
    page = PAGE.read_text()
    assert f"| {' | '.join(f'`{to}`' for to in EXPORTERS)} |\n" in page
    cells = r" ([-\w]*) ?\|" * len(EXPORTERS)
    rows = re.findall(rf"^\| `(\w+)` \| [^|]+ \|{cells}$", page, re.MULTILINE)
    assert {name: marks for name, *marks in rows} == table()


def test_a_tied_head_s_factor_is_said_to_be_missing() -> None:
    base, target = {"n_embd": 32, "n_layer": 2}, {"n_embd": 128, "n_layer": 2}
    tied = sweeper.plan_for(Tied, base, target, "mup", HPS["mup"], inputs=TOKENS)
    lacking = [to for to in EXPORTERS if "output" in missing(tied, to)]
    names = ", ".join(f"`{to}`" for to in lacking[:-1]) + f" and `{lacking[-1]}`"
    assert f"`output` is missing in {names} then" in " ".join(PAGE.read_text().split())
    (text,) = made(tied, "megatron").values()
    (untied,) = made(plan("mup"), "megatron").values()
    assert "is a matrix of its own" in untied and "is a matrix of its own" not in text


def test_every_field_of_a_plan_is_on_the_page() -> None:
    kinds = (TransferPlan, PlannedParameter, Prescription, PlannedFactor)
    page = PAGE.read_text()
    names = {field.name for kind in kinds for field in fields(kind)}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_the_page_s_groups_are_those_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan("mup")
    planned.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(plan = json.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"json": json, "Path": Path}
    exec(code, names)
    groups = {g["name"]: (g["lr"], g["eps"], g["weight_decay"]) for g in names["groups"]}
    settings = planned_settings(planned)
    assert groups.keys() == settings.keys()
    assert all(groups[name] == pytest.approx(settings[name], rel=1e-12) for name in groups)
