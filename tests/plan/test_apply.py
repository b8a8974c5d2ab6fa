"""A plan in somebody else's training code."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import sweeper
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.prepare import prepare
from sweeper.errors import BadInput
from sweeper.plan.apply import match_parameters
from sweeper.plan.plan import TransferPlan
from sweeper.plan.plan_for import plan_for
from sweeper.records import from_json, to_json
from sweeper.trial import Trial
from tests.engine.tiny_trials import corpus, trial
from tests.golden import Golden
from tests.plan.helpers import (
    CHANGED,
    batch,
    mup_tree,
    plain_model,
    plain_plan,
    plan,
    residual_tree,
)
from tests.refusals import raises_config_error, refused
from tests.specs import spec_of
from tests.toy_models import Residual


def train(planned: TransferPlan, model: nn.Module, steps: int = 3) -> list[float]:
    optimizer, losses = torch.optim.AdamW(planned.param_groups(model)), []
    for index in range(steps):
        optimizer.zero_grad()
        loss = model(*batch(index))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_an_absorbed_multiplier_trains_as_the_engine_does(tmp_path: Path) -> None:
    """Plain AdamW with a scheduler on a model without multipliers: the batch's losses to 1e-9."""
    made = mup_tree(steps=12)
    log2_hps = trial("mup", **CHANGED, alpha_output=2.0).log2_hps
    data = corpus(tmp_path)
    run = BatchedRun(
        BatchedTrials(trials=(Trial(spec=spec_of(made), log2_hps=log2_hps, seed=3),), corpus=data)
    )
    planned = plan("mup", made, **CHANGED, alpha_output=2.0)
    model = planned.init_(plain_model(planned, made), seed=3)
    optimizer = torch.optim.AdamW(planned.param_groups(model))
    factor = prepare(spec_of(made)).train.lr_factors
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor([step])[0])
    for index in range(12):
        x, y = (torch.from_numpy(part) for part in data.batch(3, index, 2, 8))
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        assert float(run.step()[0]) == pytest.approx(float(loss.detach()), rel=1e-9)


def test_values_depend_on_seed_and_name_alone() -> None:
    planned = plain_plan()
    first, reordered = planned.init_(Residual(16, 2)), Residual(16, 2)
    torch.manual_seed(5)
    reordered.head, reordered.tokens = reordered.head, reordered.tokens  # another order of modules
    planned.init_(reordered)
    for name, value in first.named_parameters():
        assert torch.equal(value, reordered.get_parameter(name))
    other = planned.init_(Residual(16, 2), seed=5)
    assert not torch.equal(first.head.weight, other.head.weight)  # type: ignore[union-attr]
    # The plan of a trial draws by the trial's seed.
    of_trial = replace(planned, source={**planned.source, "seed": 5}).init_(Residual(16, 2))
    assert all(map(torch.equal, of_trial.parameters(), other.parameters()))


def test_the_row_of_a_padding_is_zero() -> None:
    model = Residual(16, 2)
    model.tokens = nn.Embedding(11, 16, padding_idx=3)
    plain_plan().init_(model)
    zero = (model.tokens.weight == 0).all(1)
    assert zero.tolist() == [row == 3 for row in range(11)]


def test_lr_scale_leaves_the_decay(golden: Golden) -> None:
    planned, model = plain_plan(), Residual(16, 2)
    assert [len(group["params"]) for group in planned.param_groups(model)] == [1, 6, 2, 1]
    pairs = zip(planned.param_groups(model), planned.param_groups(model, lr_scale=0.5), strict=True)
    for full, half in pairs:
        assert half["lr"] == full["lr"] / 2
        assert half["lr"] * half["weight_decay"] == pytest.approx(0.01)
    with refused(golden):
        planned.param_groups(model, lr_scale=0)


def test_deepcopy_meta_and_compile_change_nothing(golden: Golden) -> None:
    planned = plain_plan()
    expected = train(planned, planned.init_(Residual(16, 2)))
    assert train(planned, copy.deepcopy(planned.init_(Residual(16, 2)))) == expected
    with torch.device("meta"):
        empty = Residual(16, 2)
    with refused(golden):
        planned.init_(empty)
    assert train(planned, planned.init_(empty.to_empty(device="cpu"))) == expected
    compiled = torch.compile(Residual(16, 2), backend="eager")
    assert train(planned, planned.init_(compiled)) == pytest.approx(expected, rel=1e-6)
    assert next(iter(compiled.named_parameters()))[0].startswith("_orig_mod.")


class Wrapped(nn.Module):
    """A model of whose own names one part is that of a wrapper."""

    def __init__(self, width: int, depth: int, classes: int = 11) -> None:
        super().__init__()
        self.module = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, classes, bias=False)
        self.table = nn.Embedding(classes, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.module(self.table(x)))  # type: ignore[no-any-return]


def test_prefixes_are_understood_but_a_name_of_the_model_s_own_wins() -> None:
    planned = plain_plan()
    inner = Residual(16, 2)
    shell = nn.Module()
    shell.add_module("module", torch.compile(inner, backend="eager"))
    planned.init_(shell)
    assert torch.equal(inner.head.weight, planned.init_(Residual(16, 2)).head.weight)  # type: ignore[union-attr]
    made = mup_tree()
    made["model"] = {"_target_": f"{__name__}.Wrapped", "width": 32, "depth": 1}
    own = plan("mup", made)
    assert own.init_(Wrapped(32, 1, 32)) and own.param_groups(Wrapped(32, 1, 32))


def test_what_does_not_match_is_listed(golden: Golden) -> None:
    planned, model = plain_plan(), Residual(16, 3)
    model.tokens = nn.Embedding(12, 16)
    del model.head
    with refused(golden):
        planned.param_groups(model)
    with refused(golden):
        planned.init_(Residual(16, 2 + 6))  # six layers of four parameters, of which 20 are shown


def test_a_parameter_cannot_be_planned_twice(golden: Golden) -> None:
    shell = nn.Module()
    shell.add_module("module", Residual(16, 2))
    shell.add_module("_orig_mod", Residual(16, 2))
    with refused(golden):
        plain_plan().init_(shell)


class Placed(nn.Module):
    """Tokens, positions for a block, and a gain that the model starts in its own way."""

    def __init__(self, width: int, block: int = 6) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, width), nn.Embedding(block, width)
        self.gain = nn.Parameter(torch.full((width,), 0.125))
        self.body, self.head = nn.Linear(width, width), nn.Linear(width, 11, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        return self.head(self.gain * torch.tanh(self.body(h)))  # type: ignore[no-any-return]


def placed_plan(**more: Any) -> TransferPlan:
    hps, tokens = {"eta": 2.0**-7, "alpha_emb": 2.0, "alpha_output": 4.0}, torch.zeros(2, 6)
    sizes = {"width": 8}, {"width": 16}
    return plan_for(Placed, *sizes, "mup", hps, inputs=tokens.long(), **more)


@pytest.mark.parametrize("required", [True, False])
def test_frozen_and_kept_parameters_stay_as_the_model_has_them(
    required: bool, golden: Golden
) -> None:
    planned = placed_plan(keep_init=["gain", "head.*"], frozen=["positions.*"])
    model = Placed(16)
    model.positions.weight.requires_grad_(required)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    planned.init_(model)
    same = {n for n, value in model.named_parameters() if torch.equal(value, before[n])}
    assert same == {"positions.weight", "gain", "head.weight"}
    groups = planned.param_groups(model)
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert id(model.positions.weight) not in rates and len(rates) == 5
    # Kept values, yet the plan's rate: the readout has absorbed alpha_output / m = 4 / 2.
    assert rates[id(model.head.weight)] == pytest.approx(2.0**-7 * 2)
    optimizer = torch.optim.AdamW(groups)
    planned.check(optimizer)
    planned.check(optimizer, model)
    assert from_json(TransferPlan, to_json(planned)) == planned
    optimizer.add_param_group({"params": [model.positions.weight], "lr": 1e-3})
    with refused(golden):
        planned.check(optimizer, model)


def test_a_plan_of_a_module_around_the_model_is_refused_by_its_prefix() -> None:
    made = plain_plan()
    outer = [replace(setting, name=f"net.{setting.name}") for setting in made.absorbed()]
    with pytest.raises(BadInput, match=r"all its names begin with 'net\.'.*inherit"):
        match_parameters(outer, Residual(16, 2))


def test_named_parameters_may_have_another_shape(golden: Golden) -> None:
    """A longer context has more positions: drawn at their own shape, by the plan's std of 2."""
    planned, longer = placed_plan(), Placed(16, block=512)
    for use in (planned.init_, planned.param_groups):
        with refused(golden):
            use(longer)
        with raises_config_error("differs", "*.wpe"):
            use(longer, differs=["*.wpe"])
    longer.positions.weight.detach().zero_()
    planned.init_(longer, differs=["pos*.weight"])
    assert float(longer.positions.weight.detach().std()) == pytest.approx(2.0, rel=0.05)
    assert torch.equal(longer.tokens.weight, planned.init_(Placed(16)).tokens.weight)  # type: ignore[arg-type, union-attr]
    optimizer = torch.optim.AdamW(planned.param_groups(longer, differs=["positions.weight"]))
    planned.check(optimizer, longer)


def test_the_plan_of_a_command_that_scales_by_itself_is_told(golden: Golden) -> None:
    with refused(golden):
        match_parameters([], nn.Linear(2, 2))


# 'plan.check' finds what breaks a plan in a training loop, and lets pass what does not.


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
