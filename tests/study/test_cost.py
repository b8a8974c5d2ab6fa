"""What trials cost and how fast they were, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.decide.saving import saving
from sweeper.engine.prepare import prepare
from sweeper.files import read_json, write_json
from sweeper.plan.plan import own_plan
from sweeper.report.sentences import saving_text, times
from sweeper.stats.ladder import Size
from sweeper.study.cost import TrialSeconds, at_once, cost_table, spent
from sweeper.study.flops import flops_in, flops_of, keep_flops, speeds
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import Trials
from sweeper.trial import Log2Hps, PluginSpec, Result, Trial, TrialSpec
from tests.engine import tiny_trials
from tests.golden import Golden
from tests.report.test_progress_bar import clock, trials
from tests.specs import spec_of

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
    (speed,) = speeds([tiny(0.5), tiny(0.5)])
    assert (speed.tokens, speed.cost.seconds) == (2 * 8 * 2 * 8, pytest.approx(1.0))
    assert (speed.width, speed.cost.trials, speed.utilisation) == (32, 2, None)
    assert str(speed) == "width 32, depth 2: 256 tokens/s on cpu"


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
    (speed,) = speeds([tiny(2.0, device=device, steps=4)])
    flops = prepare(tiny_trials.trial().spec).flops() / 2
    assert speed.utilisation == (None if peak is None else pytest.approx(flops / 2.0 / peak))
    assert ("of its peak" in str(speed)) == (peak is not None)


def test_what_failed_or_took_no_time_is_left_out() -> None:
    assert speeds([tiny(0.0), tiny(1.0, status="failed")]) == []
    by_device = speeds([tiny(1.0, device="cpu"), tiny(1.0, device="NVIDIA A100-SXM4-80GB")])
    assert [speed.device for speed in by_device] == ["NVIDIA A100-SXM4-80GB", "cpu"]


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


# What tuning small saved.


PLAN = own_plan(Size(width=16, depth=2), Size(width=64, depth=2), {"eta": 2.0}, {})


def flops(spec: TrialSpec) -> float:
    return float(spec.width**2 * spec.train.steps)


def run(width: int, seconds: float, phase: str = "eta", **changes: object) -> Result:
    spec = replace(spec_of({"model": {"width": 16, "depth": 2}}), width=width)
    trial = Trial(spec=spec, log2_hps=Log2Hps({"eta": 0.0}), phase=phase)
    result = Result(
        trial=trial, status="complete", objective=3.0, seconds=seconds, steps=10, device="cpu"
    )
    return replace(result, **changes)  # type: ignore[arg-type]


def test_the_same_trials_at_the_target_are_counted_step_for_step() -> None:
    stopped = run(16, 1.0, steps=5)
    ladder = run(32, 8.0, phase="validate")
    cost = saving(Trials([run(16, 2.0), stopped, ladder], 0), PLAN, flops)
    assert cost is not None
    # One and a half runs of 16^2 x 10 and of 64^2 x 10; the ladder is one of 32^2 x 10.
    assert (cost.tuning.flops, cost.validation.flops) == (3840, 10240)
    assert cost.at_target.flops == 61440 and cost.factor == 16
    assert cost.factor_with_validation == pytest.approx(61440 / 14080)
    # The widest timed trial makes 10240 FLOPs in 8 seconds.
    assert cost.at_target.seconds == pytest.approx(48)
    sentence = (
        "16 times fewer FLOPs than the same tuning at width 64 would, and with the validation"
    )
    assert f"{sentence} 4.4 times" in saving_text(cost)
    assert (times(16.0), times(0.25)) == ("16 times fewer", "4 times more")


def test_a_law_s_longer_run_costs_more() -> None:
    law: Any = SimpleNamespace(target=SimpleNamespace(batch=1, steps=40))
    plan = replace(PLAN, law=law)
    cost = saving(Trials([run(16, 2.0)], 0), plan, flops)
    assert cost is not None and cost.at_target.flops == 64**2 * 40


def test_what_is_not_known_is_said(golden: Golden) -> None:
    # A command's FLOPs are those of the model beside it; one that scales by itself names none.
    engine = tiny_trials.trial().spec
    spec = replace(engine, runner={"name": "command"})
    assert flops_of(spec) == prepare(engine).flops() > 0
    assert math.isnan(flops_of(replace(spec, parameterization=PluginSpec(name="own"))))
    cost = saving(Trials([run(16, 2.0)], 0), PLAN, lambda _: math.nan)
    assert cost is not None
    golden.says(saving_text(cost))
    running = replace(cost, validation=replace(cost.validation, flops=math.nan))
    assert "nan" not in saving_text(running)
    table = cost_table("", ["what"], [(["tuning"], cost.tuning)], total=True)
    assert [cell.text for cell in next(table.page_rows())[0]][2:] == ["not known", "2 s"]


def test_without_a_target_nothing_is_said() -> None:
    assert saving(Trials([run(16, 2.0)], 0), None, flops) is None
    assert saving(Trials([], 0), PLAN, flops) is None


def test_flops_that_a_driver_counted_are_read_where_no_class_is_imported(tmp_path: Path) -> None:
    spec = tiny_trials.trial().spec
    gone = replace(spec, model=PluginSpec(name="gone.Net"))
    assert math.isnan(flops_in(tmp_path)(gone))
    write_json(StudyFolder(tmp_path).flops, {gone.digest: 5.0})
    keep_flops(tmp_path, [spec, replace(spec, model=PluginSpec(name="lost.Net"))])
    kept = read_json(StudyFolder(tmp_path).flops)
    assert kept == {gone.digest: 5.0, spec.digest: flops_of(spec)}
    assert flops_in(tmp_path)(gone) == 5.0
