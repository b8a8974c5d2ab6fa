import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import BadInput, ConfigError, SweeperError, suggest
from sweeper.trial import Axis, Result, Trial, defaults, digest, encode

SETUP = {"model": {"width": 64, "depth": 2}, "optimizer": {"betas": [0.9, 0.999]}}
TRIAL = Trial(setup=SETUP, hps={"eta": 1.0, "alpha": 0.0}, seed=3, phase="random")

finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers() | finite | st.text()
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
trials = st.builds(
    Trial,
    setup=st.dictionaries(st.text(), json_values, max_size=4),
    hps=st.dictionaries(st.text(), st.floats(-60, 60), max_size=4),
    seed=st.integers(0, 2**31),
    phase=st.text(),
)
results = st.builds(
    Result,
    trial=trials,
    status=st.sampled_from(["complete", "diverged", "failed"]),
    objective=st.floats(),
    heldout=st.floats(),
    curve=st.lists(st.floats(), max_size=5).map(tuple),
    seconds=st.floats(),
    steps=st.integers(0),
    finished_at=st.floats(),
    error=st.text(),
)


@given(results)
def test_result_survives_strict_json(result: Result) -> None:
    text = json.dumps(result.to_json(), allow_nan=False)
    back = Result.from_json(json.loads(text))
    assert repr(back) == repr(result)  # repr, for NaN is not equal to itself
    assert back.key == result.key


@given(results, st.integers(0, 10))
def test_result_with_another_trial_than_its_key_is_refused(result: Result, seed: int) -> None:
    record = result.to_json()
    record["trial"]["seed"] = result.trial.seed + 1 + seed
    with pytest.raises(ValueError, match="does not match"):
        Result.from_json(record)


@pytest.mark.parametrize("gone", ["key", "trial", "objective", "curve", "status"])
def test_result_record_with_a_part_missing_is_refused(gone: str) -> None:
    record = Result(trial=TRIAL, status="complete", objective=1.0).to_json()
    del record[gone]
    with pytest.raises((ValueError, KeyError, TypeError)):
        Result.from_json(record)


def test_key_depends_on_all_that_determines_the_result_and_on_nothing_else() -> None:
    keys = {
        TRIAL.key,
        replace(TRIAL, seed=4).key,
        replace(TRIAL, hps={"eta": 1.5, "alpha": 0.0}).key,
        replace(TRIAL, hps={"eta": 1.0}).key,
        replace(TRIAL, setup=SETUP | {"optimizer": {}}).key,
    }
    assert len(keys) == 5
    assert replace(TRIAL, phase="line").key == TRIAL.key
    assert replace(TRIAL, phase="line") == TRIAL
    assert len(TRIAL.key) == 32 and set(TRIAL.key) <= set("0123456789abcdef")


def test_key_sees_through_spelling() -> None:
    same = replace(
        TRIAL, hps={"alpha": -0.0, "eta": 1 + 1e-12}, setup=dict(reversed(SETUP.items()))
    )
    assert same.key == TRIAL.key
    tuples = replace(TRIAL, setup=SETUP | {"optimizer": {"betas": (0.9, 0.999)}})
    assert tuples.key == TRIAL.key


def test_key_never_changes_between_versions() -> None:
    """A new spelling of the key would run every trial of every study again."""
    assert TRIAL.key == "3313479f5bec7630a3df0286053c343f"


def test_trial_shows_its_size_and_its_values() -> None:
    assert (TRIAL.width, TRIAL.depth) == (64, 2)
    assert TRIAL.values() == {"eta": 2.0, "alpha": 1.0}


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
    with pytest.raises(ConfigError) as caught:
        Axis(**wrong)
    assert caught.value.key == key


def test_defaults_of_a_space() -> None:
    assert defaults({"a": Axis(low=0, high=2, default=1), "b": Axis(low=-1, high=1)}) == {
        "a": 1.0,
        "b": 0.0,
    }


def test_encode_reaches_everywhere() -> None:
    value = {"a": (math.inf, [-math.inf, {"b": math.nan}]), "c": 1, "d": "x", "e": None}
    assert encode(value) == {"a": ["inf", ["-inf", {"b": "nan"}]], "c": 1, "d": "x", "e": None}


@given(st.dictionaries(st.text(), scalars))
def test_digest_ignores_the_order(value: dict[str, object]) -> None:
    assert digest(value) == digest(dict(reversed(value.items())))


def test_config_error_says_key_value_and_what_is_allowed() -> None:
    error = ConfigError("width", 3, "an even number").below("model").below("")
    assert str(error) == "model.width=3 is refused: an even number"
    assert isinstance(error, BadInput) and isinstance(error, SweeperError)


def test_suggest_names_near_misses_or_else_everything() -> None:
    assert suggest("widht", ["width", "depth"]) == "did you mean width?"
    assert suggest("zzz", ["width", "depth"]) == "known: depth, width"
    assert suggest("zzz", []) == "nothing is allowed here"
