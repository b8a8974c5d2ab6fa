"""Throughput: tokens of the batch over its time, and the fraction of a known peak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.engine.prepare import prepare
from sweeper.engine.train import speeds
from sweeper.trial import Result
from tests.engine.tiny_trials import trial


def result(seconds: float, **changed: object) -> Result:
    made = Result(trial=trial(), status="complete", objective=1.0, seconds=seconds, steps=8)
    return replace(made, **changed)  # type: ignore[arg-type]


def test_a_batches_trials_share_its_time() -> None:
    (speed,) = speeds([result(0.5), result(0.5)])
    assert speed.tokens_per_second == pytest.approx(2 * 8 * 2 * 8 / 1.0)
    assert (speed.width, speed.trials, speed.utilisation) == (32, 2, None)
    assert str(speed) == "width 32, depth 2: 256 tokens/s on cpu"


def test_utilisation_is_of_the_devices_peak() -> None:
    (speed,) = speeds([result(2.0, device="NVIDIA H200", steps=4)])
    flops = prepare(trial().spec).flops()
    assert speed.utilisation == pytest.approx(flops / 2 / 2.0 / 989e12)
    assert "of its peak" in str(speed)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA RTX A1000", None),
    ],
)
def test_a_peak_is_known_by_whole_words(device: str, peak: float | None) -> None:
    (speed,) = speeds([result(2.0, device=device)])
    flops = prepare(trial().spec).flops()
    assert speed.utilisation == (None if peak is None else pytest.approx(flops / 2.0 / peak))


def test_what_failed_or_took_no_time_is_left_out() -> None:
    assert speeds([result(0.0), result(1.0, status="failed")]) == []
    by_device = speeds([result(1.0, device="cpu"), result(1.0, device="NVIDIA A100-SXM4-80GB")])
    assert [speed.device for speed in by_device] == ["NVIDIA A100-SXM4-80GB", "cpu"]
