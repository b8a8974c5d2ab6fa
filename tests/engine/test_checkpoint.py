"""A batch goes on from its checkpoint as if it had never stopped; a broken one is not used."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sweeper.engine import checkpoint
from sweeper.engine.train import Execution
from sweeper.launch.job import Control, Leave
from sweeper.trial import Result, Trial
from tests.engine.runs import (
    StopTrials,
    diverging_trial,
    leave_at,
    same_result,
    train_trials,
    trials_of,
)
from tests.engine.tiny_trials import trial

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


def resumed(trials: list[Trial], folder: Path, step: int, **options: Any) -> list[Result]:
    """Results of a batch that left at a step and went on: those of a whole run, bit for bit."""
    whole = train_trials(trials, **options)
    options |= {"execution": Execution(checkpoints=folder / "checkpoints")}
    with pytest.raises(Leave):
        train_trials(trials, control=leave_at(step), **options)
    assert checkpoint.saved_batches(folder / "checkpoints", trials) == [tuple(trials)]
    results = train_trials(trials, **options)
    assert all(same_result(a, b) for a, b in zip(whole, results, strict=True))
    return results


@pytest.mark.parametrize("name", ["WithStatistics", "WithReplacedBuffers"])
def test_the_modules_state_is_in_the_checkpoint(name: str, tmp_path: Path) -> None:
    resumed(trials_of(name), tmp_path, 5)


def test_a_checkpoint_holds_which_trials_have_stopped(tmp_path: Path) -> None:
    settings = {"precision": "float32", "steps": 40, "clip": 3.0}
    trials = [
        diverging_trial(clip=3.0),
        *(trial("standard", seed=i, train=settings) for i in range(3)),
    ]
    results = resumed(trials, tmp_path, 30, pruner=StopTrials(20, trials[2].key))
    assert [r.status for r in results] == ["diverged", "complete", "pruned", "complete"]
    # What a trial did is counted as its own, whatever is dropped beside it.
    alone = [train_trials([trials[i]])[0].clipped for i in (1, 3)]
    assert 0 < alone[0] < 1 and [results[1].clipped, results[3].clipped] == alone


def test_a_checkpoint_of_other_shapes_is_reported_and_not_used(tmp_path: Path) -> None:
    notices, execution = list[str](), Execution(checkpoints=tmp_path)
    other = trial("umup", train={"steps": 9})
    other = replace(other, spec=replace(other.spec, width=16))
    with pytest.raises(Leave):
        train_trials([other], execution=execution, control=leave_at(4))
    path, expected_path = (checkpoint.path_of(tmp_path, [each]) for each in (other, trial()))
    path.rename(expected_path)
    reporter = Control(notify=notices.append)
    (result,) = train_trials([trial()], execution=execution, control=reporter)
    assert same_result(result, train_trials([trial()])[0])
    assert len(notices) == 1 and "begin anew" in notices[0]


TWO = [trial(seed=seed, train={"steps": 5}) for seed in (0, 1)]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of two trials that were left at their step 3."""
    place = tmp_path_factory.mktemp("interrupted")
    execution = Execution(checkpoints=place / "checkpoints")
    with pytest.raises(Leave):
        train_trials(TWO, execution=execution, control=leave_at(3))
    return place


@pytest.fixture
def saved(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of that checkpoint, to be damaged."""
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    return checkpoint.path_of(tmp_path / "checkpoints", TWO)


uninterrupted = cache(lambda: train_trials(TWO))


def begins_anew(path: Path) -> str:
    """Notices of trials that are trained as if there were no checkpoint."""
    notices = list[str]()
    execution, control = Execution(checkpoints=path.parent), Control(notify=notices.append)
    results = train_trials(TWO, execution=execution, control=control)
    assert all(map(same_result, results, uninterrupted()))
    return " ".join(notices)


def test_a_kill_while_saving_leaves_the_old_checkpoint(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    before, execution = saved.read_bytes(), Execution(checkpoints=saved.parent)
    monkeypatch.setattr("sweeper.engine.checkpoint.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        train_trials(TWO, execution=execution, control=leave_at(1))
    assert saved.read_bytes() == before and len(list(saved.parent.iterdir())) == 1


HOSTILE: list[Any] = [{"slots": [0, 9]}, {"slots": [1, 1]}, {"slots": ["0", {}]}, {"steps": [1]}]
HOSTILE += [{"stopped": {"7": "complete"}}, {"step": 10**30}, {"clipped": [[1]]}, {"format": {}}]


@pytest.mark.parametrize("change", HOSTILE)
def test_a_hostile_header_changes_nothing(change: dict[str, Any], saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        header = json.loads(file.metadata()["sweeper"]) | change
        del header["sum"]  # as who changes it on purpose does
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, saved, metadata={"sweeper": json.dumps(header)})
    saved.chmod(0o600)
    assert "cannot be used" in begins_anew(saved)


@pytest.mark.parametrize("kind", ["pickle", "nested", "huge", "pipe", "link", "folder"])
def test_a_hostile_file_is_no_checkpoint(kind: str, saved: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    aside = saved.rename(tmp_path / "aside")
    if kind == "pickle":
        torch.save({"slots": Trap()}, saved)
    elif kind == "nested":
        deep = "[" * 100_000 + "]" * 100_000
        save_file({"a": torch.zeros(1)}, saved, metadata={"sweeper": deep})
    elif kind == "huge":
        saved.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    elif kind == "pipe":
        os.mkfifo(saved, 0o600)
    elif kind == "link":
        saved.symlink_to(aside)
    else:
        saved.mkdir()
    if kind not in ("link", "folder"):
        saved.chmod(0o600)
    assert "cannot be used" in begins_anew(saved)
    assert not (tmp_path / "sprung").exists()


def test_no_byte_of_it_changes_a_result(saved: Path) -> None:
    """Of weights, state, losses or the header: one bit, a block of another place, a lost end."""
    content, draw = saved.read_bytes(), Random(0)
    progress = checkpoint.RunProgress(losses=np.zeros((5, 2)), stopped={}, steps=[])
    for kind in range(90):
        at, to = draw.randrange(len(content)), draw.randrange(len(content))
        changed = bytearray(content)
        if kind % 3 == 0:
            changed[at] ^= 1 << draw.randrange(8)
        elif kind % 3 == 1:
            changed[at : at + 64] = content[to : to + 64]
        else:
            del changed[at:]
        saved.write_bytes(changed)
        # Refused before the run is asked what it holds.
        run: Any = SimpleNamespace(batched=SimpleNamespace(trials=TWO))
        with pytest.raises(ValueError, match="cannot be used"):
            checkpoint.load(run, progress, saved)


def test_only_what_is_ours_alone_is_gone_on_with(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600
    for mode in (0o660, 0o602):
        saved.chmod(mode)
        assert "not yours alone" in begins_anew(saved)
        assert checkpoint.saved_batches(saved.parent, TWO) == []
    saved.chmod(0o600)
    assert checkpoint.saved_batches(saved.parent, TWO) == [tuple(TWO)]
    if os.geteuid() == 0:  # two users
        os.chown(saved, 4242, 4242)
        assert "not yours alone" in begins_anew(saved)
