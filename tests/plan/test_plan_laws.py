"""A law on top of parameterizations: factors multiply, groups and checks carry the betas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sweeper.decide.ladder_verdict import Verdict, judge_ladder
from sweeper.decide.target import NO_THEORY
from sweeper.decide.trend import fit_trend
from sweeper.laws.law import AppliedLaw, Factors, Scale
from sweeper.plan.plan import TransferPlan
from sweeper.records import to_json
from sweeper.stats.ladder import SizeCurve
from tests.decide.test_ladder_verdict import RULE
from tests.golden import Golden
from tests.plan.helpers import plain_plan
from tests.refusals import refused
from tests.stats.curves import BASE, LARGE, Valley
from tests.toy_models import Residual

SCALE = Scale(width=8, depth=2, batch=8, steps=64, tokens=512, betas={"beta1": 0.9, "beta2": 0.99})
LAW = AppliedLaw(
    name="mine",
    arguments={},
    source="",
    fixed="nothing",
    base=SCALE,
    target=replace(SCALE, batch=32, tokens=2048),
    factors=Factors(eta=2.0, eps=0.5, weight_decay=4.0, betas={"beta2": 0.96}),
)


def planned() -> TransferPlan:
    return replace(plain_plan(), law=LAW)


def test_groups_carry_the_betas_and_the_check_asks_for_them(golden: Golden) -> None:
    model = Residual(16, 2)
    groups = planned().param_groups(model)
    assert {group["betas"] for group in groups} == {(0.9, 0.96)}
    assert all("betas" not in group for group in plain_plan().param_groups(model))
    optimizer = torch.optim.AdamW(groups)
    planned().check(optimizer)
    planned().check(optimizer, model)
    assert torch.optim.AdamW(groups, betas=(0.5, 0.5)).param_groups[0]["betas"] == (0.9, 0.96)
    for group in optimizer.param_groups:
        group["betas"] = (0.9, 0.99)
    with refused(golden):
        planned().check(optimizer)


def judged(shift: float, planned_log2: float) -> Verdict:
    base = Valley(noise=0.002, number=1).curve(BASE)
    large = Valley(optimum=shift, noise=0.002, number=2).curve(LARGE)
    large = replace(large, planned_log2=planned_log2)
    return judge_ladder("width", [base, large], 0.0, BASE, RULE, "law=mine")


@pytest.mark.parametrize(
    ("shift", "planned_log2", "answer"),
    [(-1.3, 0.0, "fails"), (-1.3, -1.3, "holds"), (0.0, 0.0, "holds"), (0.0, 1.5, "fails")],
)
def test_a_verdict_is_on_what_the_law_leaves(
    shift: float, planned_log2: float, answer: str
) -> None:
    verdict = judged(shift, planned_log2)
    larger = verdict.sizes[1]
    assert larger.answer == answer and larger.planned_log2 == planned_log2
    assert larger.shift_log2.value == pytest.approx(shift - planned_log2, abs=0.1)
    assert larger.shift_log2.low <= shift - planned_log2 <= larger.shift_log2.high
    record = to_json(verdict)
    assert record["law"] == "law=mine" and record["sizes"][1]["planned_log2"] == planned_log2
    bare = to_json(replace(verdict, law=""))
    assert "law" not in bare


def test_a_trend_over_width_is_of_what_the_law_leaves() -> None:
    def ladder(planned: float) -> list[SizeCurve]:
        return [
            replace(
                Valley(optimum=-0.4 * i, noise=0.002, number=i).curve(
                    replace(BASE, width=32 * 2**i)
                ),
                planned_log2=planned * i,
            )
            for i in range(4)
        ]

    bare, lawful = (fit_trend("width", ladder(p), 0.0, 512, NO_THEORY) for p in (0.0, -0.4))
    assert bare is not None and lawful is not None
    assert bare.slope.value == pytest.approx(-0.4, abs=0.03)
    assert lawful.slope.value == pytest.approx(bare.slope.value + 0.4, abs=1e-9)
    assert bare.warranted and not lawful.warranted
