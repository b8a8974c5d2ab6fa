"""Batches as jobs of a real Slurm: what comes of them, and of what dies."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import ConfigError, SweeperError
from sweeper.launch.slurm import Slurm
from sweeper.launch.slurm_jobs import prefix
from sweeper.launch.slurm_queue import queue
from sweeper.trial import Trial
from tests.engine.tiny_trials import tree, trial
from tests.golden import Golden
from tests.launch.cluster import (
    SMALL,
    ClusterSweep,
    Driver,
    in_a_process,
)
from tests.launch.counting import CountSweep, counted, expected
from tests.launch.trial_sweep import without_times
from tests.specs import spec_of
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("cluster")
SLURM = {"SLURM_LOCAL_ARRAY": "2"}
"""No array of this cluster has more than two jobs."""
LONG = {"steps": 500, "batch_size": 1}


def of_model(target: str, seed: int = 0) -> Trial:
    made = tree()
    made["model"]["_target_"] = target
    return replace(trial(seed=seed), spec=spec_of(made))


def test_no_array_has_more_jobs_than_the_cluster_takes(tmp_path: Path) -> None:
    trials = [counted(seed=seed) for seed in range(3)]
    sweep = CountSweep(trials=trials, folder=tmp_path)
    results = sweep.run(Slurm(**SMALL), batched_trials=1)
    assert without_times(results) == expected(trials, tmp_path)
    assert sorted(Counter(job.array for job in queue(prefix(tmp_path))).values()) == [1, 2]
    assert not [*tmp_path.glob("jobs/*"), *tmp_path.glob("slurm/*/*"), *tmp_path.glob("*/*.pkl")]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"partition": "mian"}, "launcher.partition"),
        ({"cpus": 64}, "launcher"),
        ({"memory": "9000G"}, "launcher"),
        ({"time": 10**4}, "launcher.time"),
        ({"constraint": "a100"}, "launcher"),
        ({"gpus": 1}, "launcher"),
    ],
)
def test_what_the_cluster_would_never_run_is_refused_at_once(
    options: dict[str, Any], key: str, tmp_path: Path
) -> None:
    sweep = ClusterSweep(tmp_path, [trial()])
    with pytest.raises(ConfigError) as caught:
        sweep.run(Slurm(**{**SMALL, **options}))
    assert caught.value.key.startswith(key), str(caught.value)
    assert not sweep.find("*/*")


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
from sweeper.launch.slurm_jobs import Array
from sweeper.launch.slurm import Slurm
from sweeper.launch.slurm_jobs import prefix
from sweeper.launch.slurm_queue import queue
from tests.launch.cluster import SMALL, ClusterSweep
from tests.engine.tiny_trials import trial
def die(*_): os.kill(os.getpid(), 9)
if sys.argv[2] == "pickles":
    move = JobPaths.move_temporary_file
    JobPaths.move_temporary_file = lambda self, path, name, *_, **__: (
        die() if name == "submitted_pickle" else move(self, path, name))
else:
    Array.accept = die
trials = [trial(seed=seed) for seed in range(int(sys.argv[3]))]
ClusterSweep(Path(sys.argv[1]), trials).run(Slurm(**SMALL), batched_trials=1)
"""


@pytest.mark.parametrize(
    ("moment", "jobs"), [("pickles", 1), pytest.param("id", 2, marks=pytest.mark.faults)]
)
def test_a_driver_killed_right_after_sbatch_submits_nothing_twice(
    moment: str, jobs: int, tmp_path: Path
) -> None:
    killed = in_a_process(KILLED, str(tmp_path), moment, str(jobs))
    assert killed.wait() == -signal.SIGKILL
    sweep = ClusterSweep(tmp_path, [trial(seed=seed) for seed in range(jobs)])
    before = {entry.id for entry in sweep.queue()}
    assert len(before) == jobs
    Driver(sweep, batched_trials=1).join()
    assert {entry.id for entry in sweep.queue()} == before
    assert sweep.times_recorded == jobs and not sweep.errors() and not sweep.notices


def test_a_driver_whose_jobs_are_cancelled_takes_none_for_failed(
    tmp_path: Path, golden: Golden
) -> None:
    sweep = ClusterSweep(tmp_path, [trial(train=LONG)])
    driver = Driver(sweep, batched_trials=1)
    until(lambda: driver.sweep.find("slurm/*/id.json"))
    assert Slurm.cancel(sweep.study) == 1
    with pytest.raises(SweeperError) as caught:
        driver.join()
    golden.says(caught)
    assert not sweep.results
    until(lambda: not [entry for entry in sweep.queue() if entry.active])
    assert Slurm.states(sweep.study) == []
