"""The encoder-decoder: the paper's count, what sees what, and training in batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sweeper.data.spans import Corruption, SpanCorpus
from sweeper.engine.prepare import prepare
from sweeper.models.encoder_decoder import EncoderDecoder
from tests.engine.tiny_trials import tokens, tree, trial
from tests.models.own import at, drawn
from tests.specs import spec_of, specs_between


def logits(model: EncoderDecoder, tokens: Tensor, targets: Tensor) -> Tensor:
    """What the loss is given."""
    seen: list[Tensor] = []
    handle = model.loss.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(tokens, targets)
    handle.remove()
    return seen[0].detach()


@pytest.mark.parametrize("tie", [True, False])
def test_a_position_sees_the_whole_input_and_the_targets_before_it(tie: bool) -> None:
    model = drawn("encoder_decoder", tie=tie)
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
    specs = {s.name: s for s in specs_between(at("encoder_decoder"), base=(32, 1), target=(64, 2))}
    hidden = {name for name, spec in specs.items() if spec.role == "hidden"}
    assert {spec.role for name, spec in specs.items() if name not in hidden} == {"embedding"}
    assert all(spec.residual == (name in hidden) for name, spec in specs.items())
    mixed = specs["decoder_layers.0.mixed.key_value.weight"]
    assert (mixed.fan_in, mixed.fan_out, mixed.base_fan_in) == (64, 128, 32)
    assert specs["embedding.weight"].readout_fan_in == 64
    untied = specs_between(at("encoder_decoder", tie=False), base=(32, 1), target=(64, 1))
    assert {s.name: s.role for s in untied}["head.weight"] == "readout"


def test_the_tied_head_has_the_theory_s_factor() -> None:
    """n^-(1+s)/2 with s = 1/2 at width 32 (footnote 8)."""
    how = Corruption(rate=0.3, mean_span=2.0, target="whole", sentinels=2)
    settings = tree("effective_theory")
    settings["model"]["_target_"] = "sweeper.models.encoder_decoder.EncoderDecoder"
    settings["data"] = SpanCorpus(tokens=tokens(), corruption=how).identity()
    prepared = prepare(spec_of(settings))
    [op] = [op for op in prepared.scaled_ops if op.kind == "tied_readout"]
    hps = prepared.complete(trial("effective_theory").hps)
    assert prepared.parameterization.scale_op(op, hps)["output"] == pytest.approx(32**-0.75)
