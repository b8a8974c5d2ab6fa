"""`sweeper explain`: the JSON is whole, and what is kept, frozen, given or tied is told."""

from __future__ import annotations

import json
from io import StringIO

import pytest
import torch
from rich.console import Console

from sweeper.errors import SHELL
from sweeper.plan.explanation import Explained, tied_readouts
from sweeper.report import console as show
from sweeper.report.output import Output
from sweeper.report.present import ask
from sweeper.report.terminal import Terminal
from sweeper.scaling.spec import ScaledOp
from sweeper.verbs.requests import ExplainRequest
from tests.golden import Golden
from tests.plan.test_planning import decoder_plan
from tests.specs import specs_between
from tests.toy_models import NanoDecoder


def test_every_field_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(people=Console(stderr=True, width=200), json=True)
    small = ("model.width=32", "model.depth=1", "train.seq_len=8", "parameterization=mup")
    assert ask(ExplainRequest(to_width=64, to_depth=2, overrides=small), output, SHELL)[0] == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["parameters"]}
    assert len(rows) == 2 + 2 * 4
    row = rows["layers.1.ffn.down.weight"]
    base = row.pop("base")
    numbers = {"init_std", "multiplier", "lr", "eps", "weight_decay"}
    assert isinstance(base, dict) and base.keys() == numbers
    facts = {"name", "role", "init", "shape", "base_shape", "fan_in", "fan_out"}
    facts |= {"update", "frozen", "gamma", "why"}
    assert row.keys() == facts | numbers | {"a", "b", "c", "norm_of"}
    assert (row["role"], row["fan_in"], row["shape"]) == ("hidden", 176, [64, 176])
    assert (row["a"], row["b"], row["c"]) == (0, 0.5, 1)
    assert row["lr"] == pytest.approx(base["lr"] / 2 / 2**0.5)


def test_kept_frozen_and_given_roles_are_shown() -> None:
    """The same rows as without them, but where the values start."""
    plan = decoder_plan(keep_init=["scale"], frozen=["h.0.norm.weight"])
    why = "role given, traced as embedding: looked up"
    rows = [Explained(parameter=p, a=0, b=0, c=0, why=why) for p in plan.parameters]
    paper = Console(record=True, width=160, file=StringIO())
    Terminal(paper, verbose=True).print([*show.explanation(plan, rows), *show.plan(plan)])
    lines = paper.export_text().splitlines()
    assert sum(line.split()[:1] == ["scale"] and "kept" in line for line in lines) == 2
    first, second = (f"h.{layer}.norm.weight" for layer in (0, 1))
    assert sum(line.split()[:1] == [first] and "frozen" in line for line in lines) == 2
    assert sum(line.split()[:1] == [second] and "ones" in line for line in lines) == 2
    assert any("role given, traced as embedding" in line for line in lines)


def test_tied_readouts_are_told(golden: Golden) -> None:
    def build(width: int, depth: int) -> NanoDecoder:
        model = NanoDecoder(width, depth)
        model.lm_head.weight = model.wte.weight
        return model

    specs = specs_between(build, base=(32, 2), target=(128, 2), inputs=torch.zeros(2, 6).long())
    geometry = {"fan_in": 128, "base_fan_in": 32, "built_in": 0.5}
    op = ScaledOp(name="lm_head", kind="tied_readout", geometry=geometry)
    attention = ScaledOp(name="core", kind="attention", geometry={})
    (line,) = tied_readouts(specs, [attention, op], {"lm_head": {"output": 0.5}})
    assert line.startswith("tied readout lm_head: its weight is wte.weight")
    golden.says(line)
