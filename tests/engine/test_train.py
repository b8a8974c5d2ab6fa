"""The run of a batch: which trials stop and when, saving, clipping, schedules, and compiling."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sweeper.engine import checkpoint
from sweeper.engine.batched import PADDING, BatchedRun, BatchedTrials
from sweeper.engine.optimizers.optimizer import clip_gradients
from sweeper.engine.program import program_for
from sweeper.engine.train import Execution
from sweeper.launch.job import Control, Leave
from sweeper.trial import TrainSettings
from tests.engine.runs import (
    StopTrials,
    close_results,
    diverging_trial,
    leave_at,
    same_result,
    train_trials,
)
from tests.engine.tiny_trials import tokens, trial
from tests.golden import Golden

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


def test_pruned_trials_stop_and_change_nothing() -> None:
    trials = [trial(seed=i, train={"steps": 20}) for i in range(4)]
    pruner = StopTrials(12, trials[1].key, trials[3].key)
    results = train_trials(trials, pruner=pruner)
    assert [r.status for r in results] == ["complete", "pruned", "complete", "pruned"]
    assert [r.steps for r in results] == [20, 12, 20, 12]
    for index in (0, 2):
        assert close_results(results[index], train_trials([trials[index]])[0])
    pruned = results[1]
    assert len(pruned.curve) == 12 and math.isnan(pruned.heldout)
    assert pruned.objective == pytest.approx(pruner.losses[pruned.key])
    assert pruned.objective == pytest.approx(sum(pruned.curve[-2:]) / 2, abs=1e-4)


def test_a_diverged_trial_leaves_the_batch_and_the_last_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes, step = list[int](), BatchedRun.step

    def counted(run: BatchedRun) -> Tensor:
        sizes.append(len(run.slots))
        return step(run)

    monkeypatch.setattr(BatchedRun, "step", counted)
    calm = trial("standard", train={"precision": "float32", "steps": 40})
    results = train_trials([diverging_trial(), calm])
    assert results[0].status == "diverged" and results[0].steps < 10
    assert sizes[0] == 2 and sizes[-1] == 1 and results[1].status == "complete"
    assert results[1].objective == pytest.approx(train_trials([calm])[0].objective, rel=1e-5)
    sizes.clear()
    [result] = train_trials([diverging_trial(steps=400)])
    assert result.status == "diverged" and result.steps <= len(sizes) < 400


def test_a_batch_saves_itself_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    monkeypatch.setattr(checkpoint, "save", lambda run, *_: saved.append(run.step_index))
    execution = Execution(checkpoints=tmp_path / "checkpoints", save_every=1e-9)
    train_trials([trial()], execution=execution)
    assert saved == list(range(1, 9))


def test_a_full_disk_costs_the_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    notices: list[str] = []
    monkeypatch.setattr(checkpoint, "save", full)
    execution = Execution(checkpoints=tmp_path / "checkpoints", save_every=1e-9)
    (result,) = train_trials([trial()], execution=execution, control=Control(notify=notices.append))
    assert result.status == "complete"
    golden.says(notices[0])


@pytest.mark.parametrize("max_norm", [1.0, 1e9])
def test_clipping_equals_that_of_torch_for_each_trial(max_norm: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4, 5), (3, 7), (3, 2, 2, 2)]
    grads = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    grads[0][1] *= 100
    expected = [grad.clone() for grad in grads]
    for index in range(3):
        leaves = [torch.nn.Parameter(torch.zeros_like(grad[0])) for grad in expected]
        for leaf, grad in zip(leaves, expected, strict=True):
            leaf.grad = grad[index]
        torch.nn.utils.clip_grad_norm_(leaves, max_norm)
    clip_gradients(grads, max_norm)
    for grad, clipped in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, clipped, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("clip", "share"), [(1e-6, 1.0), (1e6, 0.0), (None, None)])
def test_a_result_says_in_which_share_of_its_steps_the_clip_was_active(
    clip: float | None, share: float | None
) -> None:
    trials = [trial("mup", seed=seed, train={"clip": clip}) for seed in range(2)]
    assert [result.clipped for result in train_trials(trials)] == [share, share]


def test_a_trials_schedule_is_the_settings_times_its_factors() -> None:
    settings = TrainSettings(steps=100, batch_size=1, seq_len=1, warmup=0.1, final_lr=0.2)
    made = settings.with_hps({"warmup": 2.0, "final_lr": 16.0, "eta": 1.0})
    assert (made.warmup, made.final_lr) == (0.2, 1.0)


def test_a_batch_is_filled_up_to_a_size_that_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    trials = [trial(seed=i, train={"steps": 13}) for i in range(4)]
    program_for(trials[0].spec, "cpu").compiled_sizes.clear()
    train_trials(trials, execution=Execution(compile="on"))
    run = BatchedRun(BatchedTrials(trials=tuple(trials[:3]), corpus=tokens()), compile="on")
    assert run.slots == [0, 1, 2, PADDING]
    pruner = StopTrials(5, trials[0].key)
    filled = train_trials(trials[:3], execution=Execution(compile="on"), pruner=pruner)
    assert [r.status for r in filled] == ["pruned", "complete", "complete"]
    for each, result in zip(trials[1:3], filled[1:], strict=True):
        assert close_results(result, train_trials([each])[0])
    assert program_for(trials[0].spec, "cpu").compiled_sizes == {4}


def test_a_divergence_is_dated_by_its_step_whenever_it_is_noticed(tmp_path: Path) -> None:
    settings = {"precision": "float32", "steps": 16}
    batch = [trial("standard", eta=60.0, train=settings), trial("standard", train=settings)]
    whole = train_trials(batch)
    execution = Execution(checkpoints=tmp_path / "checkpoints", save_every=1e-9)
    assert whole[0].status == "diverged" and math.isinf(whole[0].curve[-1])
    assert all(map(same_result, whole, train_trials(batch, execution=execution)))
    checkpoint.forget(tmp_path / "checkpoints", batch)
    with pytest.raises(Leave):
        train_trials(batch, execution=execution, control=leave_at(whole[0].steps + 1))
    assert all(map(same_result, whole, train_trials(batch, execution=execution)))


def test_a_batch_is_saved_before_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling hears nothing for a minute: whoever stops the run then need not wait for it."""
    long, saved = trial("standard", train={"steps": 60}), list[tuple[bool, bool]]()
    path = checkpoint.path_of(tmp_path / "checkpoints", [long])
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(BatchedRun, "compile", lambda run, *, pays: setattr(run, "compiled", True))
    control = Control(saved=lambda is_saved: saved.append((is_saved, path.exists())))
    execution = Execution(checkpoints=tmp_path / "checkpoints", compile="auto")
    whole = train_trials([long], execution=execution, control=control)
    assert saved == [(True, True), (False, True)]
    # What goes on from there ends as it did.
    assert same_result(train_trials([long], execution=execution)[0], whole[0])


def test_a_batch_that_goes_on_is_timed_where_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(BatchedRun, "compile", lambda run, *, pays: asked.append(run.step_index))
    execution = Execution(checkpoints=tmp_path / "checkpoints", compile="auto")
    long = trial("standard", train={"steps": 60})
    with pytest.raises(Leave):
        train_trials([long], execution=execution, control=leave_at(30))
    train_trials([long], execution=execution)
    assert asked == [12, 42]
