"""A batch goes on from its checkpoint as if it had never stopped; a broken one is not used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.engine import checkpoint
from sweeper.engine.train import Execution
from sweeper.launch.job import Control, Leave
from tests.engine.runs import (
    StopTrials,
    diverging_trial,
    leave_at,
    same_result,
    train_trials,
    trials_of,
)
from tests.engine.tiny_trials import tree, trial
from tests.specs import spec_of

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


@pytest.mark.parametrize("step", [1, 7, 19])
def test_a_batch_goes_on_from_its_checkpoint_bit_for_bit(step: int, tmp_path: Path) -> None:
    trials = [
        trial(seed=i, eta=i / 2.0, train={"steps": 20, "precision": "float32"}) for i in (0, 1)
    ]
    whole = train_trials(trials, tmp_path)
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    with pytest.raises(Leave):
        train_trials(trials, tmp_path, execution=execution, control=leave_at(step))
    assert checkpoint.saved_batches(tmp_path / "checkpoints", trials) == [tuple(trials)]
    resumed = train_trials(trials, tmp_path, execution=execution)
    assert all(same_result(a, b) for a, b in zip(whole, resumed, strict=True))
    checkpoint.forget(tmp_path / "checkpoints", trials)
    assert not checkpoint.saved_batches(tmp_path / "checkpoints", trials)


@pytest.mark.parametrize(
    "name", ["first_order.SGD", "first_order.Lion", "first_order.Adafactor", "muon.Muon"]
)
def test_every_optimizer_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    made = tree("spectral", steps=10)
    rule = "inverse_fan_in" if name.endswith("SGD") else "matched"
    made["parameterization"] = made["parameterization"] | {"rule": rule}
    made["optimizer"] = {"_target_": f"sweeper.engine.optimizers.{name}"}
    trials = [replace(trial("spectral", seed=i), spec=spec_of(made)) for i in (0, 1)]
    whole = train_trials(trials, tmp_path)
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    with pytest.raises(Leave):
        train_trials(trials, tmp_path, execution=execution, control=leave_at(4))
    resumed = train_trials(trials, tmp_path, execution=execution)
    assert all(same_result(a, b) for a, b in zip(whole, resumed, strict=True))


@pytest.mark.parametrize("clip", [None, 3.0])
def test_a_checkpoint_holds_which_trials_have_stopped(clip: float | None, tmp_path: Path) -> None:
    settings = {"precision": "float32", "steps": 40, "clip": clip}
    trials = [
        diverging_trial(clip=clip),
        *(trial("standard", seed=i, train=settings) for i in range(3)),
    ]
    pruner = StopTrials(20, trials[2].key)
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    whole = train_trials(trials, tmp_path, pruner=pruner)
    with pytest.raises(Leave):
        train_trials(trials, tmp_path, execution=execution, control=leave_at(30), pruner=pruner)
    resumed = train_trials(trials, tmp_path, execution=execution, pruner=pruner)
    assert [r.status for r in resumed] == ["diverged", "complete", "pruned", "complete"]
    assert all(same_result(a, b) for a, b in zip(whole, resumed, strict=True))
    alone = [train_trials([each], tmp_path)[0].clipped for each in trials]
    if clip is not None:  # what a trial did is counted as its own, whatever is dropped beside it
        assert 0 < alone[1] < 1 and [resumed[1].clipped, resumed[3].clipped] == [alone[1], alone[3]]


@pytest.mark.parametrize("damage", ["truncated", "empty", "other trials", "other shapes"])
def test_a_damaged_checkpoint_is_reported_and_not_used(damage: str, tmp_path: Path) -> None:
    folder, notices = tmp_path / "checkpoints", list[str]()
    execution = Execution(checkpoints=folder)
    whole = train_trials([trial()], tmp_path)[0]
    other = trial(seed=1) if damage == "other trials" else trial()
    if damage == "other shapes":
        other = trial("umup", train={"steps": 9})
        other = replace(other, spec=replace(other.spec, width=16))
    with pytest.raises(Leave):
        train_trials([other], tmp_path, execution=execution, control=leave_at(4))
    path, expected_path = checkpoint.path_of(folder, [other]), checkpoint.path_of(folder, [trial()])
    if damage in ("truncated", "empty"):
        path.write_bytes(path.read_bytes()[: 5000 if damage == "truncated" else 0])
    path.rename(expected_path)
    reporter = Control(notify=notices.append)
    (result,) = train_trials([trial()], tmp_path, execution=execution, control=reporter)
    assert same_result(result, whole) and len(notices) == 1 and "begin anew" in notices[0]


def test_a_kill_while_saving_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    with pytest.raises(Leave):
        train_trials([trial()], tmp_path, execution=execution, control=leave_at(3))
    path = checkpoint.path_of(tmp_path / "checkpoints", [trial()])
    before = path.read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sweeper.engine.checkpoint.os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            train_trials([trial()], tmp_path, execution=execution, control=leave_at(3))
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1


@pytest.mark.parametrize("name", ["WithStatistics", "WithReplacedBuffers"])
def test_the_modules_state_is_in_the_checkpoint(name: str, tmp_path: Path) -> None:
    trials = trials_of(name)
    whole = train_trials(trials, tmp_path)
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    with pytest.raises(Leave):
        train_trials(trials, tmp_path, execution=execution, control=leave_at(5))
    resumed = train_trials(trials, tmp_path, execution=execution)
    assert all(same_result(a, b) for a, b in zip(whole, resumed, strict=True))
