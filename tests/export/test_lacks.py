"""What is missing is found by numbers: nothing where a trainer does as planned, else by name."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sweeper
from sweeper.export.exporter import (
    Exporter,
    Setting,
    as_planned,
    build_exporter,
    head_of,
    table_of,
)
from sweeper.export.lacks import lacking
from sweeper.plan.factors import PlannedFactor
from sweeper.plan.plan import PlannedParameter, TransferPlan
from sweeper.scaling.spec import Role
from tests.export.plans import nano_plan, plan
from tests.golden import Golden
from tests.toy_models import TOKENS


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


def test_adam_by_atan2_is_no_trainer_s() -> None:
    atan2 = nano_plan(64, 2, "mup", {"eta": 0.01}, {"name": "adamw", "atan2": True})
    assert names(atan2, Able(field="eps", factor=2.0)) == ["optimizer"]


# What factors of embedding and logits act on: the table and the head, nothing else.


class Layer(nn.Module):
    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.router = nn.Linear(n_embd, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(n_embd, n_embd, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        first, second = (shares[..., i : i + 1] * e(x) for i, e in enumerate(self.experts))
        return x + first + second


def routed(n_embd: int) -> nn.Module:
    """Two experts a layer, whose router reads the stream out as a head does."""
    parts: list[tuple[str, nn.Module]] = [("wte", nn.Embedding(17, n_embd))]
    parts += [("first", Layer(n_embd)), ("second", Layer(n_embd))]
    return nn.Sequential(OrderedDict([*parts, ("head", nn.Linear(n_embd, 17, bias=False))]))


def test_a_router_is_a_readout_and_no_head() -> None:
    hps = {"eta": 0.01, "alpha_output": 3.0, "alpha_emb": 2.0}
    plan = sweeper.plan_for(routed, {"n_embd": 32}, {"n_embd": 128}, "mup", hps, inputs=TOKENS)
    roles = {parameter.name: parameter.role for parameter in plan.parameters}
    assert roles["first.router.weight"] == Role.READOUT == roles["head.weight"]
    head, table = head_of(plan), table_of(plan)
    assert head is not None and head.name == "head.weight"
    assert table is not None and table.name == "wte.weight"
    # The factor of the logits is left to the head alone.
    for to, options in (("hf", {"family": "granitemoe"}), ("megatron", {})):
        exporter = build_exporter(to, options)
        forward = {p.name: exporter.setting(plan, p).forward for p in plan.parameters}
        assert forward.pop("head.weight") == 3 / 4
        assert forward.pop("wte.weight") == 2
        assert set(forward.values()) == {1.0}, to
