"""What trials cost and how fast they were, against numbers worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.engine.prepare import prepare
from sweeper.files import read_json, write_json
from sweeper.study.cost import TrialSeconds, at_once, cost_table, spent
from sweeper.study.flops import flops_in, flops_of, keep_flops, speeds
from sweeper.study.folder import StudyFolder
from sweeper.trial import PluginSpec, Result, Trial
from tests.engine import tiny_trials
from tests.report.test_progress_bar import clock, trials

__all__ = ["clock"]


def tiny(seconds: float, **changed: object) -> Result:
    """A tiny trial has 8 steps."""
    trial = tiny_trials.trial()
    made = Result(trial=trial, status="complete", objective=1.0, seconds=seconds, steps=8)
    return replace(made, **changed)  # type: ignore[arg-type]


def test_a_run_that_ended_early_counts_for_its_steps() -> None:
    # One that kept none counts as whole.
    runs = [tiny(900.0), tiny(900.0, steps=2), tiny(900.0, steps=0)]
    cost = spent(runs, lambda spec: 100.0)
    assert (cost.trials, cost.seconds) == (3, pytest.approx(2700.0))
    assert cost.flops == pytest.approx(225.0)


def test_trials_that_train_together_share_the_time() -> None:
    assert speeds([tiny(0.5), tiny(0.5)]) == ["width 32, depth 2: 256 tokens/s on cpu"]


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA RTX A1000", None),
    ],
)
def test_a_peak_is_known_by_whole_words(device: str, peak: float | None) -> None:
    (speed,) = speeds([tiny(2e-9, device=device, steps=4)])
    share = prepare(tiny_trials.trial().spec).flops() / 2 / 2e-9 / (peak or math.inf)
    assert speed.partition(" of its peak")[0].endswith(f", {share:.1%}") == (peak is not None)


def test_what_failed_or_took_no_time_is_left_out() -> None:
    assert speeds([tiny(0.0), tiny(1.0, status="failed")]) == []
    by_device = speeds([tiny(1.0, device="cpu"), tiny(1.0, device="NVIDIA T4")])
    assert [speed.rpartition(" on ")[2] for speed in by_device] == ["NVIDIA T4", "cpu"]


def took(trial: Trial, seconds: float, status: str = "complete") -> Result:
    return Result(trial=trial, status=status, objective=2.0, seconds=seconds)  # type: ignore[arg-type]


def learned(**by_width: float) -> TrialSeconds:
    """From a run of each width, of whose square its work is: w2=3.0 took 3 seconds."""
    results = [took(trials(1, width=int(key[1:]))[0], value) for key, value in by_width.items()]
    return TrialSeconds(lambda trial: float(trial.width**2), results)


def seconds_at(width: int, **by_width: float) -> float:
    return learned(**by_width).of(trials(1, width=width)[0])


def test_a_size_takes_the_median_of_its_runs() -> None:
    cost, batch = learned(w2=3.0), trials(4, width=2)
    assert math.isnan(learned().of(batch[0]))
    cost.add(took(batch[1], 4.0))
    cost.add(took(batch[2], 90.0))
    cost.add(took(batch[3], 0.1, "diverged"))
    assert cost.of(batch[3]) == 4.0


def test_another_size_goes_by_a_power_of_its_work() -> None:
    assert seconds_at(4, w2=3.0) == pytest.approx(6.0)
    assert seconds_at(8, w2=3.0, w4=3.0) == pytest.approx(3.0)
    assert seconds_at(8, w2=3.0, w4=24.0) == pytest.approx(96.0), "no faster than its work"
    assert seconds_at(4, w2=3.0, w8=12.0) == pytest.approx(6.0)


def test_how_many_ran_at_once_is_read_off_their_ends() -> None:
    batch = trials(5)
    pairs = zip(batch, (4.0, 4.0, 8.0, 8.0, 100.0), strict=True)
    ended = [replace(took(trial, 4.0), finished_at=at) for trial, at in pairs]
    assert at_once(ended) == pytest.approx(20 / 12)
    assert at_once([]) == at_once(ended[:1]) == 1.0


def test_what_is_not_known_is_said() -> None:
    # A command's FLOPs are those of the model beside it; one that scales by itself names none.
    engine = tiny_trials.trial().spec
    spec = replace(engine, runner={"name": "command"})
    assert flops_of(spec) == prepare(engine).flops() > 0
    assert math.isnan(flops_of(replace(spec, parameterization=PluginSpec(name="own"))))
    table = cost_table("", ["what"], [(["tuning"], spent([tiny(2.0)], lambda _: math.nan))])
    assert [cell.text for cell in next(table.page_rows())[0]][2:] == ["not known", "2 s"]


def test_flops_that_a_driver_counted_are_read_where_no_class_is_imported(tmp_path: Path) -> None:
    spec = tiny_trials.trial().spec
    gone = replace(spec, model=PluginSpec(name="gone.Net"))
    assert math.isnan(flops_in(tmp_path)(gone))
    write_json(StudyFolder(tmp_path).flops, {gone.digest: 5.0})
    keep_flops(tmp_path, [spec, replace(spec, model=PluginSpec(name="lost.Net"))])
    kept = read_json(StudyFolder(tmp_path).flops)
    assert kept == {gone.digest: 5.0, spec.digest: flops_of(spec)}
    assert flops_in(tmp_path)(gone) == 5.0
