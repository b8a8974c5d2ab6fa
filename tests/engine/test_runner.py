"""The engine as a runner: batches by specification; what does not fit is halved, or fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sweeper.engine import jobs
from sweeper.engine.batched import BatchedTrials
from sweeper.engine.checkpoint import path_of
from sweeper.engine.runner import Engine
from sweeper.errors import SweeperError
from sweeper.launch.executor import Context
from sweeper.launch.inline import Inline
from sweeper.launch.job import Control
from sweeper.trial import Result, Trial
from tests.engine.runs import failing
from tests.engine.tiny_trials import tokens, trial
from tests.launch.trial_sweep import TrialSweep
from tests.refusals import raises_config_error

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


def stand_in(refuse: Callable[[BatchedTrials], None]) -> Callable[..., list[Result]]:
    """A `train` that takes no time."""

    def train(batched: BatchedTrials, execution: Any, control: Control, *_: Any) -> list[Result]:
        control.progress(0.5)
        refuse(batched)
        control.progress(1.0)
        return [Result(trial=t, status="complete", objective=1.0) for t in batched.trials]

    return train


def run(trials: list[Trial], folder: Path, **options: Any) -> tuple[list[Result], float]:
    """Results, and the trials' worth of work that was told."""
    sweep = TrialSweep(trials=trials, corpus=tokens(), folder=folder)
    return list(sweep.run(Inline(), **options).values()), sweep.work_done


def test_a_trial_that_cannot_be_trained_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(batched: BatchedTrials) -> None:
        if any(t.seed == 3 for t in batched.trials):
            raise RuntimeError("a bad kernel")

    monkeypatch.setattr(jobs, "train", stand_in(refuse))
    results, work = run([trial(seed=i) for i in range(5)], tmp_path, batched_trials=5)
    failed = [result for result in results if result.status == "failed"]
    assert [result.trial.seed for result in failed] == [3]
    reason, *places = failed[0].error.splitlines()
    assert reason == "RuntimeError: a bad kernel:" and math.isnan(failed[0].objective)
    assert f"{Path(__file__).name}:" in places[-1], "where the model raised it"
    assert len(results) == 5 and work == pytest.approx(5)


def test_a_batch_that_goes_on_in_parts_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [trial(seed=i) for i in range(2)]
    path = path_of(tmp_path / "checkpoints", trials)

    def refuse(batched: BatchedTrials) -> None:
        if len(batched.trials) > 1:
            path.parent.mkdir(exist_ok=True)
            path.touch()
            raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(jobs, "train", stand_in(refuse))
    assert len(run(trials, tmp_path, batched_trials=2)[0]) == 2 and not path.exists()


def test_an_error_of_the_configuration_is_not_a_failed_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "train", failing(SweeperError("the model cannot apply these scales")))
    with pytest.raises(SweeperError):
        run([trial()], tmp_path, batched_trials=1)


@pytest.mark.parametrize(
    ("key", "value"), [("batched_trials", 0), ("batched_trials", -1), ("save_every", 0.0)]
)
def test_impossible_settings_are_refused(key: str, value: Any) -> None:
    with raises_config_error(key):
        Engine(**{key: value})


@pytest.mark.parametrize("device", ["cuda:99", "meta", "nowhere"])
def test_a_device_that_cannot_train_is_refused(device: str) -> None:
    with raises_config_error("device"):
        Engine(device=device).precision(Inline())
    assert Engine(device="cpu").precision(Inline()) == "float32"


def test_batches_that_were_begun_wait_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling serves them too, and taking one up leaves as many of the others waiting.

    Of a search that has asked for a part of its trials, those to come wait as well; of sizes that
    what is compiled does not fit, none.
    """
    trials = [trial(seed=i) for i in range(6)]
    begun = [tuple(trials[:2])]
    monkeypatch.setattr("sweeper.engine.runner.checkpoint.saved_batches", lambda *_: list(begun))
    runner = Engine(device="cpu", batched_trials=2).open(tokens(), Inline(), tmp_path)
    executor = Inline().executor(Context(folder=tmp_path, machine=runner.machine()))
    batches = runner.batches(trials, executor)
    waiting = [runner.job(batch, None).task.execution.pending for batch in batches]
    assert waiting == [2.0, 1.0, 0.0]
    runner.sizes.planned = 16
    waiting = [runner.job(tuple(trials[:n]), None).task.execution.pending for n in (5, 1, 2)]
    assert waiting == [5 * 1 / 11, 4 * 1 / 12, 2 * 5 / 14]
