"""The engine in worker processes: sizes measured, and what a GPU more takes."""

import math
from pathlib import Path

import pytest
import torch

from sweeper.engine.runner import Engine
from sweeper.launch.inline import Inline
from sweeper.launch.local import Local
from sweeper.launch.slurm import Slurm
from tests.engine.tiny_trials import corpus, trial

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


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
