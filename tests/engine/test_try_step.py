"""A step before anything is written, here and in a worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweeper.engine.jobs import TryStep
from sweeper.engine.runner import Engine
from sweeper.errors import ConfigError
from sweeper.launch.executor import Machine
from sweeper.launch.local import Local
from tests.engine.tiny_trials import corpus, trial


def step(folder: Path) -> TryStep:
    return TryStep(trial=trial(), corpus=corpus(folder), device="cpu")


def test_a_worker_answers_as_this_process_does(tmp_path: Path) -> None:
    step(tmp_path).check()
    step(tmp_path).run_in_worker(Local(workers=1), Machine(threads=1))


def test_a_gpu_s_step_is_a_worker_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process would hold memory on a GPU that its workers train on."""
    asked: list[Machine] = []
    monkeypatch.setattr("sweeper.engine.runner.resolve_device", lambda name: "cuda")
    monkeypatch.setattr("sweeper.engine.runner.visible_gpus", lambda device: ("0", "1"))
    monkeypatch.setattr(
        TryStep, "run_in_worker", lambda s, launcher, machine: asked.append(machine)
    )
    Engine(device="cuda").validate(trial(), corpus(tmp_path), Local())
    assert asked == [Machine(gpus=("0", "1"))]


def test_a_refusal_comes_back_from_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(self: Any, tasks: Any, layout: int) -> list[Any]:
        return answers

    monkeypatch.setattr("sweeper.launch.local.LocalExecutor.call", call)
    answers: list[Any] = [{"key": "model.width", "value": "7", "allowed": "an even number"}]
    with pytest.raises(ConfigError, match=r"model\.width='7' is refused: an even number"):
        step(tmp_path).run_in_worker(Local(workers=1), Machine())
    answers = [None]
    with pytest.raises(ConfigError, match="one step ended its process"):
        step(tmp_path).run_in_worker(Local(workers=1), Machine())
