"""The engine in worker processes: sizes measured, and what a GPU more takes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from sweeper.engine import jobs
from sweeper.engine.runner import Engine
from sweeper.launch.inline import Inline
from sweeper.launch.local import Local
from sweeper.launch.pool import Pool
from sweeper.launch.slurm import Slurm
from tests.engine.tiny_trials import corpus, trial
from tests.launch.trial_sweep import TrialSweep

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


@pytest.mark.long
def test_a_batch_size_is_measured_once_a_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_MEASURED", {})
    asked: list[int] = []
    ask = Pool.ask
    monkeypatch.setattr(Pool, "ask", lambda *args: asked.append(1) or ask(*args))
    trials = [trial(seed=i) for i in range(4)]
    sweep = TrialSweep(trials=trials, corpus=corpus(tmp_path), folder=tmp_path)
    results = sweep.run(Local(workers=1))
    assert [result.status for result in results.values()] == ["complete"] * 4
    other = TrialSweep(trials=trials, corpus=corpus(tmp_path), folder=tmp_path / "other")
    loop = other.loop(Local(workers=1))
    assert sum(map(len, loop.runner.batches(trials, loop.executor))) == 4
    assert len(asked) == 1 and len(jobs._MEASURED) == 1


def test_a_gpu_more_takes_its_share_of_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.engine.runner.resolve_device", lambda name: "cuda")
    monkeypatch.setattr("sweeper.engine.runner.measure_here", lambda *_: (4, 1.0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    engine, trials, where = Engine(), [trial()], corpus(tmp_path)
    assert engine.estimate(trials, where, Local()) == (4, 0.25)
    assert engine.estimate(trials, where, Local(workers=2)) == (4, 0.5)
    assert engine.estimate(trials, where, Inline()) == (4, 1.0)
    assert engine.precision(Local()) == "bfloat16"
    assert engine.precision(Slurm(gpus=0)) == "float32"
    size, seconds = Engine(batched_trials=2).estimate(trials, where, Slurm(gpus=0))
    assert size == 2 and math.isnan(seconds)  # how long a node takes is not known
