"""What decays: the matrices alone in a user's model with norms; a step of torch's AdamW agrees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.trainer_pt_utils import get_parameter_names

import sweeper
from sweeper.config.compose import compose_tree
from sweeper.config.settings import Settings, resolve
from sweeper.plan.plan import TransferPlan
from sweeper.sweep.base_search import edits_of_script
from sweeper.trial import PluginSpec
from tests.toy_models import DECAY, TOKENS, NanoDecoder

OWN = ["model._target_=tests.toy_models.PlainDecoder", "parameterization=mup", "model.width=16"]
SMALL = ["model.depth=1", "transfer.widths=[16,32]", "runner.device=cpu"]


class Shifted(nn.Module):
    """A norm whose gain is stored as 1 + w, positions that are added, and a convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.places = nn.Parameter(torch.zeros(6, width))
        self.gain, self.kernel = nn.Parameter(torch.zeros(width)), nn.Conv1d(width, width, 3)
        self.head = nn.Linear(width, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.places[: tokens.shape[1]]
        x = nn.functional.layer_norm(x, x.shape[-1:]) * (1 + self.gain)
        logits: Tensor = self.head(self.kernel(x.mT).mT)
        return logits


def tied(width: int) -> nn.Module:
    model = Shifted(width)
    model.head.weight = model.embed.weight
    return model


def unnormed(width: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(11, width), nn.Linear(width, 11))


def planned(model: Any, optimizer: Any = None, name: str = "width", **hps: float) -> TransferPlan:
    optimizer = optimizer or {"name": "adamw", "weight_decay": DECAY}
    sizes, all_hps = ({name: 16}, {name: 32}), {"eta": 2.0**-7, **hps}
    return sweeper.plan_for(
        model, *sizes, "mup", all_hps, optimizer=optimizer, inputs=TOKENS[:, :6]
    )


def decaying(plan: TransferPlan) -> set[str]:
    return {p.name for p in plan.parameters if p.target.weight_decay}


def test_matrices_alone_decay_and_nothing_that_is_picked_or_added() -> None:
    plan = planned(Shifted)
    assert decaying(plan) == {"kernel.weight", "head.weight"}
    assert plan.optimizer == PluginSpec(
        name="adamw", arguments={"weight_decay": DECAY, "decayed": "matrices"}
    )
    again = planned(Shifted, plan.optimizer)  # a plan's record says what decays
    assert again.parameters == plan.parameters
    model, spared = NanoDecoder(16), [nn.LayerNorm, nn.Embedding]
    named = get_parameter_names(model, spared, [r"bias", r"scale"])  # transformers' rule
    assert decaying(planned(NanoDecoder, name="n_embd")) == {*named}
    assert decaying(planned(tied)) == {"kernel.weight", "embed.weight"}  # as in nanoGPT


@pytest.mark.parametrize(
    ("model", "options", "arguments"),
    [
        (unnormed, {}, {}),
        (Shifted, {"decayed": "all"}, {}),
        (unnormed, {"decayed": "matrices"}, {"decayed": "matrices"}),
    ],
)
def test_without_norms_all_decay_and_an_option_says_otherwise(
    model: Any, options: dict[str, str], arguments: dict[str, str]
) -> None:
    plan = planned(model, {"name": "adamw", "weight_decay": DECAY, **options})
    assert plan.optimizer is not None
    assert plan.optimizer.arguments == {"weight_decay": DECAY, **arguments}
    names = {p.name for p in plan.parameters}
    assert decaying(plan) == ({"1.weight"} if arguments else names)
    # Plans of earlier versions name no option, and all of their parameters decay.
    assert (
        decaying(planned(model, PluginSpec(name="adamw", arguments={"weight_decay": 0.1}))) == names
    )


def test_a_step_of_adamw_takes_the_plan_s_share_of_what_decays() -> None:
    plan, model = planned(Shifted), Shifted(32)
    plan.init_(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(plan.param_groups(model))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    shares = {name: DECAY if name in decaying(plan) else 0.0 for name in before}
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (1 - shares[name]))


def settings(*words: str) -> Settings:
    return resolve(compose_tree([*OWN, *SMALL, *words]))


def test_a_search_of_one_s_own_model_says_what_is_set() -> None:
    made = settings("train.clip=1", "optimizer.beta2=0.95")
    arguments = made.plugin_spec("optimizer").arguments
    assert arguments["decayed"] == made.raw["optimizer"]["decayed"] == "matrices"
    assert made.notes[-1] == (
        "trained with weight decay 0.000122 of a weight a step (torch's weight_decay 0.0312 at eta "
        "0.00391) on 5 of 12 parameters, not on rows.weight, norms.*.weight, norms.*.bias "
        "(optimizer.decayed), eps 1e-08, beta1 0.9, beta2 0.95, clipping 1.0"
    )
    assert "trained with no weight decay, eps" in settings("optimizer.weight_decay=0").notes[-1]
    for ours in (settings("optimizer.decayed=all"), resolve(compose_tree(["model.width=16"]))):
        assert "decayed" not in ours.plugin_spec("optimizer").arguments
    command = ["runner=command", "data=own", "runner.command=[x,'{plan}','{seed}']"]
    behind = resolve(compose_tree([*OWN, *SMALL[:2], *command]))
    sets, needs = behind.notes[-1], edits_of_script(behind)
    assert "the script's own the plan sets weight decay 0.000122 of a weight a step" in sets
    assert sets.endswith("eps 1e-08; left to the script: beta1, beta2, clipping")
    assert needs.endswith(": the model: multiply q k^T by 0.125 where head size^-1/2 is usual")
    tied = ["model._target_=tests.toy_models.TiedDecoder", *OWN[1:], *SMALL[:2], *command]
    needs = edits_of_script(resolve(compose_tree(tied)))  # the factor is 1 at the base
    assert "this, as at width 32: " in needs and "multiply the logits by 0.5: the head" in needs
    # The configuration of an earlier study has no such key: its trials keep their keys.
    tree = compose_tree([*OWN, *SMALL])
    del tree["optimizer"]["decayed"]
    assert "decayed" not in resolve(tree).plugin_spec("optimizer").arguments


def test_betas_are_the_plan_s_where_somebody_chose_them() -> None:
    assert planned(Shifted).betas is None
    adamw = {"name": "adamw", "weight_decay": DECAY}
    chosen = planned(Shifted, {**adamw, "beta2": 0.95})
    searched = planned(Shifted, adamw, one_minus_beta2=50.0)
    for plan in (chosen, searched):
        assert plan.betas == pytest.approx((0.9, 0.95))
        assert all(group["betas"] == plan.betas for group in plan.param_groups(Shifted(32)))
    assert planned(Shifted, adamw, one_minus_beta2=1.0).betas == (0.9, 0.999)
