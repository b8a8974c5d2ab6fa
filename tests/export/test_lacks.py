"""What is missing is found by numbers: nothing where a trainer does as planned, else by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.export.exporter import Exporter, Setting, as_planned
from sweeper.export.lacks import lacking
from sweeper.plan.factors import PlannedFactor
from sweeper.plan.plan import PlannedParameter, TransferPlan
from sweeper.scaling.spec import Role
from tests.export.plans import nano_plan, plan
from tests.golden import Golden


@dataclass(frozen=True, kw_only=True)
class Able(Exporter):
    """A trainer that does all as planned, but for the `field` of parameters, times `factor`.

    Its own forward pass multiplies parameters of the role `of` by `forward`.
    """

    trainer: ClassVar[str] = "able"
    field: str = ""
    factor: float = 1.0
    forward: float = 1.0
    of: str = ""

    def setting(self, plan: TransferPlan, parameter: PlannedParameter) -> Setting:
        setting = as_planned(parameter, self.forward if parameter.role == self.of else 1.0)
        if not self.field:
            return setting
        return replace(setting, **{self.field: getattr(setting, self.field) * self.factor})

    def applied(self, plan: TransferPlan, factor: PlannedFactor) -> float:
        return factor.value


def names(planned: TransferPlan, exporter: Exporter) -> list[str]:
    return [lack.name for lack in lacking(planned, exporter)]


@pytest.mark.parametrize("parameterization", ["mup", "completep"])
@given(forward=st.floats(1e-3, 1e3), of=st.sampled_from(list(Role)))
def test_a_factor_of_the_trainer_s_own_changes_nothing_when_the_rest_follows(
    parameterization: str, forward: float, of: Role
) -> None:
    assert names(plan(parameterization), Able(forward=forward, of=of)) == []


@given(forward=st.floats(1e-3, 1e3))
def test_two_gauges_have_the_same_first_step(forward: float) -> None:
    """Adam's: the effective weight is forward x W; its start, step and eps / gradient stay."""
    for parameter in plan("mup").parameters:
        absorbed, gauged = parameter.absorbed(), parameter.absorbed(forward)
        assert forward * gauged.init_std == pytest.approx(absorbed.init_std)
        assert forward * gauged.lr == pytest.approx(absorbed.lr)
        assert gauged.eps / forward == pytest.approx(absorbed.eps)
        assert gauged.weight_decay == absorbed.weight_decay


@pytest.mark.parametrize(
    ("field", "name"),
    [("eps", ["eps"]), ("weight_decay", ["weight_decay"]), ("init_std", ["init"])],
)
def test_a_difference_has_its_name(field: str, name: list[str]) -> None:
    assert names(plan("mup"), Able(field=field, factor=2.0)) == name
    assert names(plan("mup"), Able(field=field, factor=1.0)) == []


def test_learning_rates_have_the_names_of_their_roles(golden: Golden) -> None:
    lacks = {lack.name: str(lack) for lack in lacking(plan("mup"), Able(field="lr", factor=0.5))}
    assert [*lacks] == ["embedding_lr", "hidden_lr", "readout_lr", "vector_lr"]
    golden.says(lacks["hidden_lr"])


def test_an_optimizer_without_eps_lacks_none() -> None:
    assert names(plan("mup", "lion"), Able(field="eps", factor=2.0)) == []


def test_factors_of_a_plain_forward_pass_are_missing_by_name() -> None:
    class Plain(Able):
        def applied(self, plan: TransferPlan, factor: PlannedFactor) -> float:
            return factor.usual

    assert names(plan("mup"), Plain()) == ["attention"]
    assert names(plan("completep"), Plain()) == ["attention", "residual"]
    lacks = ["attention", "attention_output", "residual", "skip", "loss", "gate_output", "backward"]
    assert names(plan("umup"), Plain()) == lacks


def test_what_is_frozen_must_be_sayable() -> None:
    class Trains(Able):
        freezes = False

    frozen = nano_plan(64, 2, "mup", {"eta": 0.01}, frozen=["wpe.*"])
    assert names(frozen, Able()) == [] and names(frozen, Trains()) == ["frozen"]


def test_adam_by_atan2_is_no_trainer_s() -> None:
    atan2 = nano_plan(64, 2, "mup", {"eta": 0.01}, {"name": "adamw", "atan2": True})
    assert names(atan2, Able(field="eps", factor=2.0)) == ["optimizer"]
