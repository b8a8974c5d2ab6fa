"""Models of transformers by name: their own loss, and batches of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from sweeper.classifier.classify import scaled_ops
from sweeper.models.hf import HfModel, masked_positions
from tests.models.hf_families import (
    CAUSAL,
    CLASSES,
    EVERY,
    IMAGES,
    batch,
    drawn,
    loss_of,
    made,
    transformers_loss,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_is_transformers_own(name: str) -> None:
    model = drawn(name)
    assert loss_of(model, name) == pytest.approx(transformers_loss(model, name), abs=1e-6)


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


def by_tensors(model: HfModel) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    return lambda p, x, y: functional_call(model, p, (x, y), tie_weights=True)


@pytest.mark.parametrize("name", EVERY)
def test_every_family_maps_over_trials(name: str) -> None:
    """Three trials that differ in weights, factors and inputs, against one after the other."""
    model = drawn(name)
    batches = [batch(name, seed) for seed in range(3)]
    x, y = (torch.stack(each) for each in zip(*batches, strict=True))
    params = {n: p + 0.05 * torch.randn(3, *p.shape).to(p) for n, p in model.named_parameters()}
    names = {f"{op.name}.{factor}" for op in scaled_ops(model) for factor in ("logit", "branch")}
    scales = {
        n: b * torch.tensor([0.8, 1.0, 1.3], dtype=b.dtype)
        for n, b in model.named_buffers()
        if n in names
    }
    assert len(scales) == 2 + 4 + 1

    loss = by_tensors(model)
    leaves = {n: p.detach().requires_grad_() for n, p in params.items()}
    mapped = vmap(loss)(leaves | scales, x, y)
    alone = torch.stack(
        [loss({n: p[i] for n, p in (leaves | scales).items()}, x[i], y[i]) for i in range(3)]
    )
    torch.testing.assert_close(mapped, alone, rtol=1e-9, atol=1e-12)
    assert len(set(mapped.tolist())) == 3
    gradients, expected = (
        torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        for losses in (mapped, alone)
    )
    torch.testing.assert_close(gradients, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_every_family_maps_under_autocast(name: str) -> None:
    """Losses in bfloat16 of one trial in a batch, beside those in float32."""
    model, (x, y) = drawn(name).float(), batch(name)
    x = x.float() if name in IMAGES else x
    params = {n: p.detach()[None] for n, p in model.named_parameters()}

    loss = by_tensors(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        mapped = vmap(loss)(params, x[None], y[None])
    with torch.no_grad():
        assert float(mapped) == pytest.approx(float(model(x, y)), rel=0.02)


# Which positions a masked model hides.


@pytest.mark.parametrize(("length", "hidden"), [(1, 1), (12, 2), (100, 15), (128, 19)])
def test_fifteen_percent_of_each_sequence_are_hidden(length: int, hidden: int) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(256, (64, length))
    hidden_places = masked_positions(tokens)
    assert torch.equal(hidden_places.sum(-1), torch.full((64,), hidden))
    assert torch.equal(hidden_places[7:8], masked_positions(tokens[7:8]))
    assert torch.equal(vmap(masked_positions)(tokens.view(8, 8, -1)).flatten(0, 1), hidden_places)


def test_every_position_is_hidden_as_often() -> None:
    """Over 4000 sequences that differ in one token: 15 % at each of 20 places, +-5 sigma."""
    tokens = torch.arange(4000)[:, None].expand(-1, 20).clone()
    tokens[:, 1:] = 7
    share = masked_positions(tokens).double().mean(0)
    assert (share - 0.15).abs().max() < 5 * math.sqrt(0.15 * 0.85 / 4000)


def test_a_hidden_token_is_not_seen() -> None:
    """The model is shown the same for two sequences that differ in a hidden token alone."""
    seen: list[Tensor] = []
    model = made("BertForMaskedLM")
    model.bert.embeddings.word_embeddings.register_forward_hook(  # type: ignore[union-attr]
        lambda module, args, out: seen.append(args[0])
    )
    x, y = batch("BertForMaskedLM")
    model(x, y)
    hidden = masked_positions(x)
    assert (seen[0][hidden] == CLASSES).all() and torch.equal(seen[0][~hidden], x[~hidden])
