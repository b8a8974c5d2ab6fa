"""The Vision Transformer: patches, parameters by the paper's count, and training in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call

from sweeper.classifier.classify import scaled_ops, specs_between
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.train import train
from sweeper.errors import ConfigError
from sweeper.models.vit import ViT, normalized, patches
from sweeper.records import from_json, to_json
from sweeper.trial import Result
from tests.engine.tiny_trials import ONE_PARAMETERIZATION
from tests.models.arrays import (
    assert_it_learns,
    assert_unit_scale,
    images,
    trials,
)

MODEL = {"_target_": "sweeper.models.vit.ViT", "head_size": 8}


def made(width: int = 32, depth: int = 2, **more: Any) -> ViT:
    sizes: dict[str, Any] = {"classes": 10, "input_shape": (8, 8), "head_size": 8}
    return ViT(width=width, depth=depth, **(sizes | more))


def drawn(**more: Any) -> ViT:
    torch.manual_seed(0)
    model = made(**more)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("parameterization", ONE_PARAMETERIZATION)
def test_it_learns(parameterization: str, tmp_path: Path) -> None:
    assert_it_learns(parameterization, MODEL, tmp_path)


def test_the_paper_s_model_has_86_million_parameters() -> None:
    """768 x 768 + 196 x 768 + 768^2 x (4 + 2 x 4) x 12 + 768 x 1000 + 1000."""
    sizes: dict[str, Any] = {"classes": 1000, "input_shape": (3, 224, 224), "head_size": 64}
    with torch.device("meta"):
        model = made(768, 12, patch_size=16, head_bias=True, **sizes)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == 768 * 768 + 196 * 768 + 768**2 * 12 * 12 + 768 * 1000 + 1000


def test_the_head_s_bias_is_added_to_the_logits() -> None:
    model, image = drawn(head_bias=True), torch.randn(2, 8, 8)
    out = model(image)
    assert model.head_bias is not None
    model.head_bias.data += torch.arange(10.0)
    torch.testing.assert_close(model(image), out + torch.arange(10.0))


def test_unit_scale_of_the_head_s_bias() -> None:
    """Its gradient is of order 1 at any batch, and so independent of it."""
    for batch in (16, 256):
        torch.manual_seed(0)
        model = made(64, unit=True, head_bias=True)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        torch.nn.init.zeros_(model.head_bias)  # type: ignore[arg-type]
        model.head.multiplier.fill_(1 / 64)
        model(torch.randn(batch, 8, 8), torch.randint(10, (batch,))).backward()
        assert model.head_bias is not None and model.head_bias.grad is not None
        assert 0.4 < float(model.head_bias.grad.pow(2).mean().sqrt()) < 2.5


@pytest.mark.parametrize("parameterization", ["mup", pytest.param("umup", marks=pytest.mark.long)])
def test_top_1_accuracy_is_what_the_logits_say(parameterization: str, tmp_path: Path) -> None:
    data = images(tmp_path)
    made = trials(parameterization, MODEL, data, steps=12, batch_size=20)
    run = BatchedRun(BatchedTrials(trials=tuple(made), corpus=data))
    for _ in range(12):
        run.step()
    _, found = run.heldout()
    assert found is not None and found.shape == (len(made),)
    model = run.program.model
    for i in range(len(made)):
        tensors = {name: value[i] for name, value in {**run.params, **run.buffers}.items()}
        hits = []
        for x, y in data.heldout(20, 1, 2):
            logits = functional_call(model, tensors, (torch.from_numpy(x).double(),))
            hits += (logits.argmax(-1).numpy() == y).tolist()
        assert float(found[i]) == pytest.approx(sum(hits) / len(hits))
    result = train(BatchedTrials(trials=tuple(made), corpus=data))[0]
    assert result.accuracy == pytest.approx(float(found[0]))
    assert from_json(Result, to_json(result)) == result


def test_patches_are_squares_in_reading_order() -> None:
    image = torch.arange(64.0).reshape(1, 8, 8)
    found = patches(image, 4)
    assert found.shape == (1, 4, 16)
    assert torch.equal(found[0, 1], image[0, :4, 4:].flatten())
    coloured = patches(torch.stack([image, -image], 1), 4)
    assert torch.equal(coloured[0, 1], torch.cat([found[0, 1], -found[0, 1]]))


def test_norms_take_the_mean_out() -> None:
    x = normalized(5 + 3 * torch.randn(4, 64))
    torch.testing.assert_close(x.mean(-1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.pow(2).mean(-1), torch.ones(4))


def test_patches_see_each_other_in_both_directions_and_positions_matter() -> None:
    model, image = drawn(), torch.randn(1, 8, 8)
    out = model(image)
    moved = image.roll(4, -1)  # the same patches in other places
    assert not torch.allclose(model(moved), out, atol=1e-4)
    torch.nn.init.zeros_(model.position.weight)
    torch.testing.assert_close(model(moved), model(image), atol=1e-4, rtol=1e-4)


def test_unit_scale() -> None:
    """Within the reach of the paper's rules, which take tokens to be independent."""
    assert_unit_scale(lambda w, d: made(w, d, input_shape=(16, 16), unit=True), 0.2, 2.0)


def test_roles_and_scaled_ops() -> None:
    specs = specs_between(lambda w, d: made(w, d), base=(32, 2), target=(64, 2))
    roles = {spec.name: str(spec.role) for spec in specs}
    assert {roles.pop("patch.weight"), roles.pop("position.weight")} == {"embedding"}
    assert roles.pop("head.weight") == "readout"
    assert set(roles.values()) == {"hidden"}
    attention = next(op for op in scaled_ops(made()) if op.kind == "attention")
    assert attention.geometry == {"head_size": 8, "seq_len": 4, "causal": False}


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"width": 20}, "width"),
        ({"depth": 0}, "depth"),
        ({"patch_size": 3}, "patch_size"),
        ({"patch_size": 0}, "patch_size"),
        ({"ffn_ratio": 0}, "ffn_ratio"),
        ({"input_shape": (64,)}, "input_shape"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(more: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**more)
    assert caught.value.key == key
