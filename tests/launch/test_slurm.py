"""What a real Slurm alone can show; a run, an array and a cancellation are in test_conformance."""

import signal
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import ConfigError, SweeperError
from sweeper.launch.slurm import Slurm
from sweeper.launch.slurm_jobs import prefix
from sweeper.launch.slurm_queue import queue
from tests.engine.tiny_trials import trial
from tests.launch.cluster import SMALL, ClusterSweep, Driver, in_a_process
from tests.launch.counting import CountSweep, counted, expected
from tests.launch.trial_sweep import without_times

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
