"""A command on two nodes of a Slurm: one supervisor an allocation, torchrun once a node."""

from __future__ import annotations

import sys
from pathlib import Path

from sweeper.launch.slurm import Slurm
from sweeper.sweep.loop import Loop
from tests.command.commands import METRIC, trial
from tests.launch.cluster import Cluster

RANKS = """
import argparse, os, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
dist.init_process_group("gloo")
for step in range(2):
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"step {step}: loss {float(total) - step}", flush=True)
names = [None] * dist.get_world_size()
dist.all_gather_object(names, os.uname().nodename)
if dist.get_rank() == 0:
    print("hosts", sorted(names))
dist.destroy_process_group()
"""


def test_two_nodes_train_one_trial(cluster: Cluster, tmp_path: Path) -> None:
    from sweeper.command.runner import Command
    from sweeper.data.corpus import UserData
    from sweeper.trial import Result

    (tmp_path / "ranks.py").write_text(RANKS)
    settings = Command(
        command=(sys.executable, "ranks.py", "--lr={eta}"),
        metric=METRIC,
        cwd=str(tmp_path),
        launch="torchrun",
        # The names of this cluster's nodes are known to nobody.
        torchrun=("--local-addr=127.0.0.1",),
        nodes=2,
        gpus=0,
    )
    launcher = Slurm(gpus=0, cpus=1, time=10, warn=30, poll=0.3, retries=0)
    runner = settings.open(UserData(), launcher, tmp_path, lambda sentence: None)
    results: list[Result] = []
    loop = Loop(runner=runner, launcher=launcher, folder=tmp_path, record=results.extend)
    one = trial(settings, steps=2)
    loop.run(lambda: [] if results else [one])
    (result,) = results
    assert result.status == "complete", result.error
    assert result.curve == (3.0, 2.0)
    log = (tmp_path / "trials" / one.key / "log.txt").read_text()
    assert "hosts ['node1', 'node2']" in log
