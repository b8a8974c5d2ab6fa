"""Roles and fans read off the model; nothing is guessed."""

from __future__ import annotations

from sweeper.classifier.classify import specs_between
from sweeper.models.llama import Llama
from sweeper.scaling.spec import Role


def llama(width: int, depth: int) -> Llama:
    return Llama(width=width, depth=depth, classes=50, seq_len=8, norm_gain=True)


def test_every_parameter_of_the_decoder() -> None:
    specs = {s.name: s for s in specs_between(llama, base=(32, 2), target=(64, 3))}
    assert specs.keys() == dict(llama(64, 3).named_parameters()).keys()
    down = specs["layers.2.ffn.down.weight"]
    assert (down.role, down.fan_in, down.fan_out) == (Role.HIDDEN, 176, 64)
    assert (down.base_fan_in, down.base_shape) == (88, (32, 88))
    assert (down.residual, down.depth, down.base_depth) == (True, 3, 2)
    embedding, head = specs["embedding.weight"], specs["head.weight"]
    assert (embedding.role, embedding.fan_in, embedding.fan_out) == (Role.EMBEDDING, 50, 64)
    assert (head.role, head.fan_in, head.fan_out) == (Role.READOUT, 64, 50)
    assert not embedding.residual and not head.residual
    gain = specs["layers.0.attention_norm.gain"]
    assert (gain.role, gain.init, gain.residual) == (Role.VECTOR, "ones", True)
    assert not specs["norm.gain"].residual


def test_at_base_undoes_the_target() -> None:
    small = {s.name: s for s in specs_between(llama, base=(32, 2), target=(32, 2))}
    assert all(spec == spec.at_base() for spec in small.values())
    for spec in specs_between(llama, base=(32, 2), target=(96, 2)):
        assert spec.at_base() == small[spec.name]
