"""Schedules against those of PyTorch and transformers, and what holds of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR
from transformers.optimization import get_wsd_schedule

from sweeper.records import from_json, to_json
from sweeper.schedule import SCHEDULES, Config
from sweeper.trial import PlainHps, TrainSettings
from tests.refusals import raises_config_error

NAMES = st.sampled_from([*SCHEDULES])
SHARES = st.floats(0, 1)


def settings(schedule: Config = "cosine", **more: Any) -> TrainSettings:
    return TrainSettings(
        steps=more.pop("steps", 100), batch_size=1, seq_len=1, schedule=schedule, **more
    )


def factors(train: TrainSettings) -> np.ndarray:
    return np.array(train.lr_factors(range(train.steps)))


def of_scheduler(make: Callable[[Any], Any], steps: int) -> np.ndarray:
    """The learning rates of a scheduler of others, whose optimizer has the peak 1."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


@pytest.mark.parametrize("warmup", [1, 10])
@pytest.mark.parametrize("final", [0.0, 0.5])
@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_it_is_that_of_pytorch(name: str, warmup: int, final: float) -> None:
    steps = 100
    after = {
        "constant": lambda o: ConstantLR(o, 1.0),
        "linear": lambda o: LinearLR(o, 1.0, final, total_iters=steps - 1 - warmup),
        "cosine": lambda o: CosineAnnealingLR(o, steps - 1 - warmup, eta_min=final),
    }[name]

    def both(o: Any) -> SequentialLR:
        rising = LinearLR(o, 1 / warmup, total_iters=max(1, warmup - 1))
        return SequentialLR(o, [rising, after(o)], milestones=[warmup])

    ours = factors(settings(name, warmup=warmup / steps, final_lr=final))
    np.testing.assert_allclose(ours, of_scheduler(both, steps), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", ["linear", "1-sqrt"])
@pytest.mark.parametrize("final", [0.0, 0.1])
def test_wsd_is_that_of_transformers(shape: str, final: float) -> None:
    train = settings(
        {"name": "wsd", "decay": 0.25, "shape": shape}, steps=200, warmup=0.0, final_lr=final
    )
    theirs = of_scheduler(
        lambda o: get_wsd_schedule(
            o, 0, 49, num_stable_steps=150, decay_type=shape, min_lr_ratio=final
        ),
        train.steps,
    )
    np.testing.assert_allclose(factors(train), theirs, rtol=0, atol=1e-12)
    assert train.decay_start == 150


def test_wsds_up_to_a_horizon_is_the_wsd_of_that_horizon_after_the_last() -> None:
    run = settings({"name": "wsds", "horizons": [0.25, 0.5], "decay": 0.2}, steps=400, warmup=0.05)
    values = factors(run)
    short = factors(settings({"name": "wsd", "decay": 0.2}, steps=100, warmup=0.2))
    np.testing.assert_array_equal(values[:100], short)
    middle = factors(settings({"name": "wsd", "decay": 0.2}, steps=200, warmup=0.1))
    np.testing.assert_array_equal(values[100:200], middle[100:])
    assert values[100] == values[200] == 1 and values[399] == pytest.approx(0.1)
    assert run.decay_start == 320


@given(NAMES, st.integers(2, 400), SHARES, SHARES)
def test_bounds_and_the_last_step(name: str, steps: int, warmup: float, final: float) -> None:
    train = settings(name, steps=steps, warmup=warmup, final_lr=final)
    values = factors(train)
    assert (values > -1e-12).all() and (values <= 1 + 1e-12).all()
    start = train.decay_start
    assert (values[train.span.warmup :] >= final - 1e-12).all()
    assert start == steps or train.span.warmup <= start
    if start < steps - 1:
        assert values[-1] == pytest.approx(final)
    # Up to its peak it rises; from where the last decay begins it falls.
    assert (np.diff(values[: train.span.warmup]) >= 0).all()
    assert (np.diff(values[start:]) <= 1e-12).all()


def test_a_schedule_is_written_once_in_full_and_the_default_not_at_all() -> None:
    assert "schedule" not in to_json(settings()) and settings({"name": "cosine"}) == settings()
    wsd = settings("wsd")
    assert wsd == settings({"name": "wsd", "decay": 0.2})
    assert to_json(wsd)["schedule"] == {"name": "wsd", "decay": 0.2, "shape": "linear"}
    assert from_json(TrainSettings, to_json(wsd)) == wsd
    assert len({wsd, settings({"name": "wsd", "decay": 0.2}), settings()}) == 2


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ("wsdd", "schedule"),
        (5, "schedule"),
        ({"decay": 0.1}, "schedule"),
        ({"name": "wsd", "decay": 0.0}, "schedule.decay"),
        ({"name": "wsd", "decay": 1.5}, "schedule.decay"),
        ({"name": "wsd", "shape": "square"}, "schedule.shape"),
        ({"name": "cosine", "decay": 0.1}, "schedule.decay"),
        ({"name": "wsds", "horizons": [0.5, 0.25]}, "schedule.horizons"),
    ],
)
def test_impossible_schedules(config: Any, key: str) -> None:
    with raises_config_error(key):
        settings(config)


def test_a_last_rate_of_its_own_is_a_share_of_every_peak() -> None:
    """nanoGPT's min_lr: what the cosine ends at does not follow the peak."""
    train = settings(min_lr=6e-5)
    for eta in (6e-4, 1e-3, 6e-5, 1e-6):
        last = train.with_hps(PlainHps({"eta": eta})).lr_factors([99])[0] * eta
        assert last == pytest.approx(min(eta, 6e-5))
    assert train.with_hps(PlainHps({})) == train


@pytest.mark.parametrize(("share", "steps", "window"), [(0.1, 100, 10), (0.1, 3, 1), (1, 7, 7)])
def test_window(share: float, steps: int, window: int) -> None:
    assert settings(objective_window=share, steps=steps).window() == window


BATCH = {"steps": 1, "batch_size": 1, "seq_len": 1}
WRONG = {"steps": 0, "batch_size": 0, "seq_len": -1, "warmup": 1.5, "final_lr": -0.1}
WRONG |= {"objective_window": 0.0, "heldout_batches": 0, "clip": 0.0}


@pytest.mark.parametrize(("key", "value"), [*WRONG.items(), ("clip", math.nan)])
def test_impossible_values_are_refused(key: str, value: float) -> None:
    with raises_config_error(key):
        TrainSettings(**{**BATCH, key: value})  # type: ignore[arg-type]


def inverse_root(step: int, warmup: int, power: float = 0.5) -> float:
    """A schedule of a user's own, which asks for some of what it may."""
    return float((1 + (step - warmup) / 10) ** -power)


def broken(step: int, steps: int) -> float:
    return float("nan") if step else 1 / (steps - 100)


def test_a_function_of_ones_own() -> None:
    train = settings({"_target_": f"{__name__}.inverse_root", "power": 1.0}, warmup=0.1)
    values = factors(train)
    assert values[9] == values[10] == 1 and values[20] == 0.5
    assert train.lr_factors([150]) == train.lr_factors([99])
    assert from_json(TrainSettings, to_json(train)) == train


@pytest.mark.parametrize(
    ("more", "steps", "key"),
    [
        ({}, 100, "schedule._target_"),
        ({}, 10, "schedule._target_"),
        ({"speed": 2}, 10, "schedule.speed"),
    ],
)
def test_a_function_that_gives_no_factor(more: dict[str, Any], steps: int, key: str) -> None:
    train = settings({"_target_": f"{__name__}.broken", **more}, steps=steps, warmup=0.0)
    with raises_config_error(key):
        factors(train)
