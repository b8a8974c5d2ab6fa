"""A plan in somebody else's training code."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

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
from tests.plan.helpers import CHANGED, batch, mup_tree, plain_model, plain_plan, plan
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
