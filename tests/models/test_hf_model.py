"""Models of transformers by name: their own loss, and batches of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from sweeper.classifier.classify import scaled_ops, specs_between
from sweeper.engine.batched import BatchedTrials
from sweeper.engine.train import train
from sweeper.models.hf import HfModel
from sweeper.scaling.relative import Standard
from sweeper.scaling.spec import Role, ScaledOp
from sweeper.trial import PlainHps, Trial
from tests.engine.tiny_trials import corpus
from tests.models.arrays import images
from tests.models.hf_families import (
    CAUSAL,
    CLASSES,
    EVERY,
    IMAGES,
    MASKED,
    SEQ,
    batch,
    drawn,
    loss_of,
    made,
    transformers_loss,
)
from tests.specs import spec_of

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_is_transformers_own(name: str) -> None:
    model = drawn(name)
    assert loss_of(model, name) == pytest.approx(transformers_loss(model, name), abs=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_the_first_loss_is_that_of_chance(name: str) -> None:
    classes = 10 if name in IMAGES else CLASSES + (name in MASKED)
    assert loss_of(made(name), name) == pytest.approx(math.log(classes), rel=0.05)


def test_the_loss_of_routers_joins_where_it_is_asked_for() -> None:
    name = "MixtralForCausalLM"
    plain, balanced = drawn(name), drawn(name, config={"output_router_logits": True})
    difference = loss_of(balanced, name) - loss_of(plain, name)
    assert difference > 1e-3
    # transformers is given a token more, which its routers see.
    own = transformers_loss(balanced, name) - transformers_loss(plain, name)
    assert difference == pytest.approx(own, rel=0.05)


@pytest.mark.parametrize("name", CAUSAL)
def test_no_position_sees_what_follows(name: str) -> None:
    model, (x, _) = drawn(name), batch(name)
    changed = x.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % CLASSES
    with torch.no_grad():
        before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=0, atol=1e-6)
    assert (before[:, 6:] - after[:, 6:]).abs().max() > 1e-2


# Training


class Branches(Standard):
    """The standard parameterization; what others do to the stream has no place here."""

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """The logits of attention follow the embedding's constant, so that trials differ."""
        factors = {k: v for k, v in super().scale_op(op, hps).items() if k != "skip"}
        if op.kind == "attention":
            factors["logit"] *= hps["gamma_embedding"]
        return factors


def trials(name: str, folder: Path, parameterization: str = "Branches") -> list[Trial]:
    """Trials that differ in seed and in every hyperparameter; width 32 on base 16, float64."""
    data = (images(folder) if name in IMAGES else corpus(folder)).identity()
    settings = {"steps": 5, "batch_size": 4, "seq_len": 8, "precision": "float64"}
    tree = {
        "parameterization": {"_target_": f"{__name__}.{parameterization}"},
        "model": {
            "_target_": "sweeper.models.hf.HfModel",
            "name": name,
            "head_size": 8,
            "width": 32,
            "depth": 2,
        },
        "base": {"width": 16, "depth": 1},
        "data": data,
        "train": settings | {"heldout_batches": 2},
    }
    hps = {"eta": -8.0, "gamma_embedding": 0.0, "gamma_hidden": 0.0, "gamma_readout": 0.0}
    spec, changed = spec_of(tree), [hps | {key: hps[key] + 1.0} for key in hps]
    return [Trial(spec=spec, log2_hps=h, seed=i % 2) for i, h in enumerate([hps, hps, *changed])]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "GPT2LMHeadModel" else pytest.mark.long)
        for name in (
            *("LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM"),
            "ViTForImageClassification",
        )
    ],
)
def test_batched_equals_alone(name: str, tmp_path: Path) -> None:
    made_trials = trials(name, tmp_path)
    data = images(tmp_path) if name in IMAGES else corpus(tmp_path)
    together = train(BatchedTrials(trials=tuple(made_trials), corpus=data))
    for one, batched in zip(made_trials, together, strict=True):
        single = train(BatchedTrials(trials=(one,), corpus=data))[0]
        assert batched.objective == pytest.approx(single.objective, rel=1e-10)
        assert batched.heldout == pytest.approx(single.heldout, rel=1e-10)
    # The constant of readouts has nothing to act on where the head is the embedding.
    tied = name in ("GPT2LMHeadModel", "BertForMaskedLM")
    assert len({result.objective for result in together}) == len(made_trials) - tied


@pytest.mark.parametrize("name", EVERY)
def test_every_family_maps_over_trials(name: str) -> None:
    """Three trials that differ in weights, factors and inputs, against one after the other."""
    model = drawn(name)
    given = [batch(name, seed) for seed in range(3)]
    x, y = (torch.stack(each) for each in zip(*given, strict=True))
    params = {n: p + 0.05 * torch.randn(3, *p.shape).to(p) for n, p in model.named_parameters()}
    names = {f"{op.name}.{factor}" for op in scaled_ops(model) for factor in ("logit", "branch")}
    scales = {
        n: b * torch.tensor([0.8, 1.0, 1.3], dtype=b.dtype)
        for n, b in model.named_buffers()
        if n in names
    }
    assert len(scales) == 2 + 4 + 1

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional_call(model, p, (x, y), tie_weights=True)  # type: ignore[no-any-return]

    with torch.no_grad():
        mapped = vmap(loss)(params | scales, x, y)
    alone = [loss({n: p[i] for n, p in (params | scales).items()}, x[i], y[i]) for i in range(3)]
    torch.testing.assert_close(mapped, torch.stack(alone), rtol=1e-9, atol=1e-12)
    assert len(set(mapped.tolist())) == 3


@pytest.mark.parametrize("name", EVERY)
def test_every_family_maps_under_autocast(name: str) -> None:
    """Losses in bfloat16 of one trial in a batch, beside those in float32."""
    model, (x, y) = drawn(name).float(), batch(name)
    x = x.float() if name in IMAGES else x
    params = {n: p.detach()[None] for n, p in model.named_parameters()}

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional_call(model, p, (x, y), tie_weights=True)  # type: ignore[no-any-return]

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        mapped = vmap(loss)(params, x[None], y[None])
    with torch.no_grad():
        assert float(mapped) == pytest.approx(float(model(x, y)), rel=0.02)


def test_roles_and_names_are_those_of_the_plain_model() -> None:
    def build(width: int, depth: int) -> HfModel:
        return HfModel(
            name="LlamaForCausalLM", width=width, depth=depth, classes=CLASSES, seq_len=SEQ
        )

    tokens = torch.empty(2, SEQ, dtype=torch.long, device="meta")
    specs = specs_between(build, base=(32, 1), target=(64, 2), inputs=(tokens, tokens))
    plain = {name for name, _ in build(64, 2)._net.named_parameters()}
    assert {spec.name for spec in specs} == plain
    roles = {spec.name: spec.role for spec in specs}
    assert roles.pop("model.embed_tokens.weight") is Role.EMBEDDING
    assert roles.pop("lm_head.weight") is Role.READOUT
    norms = {name for name in roles if "norm" in name}
    assert all((role is Role.VECTOR) == (name in norms) for name, role in roles.items())
    assert all(roles[name] is Role.HIDDEN for name in roles.keys() - norms) and len(norms) == 5
