"""The plain file trains bit for bit as the plan does, whatever wraps the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import sweeper
from sweeper.plan.plan import TransferPlan
from tests.export.plans import (
    HPS,
    decoder,
    executed,
    made,
    names_of,
    plan,
    planned_settings,
    settings_of,
)
from tests.toy_models import TOKENS, NanoDecoder


def exported(planned: TransferPlan) -> dict[str, Any]:
    return executed(made(planned, "pytorch")["plan_pytorch.py"])


def trained(model: nn.Module, groups: Any, steps: int = 5) -> nn.Module:
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    for step in range(steps):
        tokens = torch.randint(17, (2, 6), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def assert_equal(first: nn.Module, second: nn.Module) -> None:
    pairs = zip(first.named_parameters(), second.named_parameters(), strict=True)
    for (name, a), (same, b) in pairs:
        assert name == same and torch.equal(a, b), name


@pytest.mark.parametrize(
    ("parameterization", "dtype"), [("umup", torch.float64), ("completep", torch.float32)]
)
def test_it_trains_bit_for_bit_as_the_plan(parameterization: str, dtype: torch.dtype) -> None:
    planned = plan(parameterization, width=64)
    names = exported(planned)
    ours, theirs = decoder(planned).to(dtype), decoder(planned).to(dtype)
    planned.init_(ours)
    names["init_"](theirs)
    assert_equal(ours, theirs)
    trained(ours, planned.param_groups(ours))
    trained(theirs, names["param_groups"](theirs))
    assert_equal(ours, theirs)


def test_frozen_and_kept_parameters_and_a_padding_row_are_as_the_plan_has_them() -> None:
    class Padded(NanoDecoder):
        def __init__(self, n_embd: int, n_layer: int = 2) -> None:
            super().__init__(n_embd, n_layer)
            self.wte = nn.Embedding(17, n_embd, padding_idx=3)

    base, target = {"n_embd": 32, "n_layer": 2}, {"n_embd": 64, "n_layer": 3}
    more: Any = {"inputs": TOKENS, "frozen": ["h.0.*"], "keep_init": ["h.1.norm.*"]}
    planned = sweeper.plan_for(Padded, base, target, "mup", HPS["mup"], **more)
    names = exported(planned)
    torch.manual_seed(1)
    ours = Padded(**target)
    theirs = Padded(**target)
    theirs.load_state_dict(ours.state_dict())
    planned.init_(ours)
    names["init_"](theirs)
    assert_equal(ours, theirs)
    assert not ours.wte.weight[3].any()
    groups = names["param_groups"](theirs)
    assert settings_of(groups, names_of(theirs)) == planned_settings(planned)


@pytest.mark.parametrize("prefix", ["module", "_orig_mod"])
def test_wrapped_models_get_the_same_values(prefix: str) -> None:
    planned = plan("mup", width=64)
    names = exported(planned)
    plain, inner = decoder(planned), decoder(planned)
    wrapped = nn.ModuleDict({prefix: inner}) if prefix == "module" else nn.Module()
    wrapped.add_module(prefix, inner)
    names["init_"](plain)
    names["init_"](wrapped)
    assert_equal(plain, inner)
    groups = names["param_groups"](wrapped)
    assert settings_of(groups, names_of(inner)) == planned_settings(planned)


def test_a_seed_of_the_plan_s_own_is_the_default() -> None:
    planned = replace(plan("mup", width=64), source={"seed": 7})
    ours, theirs = decoder(planned), decoder(planned)
    planned.init_(ours)
    exported(planned)["init_"](theirs)
    assert_equal(ours, theirs)


def test_a_model_of_other_parameters_is_refused_by_name() -> None:
    planned = plan("mup", width=64)
    names = exported(planned)
    model = decoder(planned)
    model.add_module("more", nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"does not know the parameter more\.weight"):
        names["init_"](model)
    with pytest.raises(ValueError, match="does not know the parameter more"):
        names["param_groups"](model)
    with pytest.raises(ValueError, match=r"lacks parameters of scale"):
        names["param_groups"](nn.ModuleDict({"wte": decoder(planned).wte}))


def test_the_file_does_without_sweeper() -> None:
    assert "sweeper" not in made(plan("mup"), "pytorch")["plan_pytorch.py"].split('"""', 2)[2]
