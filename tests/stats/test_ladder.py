import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    result = rule.ladders(BASE)
    values = {"width": [32, 64, 256], "depth": [2, 4, 8]}
    values |= {"batch_size": [4, 16, 64], "steps": [1000, 4000]}
    assert {
        axis: [getattr(size, axis) for size in sizes] for axis, sizes in result.items()
    } == values
    for axis, sizes in result.items():
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
    result = rule.ladders(base)
    assert [size.experts for size in result["experts"]] == [4, 8, 16]
    assert [size.top_k for size in result["top_k"]] == [1, 2]
    assert [size.granularity for size in result["granularity"]] == [1, 2, 4]
    assert result["experts"][0].model_overrides() == {"experts": 4, "top_k": 2, "granularity": 1}
    assert (
        str(result["top_k"][0].model_size) == "width 64, depth 4, experts 8, top k 1, granularity 1"
    )
    joint = result["size"][1]
    assert label_size(to_json(joint), "size") == "w128 d4 b16 s1000 e16 t2 g1"
    assert to_json(joint) == asdict(joint)


def test_a_model_without_experts_has_no_such_ladder() -> None:
    assert LadderSize.of(BASE, {"experts": "many"}, {"batch_size": 16, "steps": 1000}) == BASE
    assert BASE.model_overrides() == {} and not {"experts", "top_k"} & {*to_json(BASE)}
    for rule, key in (
        (LadderRule(widths=(), granularities=(2,)), "transfer.granularities"),
        (LadderRule(widths=(), sizes=(SizeOverrides(top_k=1),)), "transfer.top_ks"),
    ):
        with raises_config_error(key):
            rule.ladders(BASE)


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


def test_sizes_in_words_and_as_overrides() -> None:
    size = Size(width=64, depth=4)
    assert str(size) == "width 64, depth 4" and size.train_overrides() == {}
    assert str(BASE) == "width 64, depth 4, batch size 16, 1000 steps"
    assert describe_size(BASE, "batch_size") == "batch size 16"
    assert BASE.train_overrides() == {"batch_size": 16, "steps": 1000}


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


def test_what_is_known_is_not_asked_again() -> None:
    measured = {(0.5, 0), (0.5, 1), (1.0, 1)}

    def value(point: Point) -> float | None:
        return 3.0 if (point.log2_hps["eta"], point.seed) in measured else None

    best = {"eta": 0.0}
    line = RULE.line(best, value)
    missing = [point for eta in line.missing for point in RULE.runs_at(best, eta)]
    assert sum(value(point) is None for point in missing) == 18 - 3
    assert line.losses == {0.5: 3.0}


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(("optimum", "end"), [(0.2, 2.0), (1.4, 2.5), (2.4, 3.5), (50.0, 4.0)])
def test_a_curve_grows_until_two_points_lie_beyond_its_lowest_and_no_further_than_allowed(
    side: int, optimum: float, end: float
) -> None:
    """It is not refined: points lie half an octave apart."""
    etas = sorted(side * eta for eta in Valley(optimum=side * optimum).curve().losses)
    assert etas == [-2 + i / 2 for i in range(round(2 * (end + 2)) + 1)]


@pytest.mark.parametrize(
    ("valley", "rule", "end"),
    [
        # Not past a point that diverged; a small or a coarse grid at its ends alone.
        (Valley(optimum=1.5, edge=0.3), RULE, 2.0),
        (Valley(optimum=1.9, edge=0.3), RULE, 2.5),
        (Valley(optimum=1.1), replace(RULE, step=1.0), 2.0),
        (Valley(optimum=0.1), replace(RULE, span=0.5), 0.5),
        (Valley(optimum=0.4), replace(RULE, span=0.5), 1.0),
    ],
)
def test_how_far_a_curve_goes(valley: Valley, rule: LadderRule, end: float) -> None:
    etas = valley.curve(rule=rule).losses
    assert max(etas) == end and min(etas) == -rule.span


def test_one_diverged_seed_makes_a_point_infinite() -> None:
    def value(point: Point) -> float:
        return math.inf if point.log2_hps["eta"] == 0 and point.seed else 3.0

    assert RULE.line({"eta": 0.0}, value).losses[0.0] == math.inf


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        *(({key: 0}, key) for key in ("seeds", "span", "step", "max_shift")),
        *(({"span": value}, "span") for value in (math.nan, math.inf)),
        *(({"step": value}, "step") for value in (1e-6, 3.0)),
        *(({"eta": value}, "eta") for value in (61.0, math.nan)),
        *(({key: -0.1}, key) for key in ("extend", "max_loss_gap")),
        *(({key: (4, 0)}, f"{key}[1]") for key in ("widths", "depths", "batches", "steps")),
        ({"widths": ()}, "widths"),
        ({"steps": (100,), "tokens_per_parameter": 20.0}, "steps"),
        ({"sizes": (SizeOverrides(steps=9),), "tokens_per_parameter": 20.0}, "sizes"),
    ],
)
def test_what_cannot_be_trained_is_refused(wrong: dict[str, Any], key: str) -> None:
    with raises_config_error(key):
        LadderRule(**{"widths": (32,), **wrong})
