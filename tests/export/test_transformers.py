"""Fields of transformers' own models against weights into which every factor is folded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sweeper
from sweeper.engine.prepare import prepare
from sweeper.plan.plan import TransferPlan
from tests.engine.tiny_trials import tree
from tests.export.plans import COMPLETEP, executed, made, missing
from tests.plan.helpers import plan as study_plan
from tests.refusals import raises_config_error
from tests.specs import spec_of

transformers = pytest.importorskip("transformers", minversion="5.0")

HEAD, CLASSES = 8, 17
TOKENS = torch.zeros(2, 6, dtype=torch.long)
HPS = {"eta": 2.0**-6, "eta_emb": 2.0, "alpha_emb": 3.0, "alpha_attn": 0.7, "alpha_output": 1.5}


def granite(width: int, depth: int, **fields: Any) -> Any:
    config = transformers.GraniteConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD,
        intermediate_size=2 * width,
        vocab_size=CLASSES,
        max_position_embeddings=16,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        head_dim=HEAD,
        attn_implementation="sdpa",
        **{"tie_word_embeddings": False, **fields},
    )
    return transformers.GraniteForCausalLM(config)


@cache
def planned() -> TransferPlan:
    """muP with CompleteP, from width 16 and depth 1 to width 32 and depth 3."""
    base, target = {"width": 16, "depth": 1}, {"width": 32, "depth": 3}
    return sweeper.plan_for(granite, base, target, COMPLETEP, HPS, inputs=TOKENS)


@contextmanager
def exact_norms(net: nn.Module) -> Iterator[None]:
    """The norms, which transformers computes in float32, in float64."""

    def forward(self: Any, x: Tensor) -> Tensor:
        scale = x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon
        return self.weight * (x * torch.rsqrt(scale))  # type: ignore[no-any-return]

    for module in net.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]
    yield


def losses(net: Any, groups: Any) -> Tensor:
    """Every step's loss."""
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    history = []
    for step in range(8):
        tokens = torch.randint(CLASSES, (4, 12), generator=torch.Generator().manual_seed(step))
        out = net(input_ids=tokens).logits[:, :-1]
        loss = nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    return torch.stack(history)


def test_a_plan_of_arrays_is_no_family_of_text() -> None:
    of_images = replace(planned(), source={"data": {"input_shape": [1, 8, 8]}})

    def build(width: int) -> nn.Module:
        patches = nn.Conv2d(1, width, 4, stride=4), nn.Flatten(), nn.Linear(4 * width, width)
        return nn.Sequential(*patches, nn.ReLU(), nn.Linear(width, 10))

    # By what the model is, where nothing says what it was trained on.
    of_patches = sweeper.plan_for(
        build, {"width": 8}, {"width": 32}, "mup", {"eta": 0.1}, inputs=torch.zeros(2, 1, 8, 8)
    )
    for of_arrays in (of_images, of_patches):
        with raises_config_error("family", "granite"):
            made(of_arrays, "hf", family="granite")


OWN = {
    "embedding_multiplier": 5.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
}
"""Fields that a study's model has of its own."""


def of_a_study(tie: bool) -> tuple[TransferPlan, Any]:
    """The plan of a trial with such a model, and the model as the engine trains it."""
    made_of = tree("mup")
    made_of["model"] = {
        "_target_": "sweeper.models.hf.HfModel",
        "name": "GraniteForCausalLM",
        "width": 32,
        "depth": 2,
        "head_size": HEAD,
        "ffn_ratio": 2.0,
        "tie": tie,
        "config": OWN,
    }
    made_of["base"] = {"width": 16, "depth": 1}
    made_of["data"]["classes"] = CLASSES
    plan = study_plan("mup", made_of, alpha_emb=1.0, alpha_attn=-1.0, alpha_output=1.0)
    model = asdict(spec_of(made_of).model)
    engine: Any = prepare(spec_of(made_of)).model().double()
    buffers = dict(engine.named_buffers())
    for name, factors in plan.operations.items():
        for factor, value in factors.items():
            if f"{name}.{factor}" in buffers:
                buffers[f"{name}.{factor}"].fill_(value)
    return replace(plan, source={**plan.source, "model": model}), engine


@pytest.mark.parametrize("tie", [False, True])
def test_fields_train_as_the_engine_and_those_of_the_study_s_model_stay_in_force(
    tie: bool,
) -> None:
    plan, engine = of_a_study(tie)
    assert missing(plan, "hf") == {}
    names = executed(made(plan, "hf")["plan_hf.py"])
    assert names["CONFIG"]["embedding_multiplier"] == pytest.approx(2 * 5.0)
    assert names["CONFIG"]["attention_multiplier"] == pytest.approx(0.3 * 0.5 / HEAD * HEAD**0.5)
    assert names["CONFIG"]["residual_multiplier"] == pytest.approx(0.6 * 0.5**0.5)
    assert names["CONFIG"]["logits_scaling"] == pytest.approx(2.0 / 2 * 2)
    net = granite(32, 2, tie_word_embeddings=tie, **names["CONFIG"]).double()
    names["init_"](net)
    plan.init_(engine)

    class Logits(nn.Module):
        def forward(self, input_ids: Tensor) -> Any:
            return type("Out", (), {"logits": engine(input_ids)})

    with exact_norms(net), exact_norms(engine):
        ours = losses(net, names["param_groups"](net))
        theirs = losses(Logits(), plan.param_groups(engine))
    assert (ours - theirs).abs().max() <= 1e-9


def test_a_base_that_is_no_whole_number_leaves_the_rest_to_the_groups() -> None:
    """What MiniCPM's dim_model_base, a whole number, does not say of the logits, a group does."""
    plan = replace_output(planned(), 1.1)
    names = executed(made(plan, "hf", family="minicpm3")["plan_hf.py"])
    written = names["CONFIG"]["dim_model_base"] / 32
    wanted = next(p for p in plan.parameters if p.role == "readout").target.multiplier
    assert written != pytest.approx(wanted, rel=0.001)
    lacks = missing(plan, "hf", family="minicpm3")
    assert lacks.keys() == {"attention"}  # it has no field for that
    (row,) = [row for row in names["PLAN"] if "lm_head" in row[0]]
    absorbed = next(p for p in plan.absorbed() if p.name == "lm_head.weight")
    assert row[1][1] * written == pytest.approx(absorbed.init_std)
    assert row[2]["lr"] * written == pytest.approx(absorbed.lr)
    assert row[2]["eps"] / written == pytest.approx(absorbed.eps)


def replace_output(plan: TransferPlan, factor: float) -> TransferPlan:
    changed = []
    for parameter in plan.parameters:
        target = parameter.target
        if parameter.role == "readout":
            value = target.multiplier * factor
            target = replace(target, multiplier=value, backward_multiplier=value)
        changed.append(replace(parameter, target=target))
    return replace(plan, parameters=tuple(changed))
