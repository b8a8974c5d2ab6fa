"""Two processes on gloo train as one does, from the same plan: DDP and FSDP2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import spawn
from torch.nn.parallel import DistributedDataParallel

from tests.plan.helpers import batch, plain_plan
from tests.toy_models import Residual

STEPS = 3

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()),
        reason="needs torch.distributed, gloo",
    ),
]


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = Residual(16, 2)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model.to_empty(device="cpu")


def replicated() -> nn.Module:
    """DDP; what it replicates is drawn once it is wrapped."""
    return DistributedDataParallel(Residual(16, 2))


def trained(build: Callable[[], nn.Module], rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Losses, sums of weights and names after training on this process's part of every batch."""
    planned = plain_plan()
    model = planned.init_(build())
    names = [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.AdamW(planned.param_groups(model))
    planned.check(optimizer, model)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = (part.chunk(world)[rank] for part in batch(step))
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if world > 1:
            dist.all_reduce(mean)
        losses.append(float(mean) / world)
    weights: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        weights[name.removeprefix("module.")] = float(whole.detach().abs().sum())
    return {"losses": losses, "weights": weights, "names": names}


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    builds = {"fsdp": sharded, "ddp": replicated}
    runs = {kind: trained(build, rank, 2) for kind, build in builds.items()}
    if rank == 0:
        (folder / "runs.json").write_text(json.dumps(runs))
    dist.barrier()  # gloo's threads let go of their tensors: else the exit aborts now and then
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rendezvous")
    spawn(work, (folder,), nprocs=2)
    return json.loads((folder / "runs.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_as_one(kind: str, together: dict[str, Any]) -> None:
    run, alone = together[kind], trained(lambda: Residual(16, 2))
    assert run["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert run["weights"] == pytest.approx(alone["weights"], rel=1e-4)
    assert len(set(alone["losses"])) == STEPS
    assert all(name.startswith("module.") for name in run["names"]) == (kind == "ddp")
