import json
import math
from dataclasses import replace

import pytest

from sweeper.records import from_json, to_json
from sweeper.trial import (
    FORMAT,
    Axis,
    OtherFormat,
    PluginSpec,
    Result,
    TrainSettings,
    Trial,
    TrialSpec,
    log2,
    plain,
)
from tests.refusals import raises_config_error

SPEC = TrialSpec(
    runner={"name": "engine", "numerics": 1},
    parameterization=PluginSpec(name="umup", arguments={"scaled_embedding_lr": True}),
    model=PluginSpec(name="llama", arguments={"head_size": 8, "ffn_ratio": 2.75}),
    width=64,
    depth=2,
    base_width=32,
    base_depth=1,
    optimizer=PluginSpec(name="adamw", arguments={"betas": [0.9, 0.999]}),
    data={"digest": "x", "classes": 256},
    train=TrainSettings(steps=10, batch_size=4, seq_len=8),
)
TRIAL = Trial(spec=SPEC, log2_hps={"eta": 1.0, "alpha": 0.0}, seed=3, phase="random")


def test_plain_values_are_powers_of_two() -> None:
    assert plain({"eta": -3.0, "alpha": 0.5}) == {"eta": 0.125, "alpha": 2**0.5}
    assert log2({"eta": 0.125, "alpha": 4.0}) == {"eta": -3.0, "alpha": 2.0}
    assert plain({"eta": 5000.0}) == {"eta": math.inf}
    with pytest.raises(ValueError, match="domain"):
        log2({"eta": 0.0})


def test_result_survives_strict_json() -> None:
    result = Result(trial=TRIAL, status="failed", objective=1.0, seconds=2.5, steps=7, error="a\n")
    result = replace(result, finished_at=3.0, measurements=[{"rms": None, "é": [True, 1]}])
    for loss in (math.inf, math.nan, 1e-300):
        result = replace(result, objective=loss, heldout=loss, curve=(loss, 1.0))
        back = from_json(Result, json.loads(json.dumps(to_json(result), allow_nan=False)))
        assert repr(back) == repr(result)  # repr, for NaN is not equal to itself
        assert back.key == result.key


def test_result_with_another_trial_than_its_key_is_refused() -> None:
    record = to_json(Result(trial=TRIAL, status="complete", objective=1.0))
    record["trial"]["seed"] += 1
    with pytest.raises(ValueError, match="does not match"):
        from_json(Result, record)


def test_key_depends_on_all_that_determines_the_result_and_on_nothing_else() -> None:
    keys = {
        TRIAL.key,
        replace(TRIAL, seed=4).key,
        replace(TRIAL, log2_hps={"eta": 1.5, "alpha": 0.0}).key,
        replace(TRIAL, log2_hps={"eta": 1.0}).key,
        replace(TRIAL, spec=replace(SPEC, optimizer=PluginSpec(name="adamw"))).key,
        replace(TRIAL, spec=replace(SPEC, base_depth=2)).key,
        replace(TRIAL, measurement="coordinates").key,
    }
    assert len(keys) == 7
    assert replace(TRIAL, phase="line").key == TRIAL.key
    assert replace(TRIAL, phase="line") == TRIAL
    assert len(TRIAL.key) == 32 and set(TRIAL.key) <= set("0123456789abcdef")


def test_key_sees_through_spelling() -> None:
    data = dict(reversed(SPEC.data.items()))
    same = replace(TRIAL, log2_hps={"alpha": -0.0, "eta": 1 + 1e-12}, spec=replace(SPEC, data=data))
    assert same.key == TRIAL.key
    optimizer = PluginSpec(name="adamw", arguments={"betas": (0.9, 0.999)})
    assert replace(TRIAL, spec=replace(SPEC, optimizer=optimizer)).key == TRIAL.key


def test_a_record_holds_both_kinds_of_values_and_they_must_agree() -> None:
    record = to_json(Result(trial=TRIAL, status="complete", objective=1.0))
    assert record["trial"]["hps"] == {"eta": 2.0, "alpha": 1.0}
    assert record["trial"]["log2_hps"] == {"eta": 1.0, "alpha": 0.0}
    for hps in ({"eta": 2.0}, {"eta": 2.0, "alpha": 1.1}, {"eta": 2.0, "beta": 1.0}):
        record["trial"]["hps"] = hps
        with pytest.raises(ValueError, match="do not agree"):
            from_json(Result, record)


def test_what_is_not_measured_is_not_written() -> None:
    result = Result(trial=TRIAL, status="complete", objective=1.0)
    assert "measurements" not in to_json(result) and "measurement" not in to_json(result)["trial"]
    assert "fp8" not in to_json(SPEC)
    measured = to_json(
        replace(result, trial=replace(TRIAL, measurement="rms"), measurements=[{"rms": 1.5}])
    )
    assert measured["measurements"] == [{"rms": 1.5}] and measured["trial"]["measurement"] == "rms"


@pytest.mark.parametrize("written", [1, FORMAT - 1, FORMAT + 1])
def test_a_record_of_another_format_is_told_from_a_damaged_one(written: int) -> None:
    record = to_json(Result(trial=TRIAL, status="complete", objective=1.0))
    with pytest.raises(OtherFormat) as caught:
        from_json(Result, record | {"format": written})
    assert caught.value.format == written
    del record["format"]
    with pytest.raises(ValueError, match="no format"):
        from_json(Result, record)


def test_grid_reaches_both_ends_despite_rounding() -> None:
    assert Axis(low=-1, high=1).grid(0.5) == [-1, -0.5, 0, 0.5, 1]
    tenth = Axis(low=0, high=0.3).grid(0.1)
    assert len(tenth) == 4 and tenth[-1] == pytest.approx(0.3)
    assert Axis(low=2, high=2).grid(1) == [2]
    assert Axis(low=0, high=1).grid(0.4) == pytest.approx([0, 0.4, 0.8])


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"low": 1.0, "high": 0.0}, "low"),
        ({"low": math.nan, "high": 0.0}, "low"),
        ({"low": 0.0, "high": math.inf}, "high"),
        ({"low": 0.0, "high": 61.0}, "high"),
        ({"low": 0.0, "high": 1.0, "default": -100.0}, "default"),
    ],
)
def test_axis_refuses_what_cannot_be_searched(wrong: dict[str, float], key: str) -> None:
    with raises_config_error(key):
        Axis(**wrong)
