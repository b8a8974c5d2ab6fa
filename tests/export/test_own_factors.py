"""What the study's own model multiplies by counts for a trainer whose model does not."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor

import sweeper
from sweeper.export.exporter import EXPORTERS, build_exporter, for_trainer, own_lines
from sweeper.export.lacks import NAMES, lacking
from sweeper.plan.factors import PlannedFactor
from sweeper.plan.plan import PlannedParameter, TransferPlan
from sweeper.scaling.prescription import Prescription
from tests.export.plans import HPS, OPTIONS, made, missing, nano_plan, plan, planned_settings
from tests.toy_models import DECAY, TOKENS, NanoBlock, NanoDecoder

OWN = {"n_embd": 128, "n_layer": 2}


class OwnBlock(NanoBlock):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / q.shape[-1])


class OwnDecoder(NanoDecoder):
    """The factors that muP asks for stand in its code; `branch` is a factor of one's own."""

    block: Any = OwnBlock
    tied, own, branch = True, True, 1.0

    def __init__(self, n_embd: int, n_layer: int = 2) -> None:
        super().__init__(n_embd, n_layer)
        for layer in range(n_layer):
            self.h[layer] = self.block(n_embd)
        self.mult = 32 / n_embd if self.own else 1.0
        if self.tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.mult


class PlainDecoder(OwnDecoder):
    block, own = NanoBlock, False


class HalfHead(OwnDecoder):
    tied = False

    def forward(self, tokens: Tensor) -> Tensor:
        return NanoDecoder.forward(self, tokens) * 0.5


class HalfBranch(NanoBlock):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.down(F.gelu(self.up(self.norm(x))))


class HalfBranches(OwnDecoder):
    block = HalfBranch


@cache
def planned(build: Any) -> TransferPlan:
    base = {"n_embd": 32, "n_layer": 2}
    return sweeper.plan_for(build, base, OWN, "mup", {"eta": 0.01}, inputs=TOKENS)


def asked(plan: TransferPlan, to: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    exporter = build_exporter(to, OPTIONS.get(to, {}))
    plan = for_trainer(plan, exporter)
    lacks = {lack.name: lack.details() for lack in lacking(plan, exporter)}
    return lacks, exporter.files(plan, "")


@pytest.mark.parametrize("to", [name for name in EXPORTERS if name != "pytorch"])
def test_a_model_that_has_the_factors_asks_for_what_a_plain_one_does(to: str) -> None:
    """The same model is trained: its own 1/4 of the logits and 1/8 of q k^T are muP's."""
    own, plain = planned(OwnDecoder), planned(PlainDecoder)
    lacks, files = asked(own, to)
    expected, same = asked(plain, to)
    assert files == same
    assert lacks.keys() == expected.keys()
    if "output" in lacks:
        assert lacks["output"] == ["lm_head: 0.25 asked, 1 given, factor 0.25"]
    if "attention" in lacks:
        assert "0.125 asked, 0.353553 given" in lacks["attention"][0]


def test_a_loop_of_one_s_own_trains_the_model_that_has_them() -> None:
    assert asked(planned(OwnDecoder), "pytorch")[0] == {}
    assert not [need for need in planned(OwnDecoder).needs if need.startswith("mind")]


def test_a_head_s_own_factor_is_in_its_gauge() -> None:
    """Megatron's factor of the logits is muP's 1/4, times the model's 1/2."""
    plan = planned(HalfHead)
    assert plan.own_factors == {"lm_head.weight": 0.5}
    exporter = build_exporter("megatron", {})
    theirs = for_trainer(plan, exporter)
    assert exporter.flags(theirs)["mup-output-mult"] == 0.125  # type: ignore[attr-defined]
    assert not [*own_lines(theirs)]


def test_factors_of_branches_are_named() -> None:
    plan = for_trainer(planned(HalfBranches), build_exporter("torchtitan", {}))
    assert [*own_lines(plan)] == ["the output of h.*.down.weight (or a part of it) times 0.5"]


def test_plans_that_do_not_say_it_load_and_name_no_number(tmp_path: Path) -> None:
    plan = planned(OwnDecoder)
    old = replace(plan, factors=tuple(replace(f, own=None) for f in plan.factors or ()))
    plan.save(tmp_path / "new")
    old.save(tmp_path / "old")
    assert TransferPlan.load(tmp_path / "new") == plan
    lacks, _ = asked(TransferPlan.load(tmp_path / "old"), "megatron")
    assert "does not record" in lacks["output"][0]
    assert asked(old, "pytorch")[0] == {}


# The table of docs/export.md is what the code finds.


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
