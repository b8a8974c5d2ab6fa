from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import ConfigError
from sweeper.records import to_json
from sweeper.stats.ladder import (
    LadderRule,
    LadderSize,
    Size,
    SizeOverrides,
    describe_size,
    label_size,
)
from sweeper.trial import Point
from tests.refusals import raises_config_error
from tests.stats.curves import Valley

BASE = LadderSize(width=64, depth=4, batch_size=16, steps=1000)
RULE = LadderRule(widths=(32, 64, 128))


def test_a_ladder_ascends_once_through_every_value_with_the_base_among_them() -> None:
    rule = LadderRule(widths=(256, 32, 256), depths=(8, 2), batches=(64, 4, 16), steps=(4000,))
    found = rule.ladders(BASE)
    values = {"width": [32, 64, 256], "depth": [2, 4, 8]}
    values |= {"batch_size": [4, 16, 64], "steps": [1000, 4000]}
    assert {
        axis: [getattr(size, axis) for size in sizes] for axis, sizes in found.items()
    } == values
    for axis, sizes in found.items():
        assert BASE in sizes
        assert {replace(size, **{axis: getattr(BASE, axis)}) for size in sizes} == {BASE}


def test_ladders_over_experts_change_the_model_alone() -> None:
    model = {"experts": 8, "top_k": 2, "granularity": 1, "ffn_ratio": 2.0}
    base = LadderSize.of(BASE, model, {"batch_size": 16, "steps": 1000})
    assert base == replace(BASE, experts=8, top_k=2, granularity=1)
    rule = LadderRule(
        widths=(), experts=(4, 16), top_ks=(1,), granularities=(2, 4),
        sizes=(SizeOverrides(width=128, experts=16),),
    )  # fmt: skip
    found = rule.ladders(base)
    assert [size.experts for size in found["experts"]] == [4, 8, 16]
    assert [size.top_k for size in found["top_k"]] == [1, 2]
    assert [size.granularity for size in found["granularity"]] == [1, 2, 4]
    assert found["experts"][0].model_overrides() == {"experts": 4, "top_k": 2, "granularity": 1}
    assert (
        str(found["top_k"][0].model_size) == "width 64, depth 4, experts 8, top k 1, granularity 1"
    )
    joint = found["size"][1]
    assert label_size(to_json(joint), "size") == "w128 d4 b16 s1000 e16 t2 g1"
    assert to_json(joint) == asdict(joint)


def test_a_model_without_experts_has_no_such_ladder() -> None:
    assert LadderSize.of(BASE, {"experts": "many"}, {"batch_size": 16, "steps": 1000}) == BASE
    assert BASE.model_overrides() == {} and not {"experts", "top_k"} & {*to_json(BASE)}
    for rule, key in (
        (LadderRule(widths=(), granularities=(2,)), "transfer.granularities"),
        (LadderRule(widths=(), sizes=(SizeOverrides(top_k=1),)), "transfer.top_ks"),
    ):
        with pytest.raises(ConfigError) as caught:
            rule.ladders(BASE)
        assert caught.value.key == key


def test_a_ladder_without_a_second_size_is_none() -> None:
    for depths in ((), (4,)):
        assert list(LadderRule(widths=(32,), depths=depths).ladders(BASE)) == ["width"]
    assert list(LadderRule(widths=(), batches=(8,)).ladders(BASE)) == ["batch_size"]
    assert LadderRule(widths=(64,), steps=(1000,)).ladders(BASE) == {}


def test_several_may_change_at_once() -> None:
    sizes = (
        SizeOverrides(width=128, depth=8, steps=4000),
        SizeOverrides(batch_size=64),
        SizeOverrides(width=64),
    )
    rule = LadderRule(widths=(), sizes=sizes)
    batched = replace(BASE, batch_size=64)
    large = LadderSize(width=128, depth=8, batch_size=16, steps=4000)
    assert rule.ladders(BASE) == {"size": [BASE, batched, large]}
    assert LadderRule(widths=(), sizes=(SizeOverrides(width=64),)).ladders(BASE) == {}
    assert label_size(asdict(large), "size") == "w128 d8 b16 s4000"
    assert label_size(asdict(large), "depth") == "8" and describe_size(large, "size") == str(large)
    with raises_config_error("steps", 0):
        SizeOverrides(steps=0)


def test_sizes_in_words() -> None:
    assert str(Size(width=64, depth=4)) == "width 64, depth 4"
    assert str(BASE) == "width 64, depth 4, batch size 16, 1000 steps"
    assert (
        describe_size(BASE, "batch_size") == "batch size 16"
        and describe_size(BASE, "width") == "width 64"
    )


def test_a_ladder_size_sets_the_training_and_a_size_leaves_it() -> None:
    assert BASE.train_overrides() == {"batch_size": 16, "steps": 1000}
    assert Size(width=64, depth=4).train_overrides() == {}


@given(
    span=st.floats(0.5, 4),
    step=st.sampled_from([0.1, 0.25, 0.3, 0.5]),
    centre=st.floats(-12, 12),
    seeds=st.integers(1, 3),
)
def test_a_curve_is_laid_evenly_about_the_transferred_eta(
    span: float, step: float, centre: float, seeds: int
) -> None:
    rule = LadderRule(widths=(32,), span=span, step=step, seeds=seeds)
    best = {"alpha": 2.0, "eta": centre}
    asked = rule.line(best, lambda point: None).missing
    points = [point for value in asked for point in rule.runs_at(best, value)]
    etas = sorted({point.log2_hps["eta"] for point in points})
    assert len(points) == rule.points_per_line() * seeds == len(etas) * seeds
    assert etas[len(etas) // 2] == pytest.approx(centre, abs=1e-9)
    assert etas[-1] - centre == pytest.approx(centre - etas[0], abs=1e-9)
    assert span - step < etas[-1] - centre + 1e-9 <= span + 1e-6
    assert {point.seed for point in points} == set(range(seeds))
    assert {(point.phase, point.log2_hps["alpha"]) for point in points} == {("validate", 2.0)}


def test_default_curve_is_nine_points_of_two_seeds() -> None:
    assert RULE.points_per_line() == 9 and RULE.seeds == 2
    assert LadderRule(widths=(32,), span=0.3, step=0.1).points_per_line() == 7


def test_what_is_known_is_not_asked_again() -> None:
    known = {(0.5, 0), (0.5, 1), (1.0, 1)}

    def value(point: Point) -> float | None:
        return 3.0 if (point.log2_hps["eta"], point.seed) in known else None

    best = {"eta": 0.0}
    line = RULE.line(best, value)
    missing = [point for eta in line.missing for point in RULE.runs_at(best, eta)]
    assert sum(value(point) is None for point in missing) == 18 - 3
    assert line.losses == {0.5: 3.0}


@pytest.mark.parametrize("side", [-1, 1])
def test_a_curve_grows_until_two_points_lie_beyond_its_lowest_and_no_further_than_allowed(
    side: int,
) -> None:
    near = Valley(optimum=side * 2.4).curve()
    assert sorted(near.losses)[:: -side or 1][0] == side * 3.5 and len(near.losses) == 12
    inner = Valley(optimum=side * 1.4).curve()
    assert sorted(inner.losses)[:: -side or 1][0] == side * 2.5 and len(inner.losses) == 10
    far = Valley(optimum=side * 50.0).curve()
    assert len(far.losses) == 9 + RULE.extend
    assert max(abs(eta) for eta in far.losses) == 4.0


def test_a_curve_does_not_grow_past_a_point_that_diverged() -> None:
    assert max(Valley(optimum=1.5, edge=0.3).curve().losses) == 2.0
    assert max(Valley(optimum=1.9, edge=0.3).curve().losses) == 2.5


def test_a_small_or_coarse_grid_grows_at_its_ends_alone() -> None:
    coarse = LadderRule(widths=(32,), step=1.0)
    assert max(Valley(optimum=1.1).curve(rule=coarse).losses) == 2.0
    small = LadderRule(widths=(32,), span=0.5)
    assert sorted(Valley(optimum=0.1).curve(rule=small).losses) == [-0.5, 0.0, 0.5]
    assert sorted(Valley(optimum=0.4).curve(rule=small).losses) == [-0.5, 0.0, 0.5, 1.0]


def test_a_curve_is_not_refined() -> None:
    assert len(Valley(optimum=0.2).curve().losses) == 9


def test_a_curve_that_diverged_everywhere_is_left_alone() -> None:
    curve = Valley(edge=-100.0).curve()
    assert len(curve.losses) == 9
    assert {loss for losses in curve.losses.values() for loss in losses} == {math.inf}


def test_one_diverged_seed_makes_a_point_infinite() -> None:
    def value(point: Point) -> float:
        return (
            math.inf
            if (point.log2_hps["eta"], point.seed) == (0.0, 1)
            else point.log2_hps["eta"] ** 2
        )

    assert RULE.line({"eta": 0.0}, value).losses[0.0] == math.inf


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"widths": ()}, "widths"),
        ({"widths": (0,)}, "widths[0]"),
        ({"depths": (4, 0)}, "depths[1]"),
        ({"batches": (0,)}, "batches[0]"),
        ({"steps": (-1,)}, "steps[0]"),
        ({"seeds": 0}, "seeds"),
        ({"span": 0.0}, "span"),
        ({"span": math.nan}, "span"),
        ({"span": math.inf}, "span"),
        ({"step": 0.0}, "step"),
        ({"step": 1e-6}, "step"),
        ({"step": 3.0}, "step"),
        ({"extend": -1}, "extend"),
        ({"max_shift": 0.0}, "max_shift"),
        ({"max_loss_gap": -0.1}, "max_loss_gap"),
        ({"eta": 61.0}, "eta"),
        ({"eta": math.nan}, "eta"),
    ],
)
def test_what_cannot_be_trained_is_refused(wrong: dict[str, float], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LadderRule(**{"widths": (32,), **wrong})  # type: ignore[arg-type]
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("named", "key"),
    [({"steps": (100,)}, "steps"), ({"sizes": (SizeOverrides(steps=9),)}, "sizes")],
)
def test_steps_are_not_named_twice(named: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LadderRule(widths=(32,), tokens_per_parameter=20.0, **named)
    assert caught.value.key == key
