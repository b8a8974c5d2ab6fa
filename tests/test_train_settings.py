"""The schedule and the objective's stretch."""

from __future__ import annotations

import math

import pytest

from sweeper.errors import ConfigError
from sweeper.trial import PlainHps, TrainSettings


def made(**more: float) -> TrainSettings:
    return TrainSettings(**({"steps": 100, "batch_size": 2, "seq_len": 4} | more))  # type: ignore[arg-type]


def test_a_last_rate_of_its_own_is_a_share_of_every_peak() -> None:
    """nanoGPT's min_lr: what the cosine ends at does not follow the peak."""
    settings = made(min_lr=6e-5)
    for eta in (6e-4, 1e-3, 6e-5, 1e-6):
        last = settings.with_hps(PlainHps({"eta": eta})).lr_factors([99])[0] * eta
        assert last == pytest.approx(min(eta, 6e-5))
    assert settings.with_hps(PlainHps({})) == settings


@pytest.mark.parametrize(("share", "steps", "window"), [(0.1, 100, 10), (0.1, 3, 1), (1, 7, 7)])
def test_window(share: float, steps: int, window: int) -> None:
    assert made(objective_window=share, steps=steps).window() == window


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", 0),
        ("batch_size", 0),
        ("seq_len", -1),
        ("warmup", 1.5),
        ("final_lr", -0.1),
        ("objective_window", 0.0),
        ("heldout_batches", 0),
        ("clip", 0.0),
        ("clip", -1.0),
        ("clip", math.nan),
    ],
)
def test_impossible_values_are_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**{key: value})
    assert caught.value.key == key
