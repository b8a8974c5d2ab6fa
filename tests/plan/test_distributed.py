"""Two processes on gloo train as one does, from the same plan: DDP and FSDP2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.plan.helpers import batch, plain_plan
from tests.plan.worker import STEPS
from tests.toy_models import Residual

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()),
        reason="needs torch.distributed, gloo",
    ),
]


def kinds() -> list[str]:
    """What this torch can wrap a model in."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        return ["ddp"]
    return ["ddp", "fsdp"]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the first of two processes printed, by kind."""
    folder = tmp_path_factory.mktemp("rendezvous")
    common = {"WORLD_SIZE": "2", "RENDEZVOUS": str(folder / "store"), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.plan.worker", *kinds()],
            cwd=ROOT,
            env=os.environ | common | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return json.loads(outputs[0][0].splitlines()[-1])  # type: ignore[no-any-return]


def alone() -> tuple[list[float], dict[str, float]]:
    """Losses and sums of weights of one process on whole batches."""
    planned = plain_plan()
    model = planned.init_(Residual(16, 2))
    optimizer = torch.optim.AdamW(planned.param_groups(model))
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batch(step))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {n: float(p.detach().abs().sum()) for n, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_as_one(kind: str, together: dict[str, Any]) -> None:
    if kind not in together:
        pytest.skip("this torch has no fully_shard")
    run, (losses, weights) = together[kind], alone()
    assert run["losses"] == pytest.approx(losses, rel=1e-5)
    assert run["weights"] == pytest.approx(weights, rel=1e-4)
    assert len(set(losses)) == STEPS
    assert all(name.startswith("module.") for name in run["names"]) == (kind == "ddp")
