"""The Vision Transformer: patches, its head, what attention sees, and accuracy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.func import functional_call

from sweeper.classifier.classify import scaled_ops
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.train import train
from sweeper.models.vit import normalized, patches
from sweeper.records import from_json, to_json
from sweeper.trial import Result
from tests.models.arrays import images, trials
from tests.models.own import at, drawn, made
from tests.specs import specs_between

MODEL = {"_target_": "sweeper.models.vit.ViT", "head_size": 8}


def test_the_head_s_bias_is_added_to_the_logits() -> None:
    model, image = drawn("vit", head_bias=True), torch.randn(2, 8, 8)
    out = model(image)
    assert model.head_bias is not None
    model.head_bias.data += torch.arange(10.0)
    torch.testing.assert_close(model(image), out + torch.arange(10.0))


def test_top_1_accuracy_is_what_the_logits_say(tmp_path: Path) -> None:
    data = images(tmp_path)
    batch = trials("mup", MODEL, data, steps=4, batch_size=20)
    run = BatchedRun(BatchedTrials(trials=tuple(batch), corpus=data))
    for _ in range(4):
        run.step()
    _, accuracies = run.heldout()
    assert accuracies is not None and accuracies.shape == (len(batch),)
    model = run.program.model
    for i in range(len(batch)):
        tensors = {name: value[i] for name, value in {**run.params, **run.buffers}.items()}
        hits = []
        for x, y in data.heldout(20, 1, 2):
            logits = functional_call(model, tensors, (torch.from_numpy(x).double(),))
            hits += (logits.argmax(-1).numpy() == y).tolist()
        assert float(accuracies[i]) == pytest.approx(sum(hits) / len(hits))
    result = train(BatchedTrials(trials=tuple(batch), corpus=data))[0]
    assert result.accuracy == pytest.approx(float(accuracies[0]))
    assert from_json(Result, to_json(result)) == result


def test_patches_are_squares_in_reading_order() -> None:
    image = torch.arange(64.0).reshape(1, 8, 8)
    squares = patches(image, 4)
    assert squares.shape == (1, 4, 16)
    assert torch.equal(squares[0, 1], image[0, :4, 4:].flatten())
    coloured = patches(torch.stack([image, -image], 1), 4)
    assert torch.equal(coloured[0, 1], torch.cat([squares[0, 1], -squares[0, 1]]))


def test_norms_take_the_mean_out() -> None:
    x = normalized(5 + 3 * torch.randn(4, 64))
    torch.testing.assert_close(x.mean(-1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.pow(2).mean(-1), torch.ones(4))


def test_patches_see_each_other_in_both_directions_and_positions_matter() -> None:
    model, image = drawn("vit"), torch.randn(1, 8, 8)
    out = model(image)
    moved = image.roll(4, -1)  # the same patches in other places
    assert not torch.allclose(model(moved), out, atol=1e-4)
    torch.nn.init.zeros_(model.position.weight)
    torch.testing.assert_close(model(moved), model(image), atol=1e-4, rtol=1e-4)


def test_roles_and_scaled_ops() -> None:
    specs = specs_between(at("mlp"), base=(32, 1), target=(64, 1))
    assert [str(spec.role) for spec in specs] == ["embedding", "hidden", "readout"]
    specs = specs_between(at("vit"), base=(32, 2), target=(64, 2))
    roles = {spec.name: str(spec.role) for spec in specs}
    assert {roles.pop("patch.weight"), roles.pop("position.weight")} == {"embedding"}
    assert roles.pop("head.weight") == "readout"
    assert set(roles.values()) == {"hidden"}
    attention = next(op for op in scaled_ops(made("vit")) if op.kind == "attention")
    assert attention.geometry == {"head_size": 8, "seq_len": 4, "causal": False}
