"""Fields of transformers' own models against weights into which every factor is folded."""

from __future__ import annotations

import re
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
CLASSES_OF = {"granite": "Granite", "hyperclovax": "HyperCLOVAX"}
BRANCH_ENDS = {"granite": r"(o_proj|down_proj)\.weight$", "hyperclovax": r"post_norm[12]\.weight$"}
"""What the factor of a branch is folded into: HyperCLOVAX has norms behind its branches."""


def model(family: str, width: int, depth: int, **fields: Any) -> Any:
    config = getattr(transformers, f"{CLASSES_OF[family]}Config")(
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
    return getattr(transformers, f"{CLASSES_OF[family]}ForCausalLM")(config)


@cache
def planned(family: str, tied: bool = False) -> TransferPlan:
    """muP with CompleteP, from width 16 and depth 1 to width 32 and depth 3."""

    def build(width: int, depth: int) -> Any:
        return model(family, width, depth, tie_word_embeddings=tied)

    base, target = {"width": 16, "depth": 1}, {"width": 32, "depth": 3}
    return sweeper.plan_for(build, base, target, COMPLETEP, HPS, inputs=TOKENS)


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


def with_fields(family: str, plan: TransferPlan, **changed: float) -> tuple[Any, Any]:
    names = executed(made(plan, "hf", family=family)["plan_hf.py"])
    tied = not any(p.role == "readout" for p in plan.parameters)
    fields = {**names["CONFIG"], **changed}
    net = model(family, 32, 3, tie_word_embeddings=tied, **fields).double()
    names["init_"](net)
    return net, names["param_groups"](net)


def folded(family: str, plan: TransferPlan) -> tuple[Any, Any]:
    """The model with neutral fields: the plan's weights, and every other factor folded into one.

    A factor c of what a weight gives is c times the weight, its learning rate, and 1/c its eps.
    """
    neutral = {"attention_multiplier": HEAD**-0.5}
    tied = not any(p.role == "readout" for p in plan.parameters)
    net = model(family, 32, 3, tie_word_embeddings=tied, **neutral).double()
    plan.init_(net)
    groups = {}
    for group in plan.param_groups(net):
        for parameter in group["params"]:
            groups[id(parameter)] = {**group, "params": [parameter]}
    attention = HPS["alpha_attn"] / HEAD / HEAD**-0.5
    for name, parameter in net.named_parameters():
        c = 1.0
        if name.endswith("q_proj.weight"):
            c = attention
        if re.search(BRANCH_ENDS[family], name):
            c = 1 / 3  # CompleteP: over depth / base depth
        parameter.data *= c
        group = groups[id(parameter)]
        # weight_decay times lr is the share that a step removes, and stays.
        group.update(
            lr=group["lr"] * c, eps=group["eps"] / c, weight_decay=group["weight_decay"] / c
        )
    return net, list(groups.values())


def losses(net: Any, groups: Any, steps: int = 10, logits: float = 1.0) -> Tensor:
    """Every step's loss; `logits` is a factor that the caller folds nowhere else."""
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    history = []
    for step in range(steps):
        tokens = torch.randint(CLASSES, (4, 12), generator=torch.Generator().manual_seed(step))
        out = net(input_ids=tokens).logits[:, :-1] * logits
        loss = nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    return torch.stack(history)


@pytest.mark.parametrize("family", ["granite", pytest.param("hyperclovax", marks=pytest.mark.long)])
def test_fields_train_as_folded_weights(family: str) -> None:
    plan = planned(family)
    assert missing(plan, "hf", family=family) == {}
    exported, neutral = with_fields(family, plan), folded(family, plan)
    with exact_norms(exported[0]), exact_norms(neutral[0]):
        ours, theirs = losses(*exported), losses(*neutral)
    assert ours[-1] < ours[0]
    assert (ours - theirs).abs().max() <= 1e-9


def test_a_plan_of_arrays_is_no_family_of_text() -> None:
    of_images = replace(planned("granite"), source={"data": {"input_shape": [1, 8, 8]}})

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


def test_a_tied_head_s_factor_is_with_that_of_the_rows() -> None:
    plan = planned("granite", tied=True)
    assert missing(plan, "hf", family="granite") == {}
    net, groups = with_fields("granite", plan)
    other, theirs = folded("granite", plan)
    factor = next(op["output"] for name, op in plan.operations.items() if "output" in op)
    with exact_norms(net), exact_norms(other):
        gap = losses(net, groups) - losses(other, theirs, logits=factor)
    assert gap.abs().max() <= 1e-9


OWN = {
    "embedding_multiplier": 5.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
}
"""Fields that a study's model has of its own."""


def of_a_study() -> tuple[TransferPlan, Any]:
    """The plan of a trial with such a model, and the model as the engine trains it."""
    made_of = tree("mup")
    made_of["model"] = {
        "_target_": "sweeper.models.hf.HfModel",
        "name": "GraniteForCausalLM",
        "width": 32,
        "depth": 2,
        "head_size": HEAD,
        "ffn_ratio": 2.0,
        "tie": False,
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


def test_fields_that_the_study_s_model_had_stay_in_force() -> None:
    plan, engine = of_a_study()
    assert missing(plan, "hf") == {}
    names = executed(made(plan, "hf")["plan_hf.py"])
    assert names["CONFIG"]["embedding_multiplier"] == pytest.approx(2 * 5.0)
    assert names["CONFIG"]["attention_multiplier"] == pytest.approx(0.3 * 0.5 / HEAD * HEAD**0.5)
    assert names["CONFIG"]["residual_multiplier"] == pytest.approx(0.6 * 0.5**0.5)
    assert names["CONFIG"]["logits_scaling"] == pytest.approx(2.0 / 2 * 2)
    net = model("granite", 32, 2, **names["CONFIG"]).double()
    names["init_"](net)
    plan.init_(engine)

    class Logits(nn.Module):
        def forward(self, input_ids: Tensor) -> Any:
            return type("Out", (), {"logits": engine(input_ids)})

    with exact_norms(net), exact_norms(engine):
        ours = losses(net, names["param_groups"](net), steps=8)
        theirs = losses(Logits(), plan.param_groups(engine), steps=8)
    assert (ours - theirs).abs().max() <= 1e-9


def test_a_base_that_is_no_whole_number_leaves_the_rest_to_the_groups() -> None:
    """What MiniCPM's dim_model_base, a whole number, does not say of the logits, a group does."""
    plan = replace_output(planned("granite"), 1.1)
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
