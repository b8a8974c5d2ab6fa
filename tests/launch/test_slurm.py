"""What a real Slurm alone can show; a run, an array and a cancellation are in test_conformance."""

import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sweeper.command.command_runner import Command
from sweeper.data.corpus import UserData
from sweeper.errors import ConfigError, SweeperError
from sweeper.launch.slurm import Slurm
from sweeper.launch.slurm_jobs import prefix
from sweeper.launch.slurm_queue import queue
from sweeper.sweep.loop import Loop
from sweeper.trial import Result
from tests.command.commands import METRIC
from tests.command.commands import trial as trial_of_command
from tests.engine.tiny_trials import trial
from tests.launch.cluster import SMALL, ClusterSweep, Driver, in_a_process, slurm
from tests.launch.counting import CountSweep, counted, expected
from tests.launch.trial_sweep import without_times
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"memory": "9000G"}, "launcher"),
        ({"time": 10**4}, "launcher.time"),
    ],
)
def test_what_the_cluster_would_never_run_is_refused_at_once(
    options: dict[str, Any], key: str, tmp_path: Path
) -> None:
    sweep = CountSweep(trials=[counted()], folder=tmp_path)
    with pytest.raises(ConfigError) as caught:
        sweep.run(Slurm(**{**SMALL, **options}))
    assert caught.value.key.startswith(key), str(caught.value)
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.faults  # in every run the queue of test_slurm_executor.py tells of one
def test_a_node_without_python(tmp_path: Path) -> None:
    """The log is found, in a folder that a shell would take apart."""
    folder = tmp_path / "a folder's $HOME; name"
    folder.mkdir()
    sweep = ClusterSweep(folder, [trial()])
    with pytest.raises(SweeperError, match="the interpreter or a program is missing") as raised:
        Driver(sweep, batched_trials=1, python=("/no/such/python",)).join()
    error = str(raised.value)
    assert "FAILED" in error and "/no/such/python" in error and "the log is" in error


KILLED = """
import os, sys
from pathlib import Path
from submitit.core.utils import JobPaths
from sweeper.launch.slurm import Slurm
from tests.launch.cluster import SMALL
from tests.launch.counting import CountSweep, counted
move = JobPaths.move_temporary_file
JobPaths.move_temporary_file = lambda self, path, name, *_, **__: (
    os.kill(os.getpid(), 9) if name == "submitted_pickle" else move(self, path, name))
trials = [counted(seed=seed) for seed in range(2)]
CountSweep(trials=trials, folder=Path(sys.argv[1])).run(Slurm(**SMALL), batched_trials=1)
"""


def test_a_driver_killed_right_after_sbatch_submits_nothing_twice(tmp_path: Path) -> None:
    assert in_a_process(KILLED, str(tmp_path)).wait() == -signal.SIGKILL
    trials = [counted(seed=seed) for seed in range(2)]
    sweep = CountSweep(trials=trials, folder=tmp_path)
    before = {entry.id for entry in queue(prefix(tmp_path))}
    assert len(before) == 2
    results = sweep.run(Slurm(**SMALL), batched_trials=1)
    assert without_times(results) == expected(trials, tmp_path) and not sweep.notices
    assert {entry.id for entry in queue(prefix(tmp_path))} == before


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
    settings = Command(command=command, metric=METRIC, cwd=str(folder), nodes=2, gpus=0, **more)
    launcher = Slurm(gpus=0, cpus=1, time=10, warn=30, poll=0.3, retries=0)
    runner = settings.open(UserData(), launcher, folder, lambda sentence: None)
    results: list[Result] = []
    loop = Loop(runner=runner, launcher=launcher, folder=folder, record=results.extend)
    asked = trial_of_command(settings, steps=steps)
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
