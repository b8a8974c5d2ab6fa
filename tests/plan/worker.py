"""What one process of a distributed test does; run as `python -m tests.plan.worker`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.plan.helpers import batch, plain_plan
from tests.toy_models import Residual

STEPS = 3


def sharded() -> nn.Module:
    """FSDP2 over every layer and the whole, from the meta device."""
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


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = f"file://{os.environ['RENDEZVOUS']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    builds = {"fsdp": sharded, "ddp": replicated}
    runs = {kind: trained(build, rank, world) for kind, build in builds.items()}
    if rank == 0:
        print(json.dumps(runs))
    dist.barrier()  # gloo's threads let go of their tensors: else the exit aborts now and then
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
