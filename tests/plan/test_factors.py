"""Every factor of a plan's forward pass is a record with its value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.engine.prepare import prepare
from sweeper.plan.factors import planned_factors
from sweeper.plan.plan import TransferPlan
from tests.engine.tiny_trials import trial
from tests.plan.helpers import mup_tree, plain_plan, plan
from tests.plan.test_planning import decoder_plan
from tests.specs import spec_of


def told(planned: TransferPlan, kind: str, factor: str) -> list[tuple[str, float, float]]:
    found = [f for f in planned.factors or () if (f.kind, f.factor) == (kind, factor)]
    return [(f.where, f.value, f.usual) for f in found]


def test_operations_that_are_known_have_their_names_and_values() -> None:
    ours = plan("umup")
    for kind, key in (("residual", "branch"), ("attention", "logit"), ("loss", "logit")):
        values = {where: value for where, value, _ in told(ours, kind, key)}
        assert values
        for where, value in values.items():
            assert ours.operations[where][key] == value
    assert {f.branch for f in ours.factors or () if f.kind == "residual"} == {1, 2, 3, 4}


def test_attention_that_ran_has_the_size_of_its_heads() -> None:
    ((where, value, usual),) = told(decoder_plan(), "attention", "logit")
    assert (where, value) == ("attention of heads of 8", 1 / 8)
    assert usual == pytest.approx(8**-0.5)


def test_factors_are_told_also_where_they_are_the_usual_ones() -> None:
    branches = told(decoder_plan(depth=2), "residual", "branch")
    assert branches == [("residual branches", 1.0, 1.0)] * 4
    deeper = told(decoder_plan(depth=8), "residual", "branch")
    assert deeper == [("residual branches", pytest.approx(0.5), 1.0)] * 16


def test_attention_that_was_not_seen_is_told_where_a_name_looks_like_it() -> None:
    assert not told(plain_plan(), "attention", "logit")
    made = prepare(spec_of(mup_tree()))
    specs = [replace(spec, name=f"attn.{spec.name}") for spec in made.specs]
    found = planned_factors(made.parameterization, trial("mup").hps, specs, [], (2, 1), plain=True)
    ((where, value),) = [
        (f.where, f.value) for f in found if (f.kind, f.factor) == ("attention", "logit")
    ]
    assert where == "attention, none seen; at 64" and value == 1 / 64


def test_they_are_part_of_the_record_and_may_be_missing_in_older_ones() -> None:
    planned = decoder_plan()
    record = planned.to_json()
    assert TransferPlan.from_json(record).factors == planned.factors
    del record["factors"]
    assert TransferPlan.from_json(record).factors is None
