"""The encoder-decoder: the paper's count, what sees what, and training in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sweeper.classifier.classify import specs_between
from sweeper.data.spans import Corruption, SpanCorpus
from sweeper.engine.batched import BatchedTrials
from sweeper.engine.prepare import prepare
from sweeper.engine.train import train
from sweeper.errors import ConfigError
from sweeper.models.encoder_decoder import EncoderDecoder
from sweeper.trial import Trial
from tests.engine.tiny_trials import ONE_PARAMETERIZATION, PARAMETERIZATIONS, corpus, points
from tests.specs import spec_of

CLASSES = 34


def made(width: int = 32, depth: int = 2, **more: Any) -> EncoderDecoder:
    sizes = {"classes": CLASSES, "source_len": 6, "target_len": 8, "start": 33, "head_size": 8}
    return EncoderDecoder(width=width, depth=depth, **(sizes | more))


def drawn(**more: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    model = made(**more)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_the_paper_s_model_has_405_million_parameters() -> None:
    with torch.device("meta"):
        model = made(1024, 12, classes=50265, source_len=514, target_len=514, start=0, head_size=64)
    count = sum(parameter.numel() for parameter in model.parameters())
    stacks = 1024**2 * (4 + 2 * 4) * 12 + 1024**2 * (4 + 4 + 2 * 4) * 12
    assert count == 50265 * 1024 + 2 * 514 * 1024 + stacks


def logits(model: EncoderDecoder, tokens: Tensor, targets: Tensor) -> Tensor:
    """What the loss is given."""
    seen: list[Tensor] = []
    handle = model.loss.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(tokens, targets)
    handle.remove()
    return seen[0].detach()


@pytest.mark.parametrize("tie", [True, False])
def test_a_position_sees_the_whole_input_and_the_targets_before_it(tie: bool) -> None:
    model = drawn(tie=tie)
    tokens, targets = torch.randint(32, (1, 6)), torch.randint(32, (1, 8))
    before = logits(model, tokens, targets)
    later = targets.clone()
    later[0, 4] = (later[0, 4] + 1) % 32
    changed = (logits(model, tokens, later) - before).abs().amax(-1)[0] > 1e-6
    assert changed.tolist() == [False] * 5 + [True] * 3
    for place in (0, 5):
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % 32
        assert ((logits(model, other, targets) - before).abs().amax(-1) > 1e-6).all()


def test_roles() -> None:
    specs = {s.name: s for s in specs_between(made, base=(32, 2), target=(64, 4))}
    hidden = {name for name, spec in specs.items() if spec.role == "hidden"}
    assert {spec.role for name, spec in specs.items() if name not in hidden} == {"embedding"}
    assert all(spec.residual == (name in hidden) for name, spec in specs.items())
    mixed = specs["decoder_layers.0.mixed.key_value.weight"]
    assert (mixed.fan_in, mixed.fan_out, mixed.base_fan_in) == (64, 128, 32)
    assert specs["embedding.weight"].readout_fan_in == 64
    untied = specs_between(lambda w, d: made(w, d, tie=False), base=(32, 2), target=(64, 2))
    assert {s.name: s.role for s in untied}["head.weight"] == "readout"


def trials(parameterization: str, folder: Path, **model: Any) -> tuple[list[Trial], SpanCorpus]:
    how = Corruption(rate=0.3, mean_span=2.0, target="whole", sentinels=2)
    data = SpanCorpus(tokens=corpus(folder), corruption=how)
    tree = {
        "parameterization": {"_target_": PARAMETERIZATIONS[parameterization][0]},
        "model": {
            "_target_": "sweeper.models.encoder_decoder.EncoderDecoder",
            "width": 32,
            "depth": 2,
            "head_size": 8,
            **model,
        },
        "base": {"width": 16, "depth": 1},
        "optimizer": {"_target_": "sweeper.engine.optimizers.first_order.AdamW"},
        "data": data.identity(),
        "train": {
            "steps": 6,
            "batch_size": 2,
            "seq_len": 8,
            "precision": "float64",
            "heldout_batches": 1,
        },
    }
    each = enumerate(points(parameterization))
    return [Trial(spec=spec_of(tree), log2_hps=p, seed=i % 2) for i, p in each], data


@pytest.mark.long
@pytest.mark.parametrize("parameterization", ONE_PARAMETERIZATION)
def test_batched_equals_alone(parameterization: str, tmp_path: Path) -> None:
    made, data = trials(parameterization, tmp_path, tie=parameterization != "umup")
    together = train(BatchedTrials(trials=tuple(made), corpus=data))
    for one, batched in list(zip(made, together, strict=True))[1:]:
        single = train(BatchedTrials(trials=(one,), corpus=data))[0]
        assert batched.status == "complete"
        assert batched.objective == pytest.approx(single.objective, rel=1e-10)
        assert batched.heldout == pytest.approx(single.heldout, rel=1e-10)
    assert len({result.objective for result in together}) == len(made)


def test_the_tied_head_has_the_theory_s_factor(tmp_path: Path) -> None:
    """n^-(1+s)/2 with s = 1/2 at width 32 (footnote 8)."""
    made, _ = trials("effective_theory", tmp_path)
    prepared = prepare(made[0].spec)
    [op] = [op for op in prepared.scaled_ops if op.kind == "tied_readout"]
    ones = prepared.complete(made[0].hps)
    assert prepared.parameterization.scale_op(op, ones)["output"] == pytest.approx(32**-0.75)


@pytest.mark.parametrize(
    ("more", "key"),
    [({"width": 20}, "width"), ({"depth": 0}, "depth"), ({"ffn_ratio": 0}, "ffn_ratio")],
)
def test_sizes_that_cannot_be_built_are_refused(more: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**more)
    assert caught.value.key == key
