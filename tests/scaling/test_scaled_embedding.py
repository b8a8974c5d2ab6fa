"""Kalra and Barkeshli's rule: of all learning rates the embedding's alone has a factor of width."""

from __future__ import annotations

import pytest

from sweeper.classifier.classify import specs_between
from sweeper.errors import ConfigError
from sweeper.models.llama import Llama
from sweeper.scaling.relative import ScaledEmbedding, Standard
from sweeper.scaling.spec import DepthRule, ParamSpec, Role, ScaledOp, Update
from sweeper.trial import PlainHps

ONES = PlainHps(dict.fromkeys(ScaledEmbedding.hyperparameters, 1.0))

HALF = PlainHps({**ONES, "eta": 0.5})


def build(width: int, depth: int) -> Llama:
    return Llama(width=width, depth=depth, classes=64, seq_len=16, norm_gain=True)


def specs(width: int = 64, base: int = 16) -> list[ParamSpec]:
    return specs_between(build, base=(base, 1), target=(width, 1))


def rates(parameterization: ScaledEmbedding, width: int = 64) -> dict[Role, float]:
    return {spec.role: parameterization.scale(spec, ONES).lr for spec in specs(width)}


def test_the_embedding_s_rate_is_times_the_width_as_printed() -> None:
    shared = dict.fromkeys((Role.HIDDEN, Role.READOUT, Role.VECTOR), 1.0)
    assert rates(ScaledEmbedding()) == {Role.EMBEDDING: 64.0, **shared}
    assert rates(ScaledEmbedding(factor="ratio")) == {Role.EMBEDDING: 4.0, **shared}


def test_over_the_width_the_shared_rate_falls_instead() -> None:
    shared = dict.fromkeys((Role.HIDDEN, Role.READOUT, Role.VECTOR), 0.25)
    over = ScaledEmbedding(shared="over_width")
    assert rates(over) == {Role.EMBEDDING: 16.0, **shared}


def test_with_the_ratio_it_is_standard_with_full_alignment_but_for_gains() -> None:
    ours, full = ScaledEmbedding(factor="ratio", shared="over_width"), Standard(alignment="full")
    for spec in specs():
        one, other = ours.scale(spec, ONES), full.scale(spec, ONES)
        assert (one.init_std, one.multiplier) == (other.init_std, other.multiplier)
        assert (one.lr == other.lr) is (spec.role is not Role.VECTOR), spec.name


def test_the_base_model_is_the_standard_one_with_the_ratio_alone() -> None:
    for spec in specs(16):
        standard = Standard().scale(spec, ONES)
        assert ScaledEmbedding(factor="ratio").scale(spec, ONES) == standard
        times = 16.0 if spec.role is Role.EMBEDDING else 1.0
        assert ScaledEmbedding().scale(spec, ONES).lr == times * standard.lr


def test_scaled_decay_leaves_the_factor_of_width_out() -> None:
    embedding = next(spec for spec in specs() if spec.role is Role.EMBEDDING)
    parameterization = ScaledEmbedding(factor="ratio", decay="scaled")
    assert parameterization.scale(embedding, HALF).weight_decay == 0.5
    coupled = ScaledEmbedding(factor="ratio", decay="coupled")
    assert coupled.scale(embedding, HALF).weight_decay == 2.0


def test_a_tied_table_gives_logits_over_the_growth() -> None:
    geometry = {"fan_in": 64, "base_fan_in": 16, "own": 1.0}
    op = ScaledOp(name="head", kind="tied_readout", geometry=geometry)
    assert ScaledEmbedding().scale_op(op, ONES) == {"output": 0.25}


@pytest.mark.parametrize("update", [one for one in Update if one is not Update.SIGN])
def test_other_updates_than_adam_s_are_refused(update: Update) -> None:
    with pytest.raises(ConfigError, match="its rule is AdamW's"):
        ScaledEmbedding().scale(specs()[0], ONES, update)


@pytest.mark.parametrize("depth", ["none", "depth_mup", "completep"])
def test_all_but_rates_is_the_standard_one_at_any_depth(depth: DepthRule) -> None:
    ours, standard = ScaledEmbedding(depth=depth), Standard(depth=depth)
    for spec in specs_between(build, base=(16, 1), target=(64, 4)):
        one, other = ours.scale(spec, ONES), standard.scale(spec, ONES)
        factor = 64 if spec.role is Role.EMBEDDING else 1
        assert one.lr == pytest.approx(factor * other.lr)
        assert (one.init_std, one.eps, one.weight_decay) == (other.init_std, other.eps, 1.0)
