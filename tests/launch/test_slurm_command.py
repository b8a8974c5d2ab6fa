"""A user's command as jobs of a Slurm: one supervisor an allocation, on two nodes srun."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sweeper.command.command_runner import Command
from sweeper.data.corpus import UserData
from sweeper.launch.slurm import Slurm
from sweeper.launch.slurm_jobs import prefix
from sweeper.launch.slurm_queue import queue
from sweeper.sweep.loop import Loop
from sweeper.trial import Result
from tests.command.commands import METRIC, trial
from tests.launch.cluster import slurm
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("cluster")

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


SAVES = """
import os, signal, sys, time
from pathlib import Path
saved, steps = Path(sys.argv[1]) / "ckpt.txt", int(sys.argv[2])
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
first = int(saved.read_text()) if saved.exists() else 0
leads = os.environ["SLURM_PROCID"] == "0"
for step in range(first, steps):
    time.sleep(0 if first else 0.05)
    if leads:
        print(f"step {step}: loss {3 - step / steps} from {first}", flush=True)
    if signals:
        if leads:
            saved.write_text(str(step + 1))
        sys.exit(75)
"""


def run(command: tuple[str, ...], folder: Path, steps: int, **more: Any) -> tuple[Result, Path]:
    """What comes of one trial as a job on two nodes, and its folder."""
    settings = Command(command=command, metric=METRIC, cwd=str(folder), nodes=2, gpus=0, **more)
    launcher = Slurm(gpus=0, cpus=1, time=10, warn=30, poll=0.3, retries=0)
    runner = settings.open(UserData(), launcher, folder, lambda sentence: None)
    results: list[Result] = []
    loop = Loop(runner=runner, launcher=launcher, folder=folder, record=results.extend)
    asked = trial(settings, steps=steps)
    loop.run(lambda: [] if results else [asked])
    (result,) = results
    assert result.status == "complete", result.error
    return result, folder / "trials" / asked.key


@pytest.mark.long  # in every run the next test has two nodes
def test_two_nodes_train_one_trial(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    command = (sys.executable, "ranks.py", "--lr={eta}")
    # The names of this cluster's nodes are known to nobody.
    torchrun: Any = {"launch": "torchrun", "torchrun": ("--local-addr=127.0.0.1",)}
    result, folder = run(command, tmp_path, 2, **torchrun)
    assert result.curve == (3.0, 2.0)
    assert "hosts ['node1', 'node2']" in (folder / "log.txt").read_text()


def test_a_command_saves_on_sigterm_before_its_time_is_up_and_goes_on(tmp_path: Path) -> None:
    """Slurm's own warning goes to every process: it must not end one that has no handler.

    A SIGTERM to srun would end the processes that it has started without a word.
    """
    (tmp_path / "saves.py").write_text(SAVES)
    srun = ("srun", "--overlap", "--mem=0", "--ntasks-per-node=1")
    command = (*srun, sys.executable, "saves.py", "{dir}", "{steps}", "--lr={eta}")

    def warn() -> None:
        until(lambda: "step 5:" in "".join(p.read_text() for p in tmp_path.glob("trials/*/log*")))
        (entry,) = [job for job in queue(prefix(tmp_path)) if job.active]
        slurm("scancel", "--signal=URG", entry.id)

    warning = threading.Thread(target=warn, daemon=True)
    warning.start()
    _, folder = run(command, tmp_path, 200, resume_if="ckpt.txt")
    warning.join()
    first = int((folder / "ckpt.txt").read_text())
    log = (folder / "log.txt").read_text()
    assert 5 < first < 200 and f"step {first}: loss {3 - first / 200} from {first}" in log
    assert len(queue(prefix(tmp_path))) == 1  # which was put back
