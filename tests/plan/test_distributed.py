"""Two processes on gloo train as one does, from the same plan: DDP and FSDP2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.plan.worker import STEPS, trained
from tests.toy_models import Residual

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()),
        reason="needs torch.distributed, gloo",
    ),
]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rendezvous")
    common = {"WORLD_SIZE": "2", "RENDEZVOUS": str(folder / "store"), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.plan.worker"],
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


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_as_one(kind: str, together: dict[str, Any]) -> None:
    run, alone = together[kind], trained(lambda: Residual(16, 2))
    assert run["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert run["weights"] == pytest.approx(alone["weights"], rel=1e-4)
    assert len(set(alone["losses"])) == STEPS
    assert all(name.startswith("module.") for name in run["names"]) == (kind == "ddp")
