"""`plan.check` finds what breaks a plan in a training loop, and lets pass what does not."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import sweeper
from sweeper.errors import BadInput
from sweeper.plan.plan import TransferPlan
from tests.golden import Golden
from tests.plan.helpers import plain_plan, plan, residual_tree
from tests.refusals import refused
from tests.toy_models import Residual


def ready() -> tuple[TransferPlan, nn.Module, torch.optim.Optimizer]:
    """A plan whose groups differ in rate, eps and decay, its model, and AdamW."""
    planned, model = plain_plan(), Residual(16, 2)
    return planned, model, torch.optim.AdamW(planned.param_groups(model))


def complaints(
    planned: TransferPlan, optimizer: torch.optim.Optimizer, model: nn.Module
) -> list[str]:
    messages = []
    for argument in (None, model):
        try:
            planned.check(optimizer, argument)
        except BadInput as error:
            messages.append(str(error))
    return messages


def both_say(messages: list[str], pattern: str) -> bool:
    return len(messages) == 2 and all(re.search(pattern, message) for message in messages)


def test_a_schedule_that_multiplies_passes_at_every_step() -> None:
    planned, model, optimizer = ready()
    assert all(group["initial_lr"] == group["lr"] for group in optimizer.param_groups)
    schedule = LambdaLR(optimizer, lambda step: min(step / 4, 0.5 + 0.5 * math.cos(step / 10)))
    for _ in range(9):
        assert complaints(planned, optimizer, model) == []
        optimizer.step()
        schedule.step()


def test_nanogpt_writes_one_rate_into_all_groups() -> None:
    """Its train.py, at every step: `param_group['lr'] = lr`. The factor does right."""
    planned, model, optimizer = ready()
    for group in optimizer.param_groups:
        group["lr"] = 6e-4
    messages = complaints(planned, optimizer, model)
    one_rate = r"not the plan's times one factor; one rate stands in all groups: .*has 0.0006, plan"
    assert both_say(messages, one_rate)
    assert both_say(messages, r'group\["lr"\] = group\["initial_lr"\] \* factor')
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 / 2e-3 * group["initial_lr"]
    assert complaints(planned, optimizer, model) == []


def test_one_rate_is_right_where_the_plan_has_one() -> None:
    """`standard` at one width has one learning rate for all."""
    planned, model = plan("standard", residual_tree("standard")), Residual(16, 2)
    optimizer = torch.optim.AdamW(planned.param_groups(model))
    for group in optimizer.param_groups:
        group["lr"] = 1e-5
    assert complaints(planned, optimizer, model) == []


def test_an_absolute_minimum_of_a_schedule_is_found() -> None:
    planned, model, optimizer = ready()
    schedule = CosineAnnealingLR(optimizer, 10, eta_min=1e-4)
    for _ in range(9):
        optimizer.step()
        schedule.step()
    messages = complaints(planned, optimizer, model)
    assert both_say(messages, "not the plan's times one factor; they differ")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("eps", 1e-8, "eps is not the plan's: tokens.weight has 1e-08, planned 2.5e"),
        ("weight_decay", 0.1, "weight_decay is not the plan's: .*has 0.1, planned"),
        ("lr", math.nan, "times one factor"),
        ("initial_lr", 0.0, "weight_decay is not .*, planned 0;"),
    ],
)
def test_another_setting_in_every_group(name: str, value: float, told: str) -> None:
    planned, model, optimizer = ready()
    for group in optimizer.param_groups:
        group[name] = value
    assert both_say(complaints(planned, optimizer, model), told)


def test_decay_that_goes_through_the_moments() -> None:
    planned, model, _ = ready()
    adam = torch.optim.Adam(planned.param_groups(model))
    assert both_say(
        complaints(planned, adam, model),
        r"Adam adds the weight decay .*\(L2\).*take torch.optim.AdamW",
    )
    decoupled = torch.optim.Adam(planned.param_groups(model), decoupled_weight_decay=True)
    assert complaints(planned, decoupled, model) == []


def sgd_plan() -> TransferPlan:
    made = residual_tree()
    made["optimizer"] = {"_target_": "sweeper.engine.optimizers.first_order.SGD"}
    return plan("mup", made)


def test_sgd() -> None:
    """Without momentum its decay removes a share of the weight; with one it does not."""
    planned, model = sgd_plan(), Residual(16, 2)
    assert complaints(planned, torch.optim.SGD(planned.param_groups(model)), model) == []
    momentum = torch.optim.SGD(planned.param_groups(model), momentum=0.9)
    assert both_say(complaints(planned, momentum, model), "SGD adds the weight decay")


def test_updates_of_another_kind() -> None:
    planned, model, _ = ready()
    sgd = torch.optim.SGD(planned.param_groups(model))
    assert both_say(complaints(planned, sgd, model), "make the plan with optimizer=sgd")
    planned = sgd_plan()
    adam = torch.optim.AdamW(planned.param_groups(model))
    assert both_say(complaints(planned, adam, model), "make the plan with optimizer=adamw")


class TestParameters:
    def test_missing_twice_and_strange_ones(self, golden: Golden) -> None:
        planned, model, optimizer = ready()
        head = next(g for g in optimizer.param_groups if g["name"] == "head.weight")
        lost = optimizer.param_groups[0]["params"].pop()
        with refused(golden):
            planned.check(optimizer, model)
        optimizer.param_groups[0]["params"].append(lost)
        head["params"].append(lost)
        with refused(golden):
            planned.check(optimizer, model)
        head["params"][-1] = nn.Parameter(torch.zeros(1))
        with refused(golden):
            planned.check(optimizer, model)
        with refused(golden):
            planned.check(optimizer)
        optimizer.param_groups[:] = [g for g in optimizer.param_groups if g is not head]
        with refused(golden):
            planned.check(optimizer)

    def test_groups_of_ones_own_need_the_model(self, golden: Golden) -> None:
        """nanoGPT makes them by the number of dimensions."""
        planned, model, _ = ready()
        wide = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() < 2]
        groups: list[dict[str, Any]] = [{"params": wide}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        with refused(golden):
            planned.check(optimizer)
        with refused(golden):
            planned.check(optimizer, model)
        own = [
            {"params": [p], **{k: g[k] for k in ("lr", "eps", "weight_decay")}}
            for g in planned.param_groups(model)
            for p in g["params"]
        ]
        planned.check(torch.optim.AdamW(own), model)
        own[0]["weight_decay"] *= 2.0
        with refused(golden):
            planned.check(torch.optim.AdamW(own), model)


# Adafactor. Derived: its first step has entries of +-1 but for the factored means, whose product is
# the gradient's square where that is of rank 1: then each entry moves by lr times the weight's RMS.


def net(width: int = 32) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 3))


def small(optimizer: str) -> TransferPlan:
    sizes, x = ({"width": 8}, {"width": 32}), torch.zeros(2, 6)
    rules = {"name": optimizer, "weight_decay": 0.01}
    return sweeper.plan_for(net, *sizes, "mup", {"eta": 2.0**-6}, optimizer=rules, inputs=x)


def test_adafactor_trains_by_the_plan() -> None:
    plan = small("adafactor")
    model = plan.init_(net())
    optimizer = torch.optim.Adafactor(plan.param_groups(model))
    assert complaints(plan, optimizer, model) == []
    rates = {setting.name: setting.lr for setting in plan.absorbed()}
    # A share of a weight of m^-1/2, whose step is to be 1 / m, and of a readout of 1 / m.
    m = 4.0
    assert rates["1.weight"] == pytest.approx(2.0**-6 * m**-0.5)
    assert rates["2.weight"] == pytest.approx(2.0**-6)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for parameter in model.parameters():
        rows, columns = torch.rand(len(parameter)) + 1, torch.rand(parameter.shape[-1]) + 1
        parameter.grad = torch.outer(rows, columns) if parameter.dim() > 1 else rows
    optimizer.step()
    for name in ("0.weight", "1.weight", "2.weight"):
        moved = before[name] * (1 - 0.01) - model.get_parameter(name).detach()
        share = moved / before[name].square().mean().sqrt()
        assert torch.allclose(share, torch.full_like(share, rates[name]), rtol=1e-3)


def test_adafactor_s_groups_and_adam_s_are_told_apart() -> None:
    model = net()
    plan, adamw = small("adafactor"), small("adamw")
    groups = plan.param_groups(model)
    other_eps = torch.optim.Adafactor([{**group, "eps": (1e-3, 1e-3)} for group in groups])
    assert both_say(complaints(plan, other_eps, model), "eps is not the plan's")
    own_eps = torch.optim.Adafactor([{**group, "eps": (None, 1e-3)} for group in groups])
    assert complaints(plan, own_eps, model) == []
    by_adam = torch.optim.AdamW([{k: v for k, v in g.items() if k != "eps"} for g in groups])
    assert both_say(complaints(plan, by_adam, model), "make the plan with optimizer=adamw")
    by_share = [{k: v for k, v in g.items() if k != "eps"} for g in adamw.param_groups(model)]
    messages = complaints(adamw, torch.optim.Adafactor(by_share), model)
    assert both_say(messages, "make the plan with optimizer=adafactor")
