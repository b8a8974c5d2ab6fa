"""The decoders: causality, position, and what the encoder-decoder sees and counts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sweeper.data.spans import Corruption, SpanCorpus
from sweeper.engine.prepare import prepare
from sweeper.models.encoder_decoder import EncoderDecoder
from sweeper.models.llama import rotary_table, rotate
from tests.engine.tiny_trials import tokens, tree, trial
from tests.models.own import at, drawn
from tests.specs import spec_of, specs_between


@pytest.mark.parametrize("unit", [False, True])
def test_no_position_sees_what_follows(unit: bool) -> None:
    """The gradient of one position's logits reaches no later token."""
    model = drawn("llama", unit=unit)
    embedded: list[torch.Tensor] = []
    model.embedding.register_forward_hook(lambda m, i, out: embedded.append(out))
    logits = model(torch.randint(32, (1, 8)))
    gradient = torch.autograd.grad(logits[0, 5].sum(), embedded[0])[0][0]
    assert (gradient[:6].abs().sum(-1) > 0).all()
    assert (gradient[6:] == 0).all()


def test_rotation_keeps_lengths_and_sees_distances_only() -> None:
    cos, sin = rotary_table(16, 8)
    q, k = torch.randn(8).expand(16, 8), torch.randn(8).expand(16, 8)
    turned = rotate(q, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    scores = turned @ rotate(k, cos, sin).T
    torch.testing.assert_close(scores.diagonal(3), scores.diagonal(3)[:1].expand(13))


def test_gains_are_parameters_only_if_asked_for() -> None:
    assert not any(name.endswith("gain") for name, _ in drawn("llama").named_parameters())
    gains = [
        name
        for name, _ in drawn("llama", norm_gain=True).named_parameters()
        if name.endswith("gain")
    ]
    assert len(gains) == 5


def test_shorter_sequences_are_prefixes() -> None:
    model, tokens = drawn("llama"), torch.randint(32, (1, 8))
    torch.testing.assert_close(model(tokens)[:, :4], model(tokens[:, :4]))


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
