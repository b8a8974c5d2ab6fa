"""Batches as jobs of a real Slurm: what comes of them, and of what dies."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import ConfigError, SweeperError
from sweeper.files import try_json
from sweeper.launch import slurm_jobs
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
    assert_goes_on,
    in_a_process,
    inline,
    saved_step,
    slurm,
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


def long_ones(sweep: ClusterSweep) -> list[Path]:
    """Submissions of long trials that have begun."""
    begun = [path.parent for path in sweep.find("jobs/*/submission-0/started-0.json")]
    return [path for path in begun if '"steps": 500' in (path.parent / "job.json").read_text()]


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


@pytest.mark.faults
def test_a_job_that_is_cancelled_fails_alone(tmp_path: Path) -> None:
    trials = [trial(seed=0), trial(seed=1, train=LONG)]
    sweep = ClusterSweep(tmp_path, trials)
    driver = Driver(sweep, batched_trials=1)
    (slow,) = until(lambda: long_ones(sweep))
    (array,) = slurm_jobs.arrays(sweep.study)
    index = [member.folder for member in array.members].index(slow)
    slurm("scancel", array.task_id(index))
    driver.join()
    assert sweep.results[trials[0].key].status == "complete"
    assert len(sweep.errors()) == 1 and "CANCELLED" in sweep.errors()[0]


@pytest.mark.faults
def test_what_a_job_dies_of_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doomed.py").write_text(
        "import os, sys\n"
        "def Doomed(**arguments):\n"
        "    print('the last words', file=sys.stderr, flush=True)\n"
        "    os._exit(7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    monkeypatch.syspath_prepend(str(tmp_path))
    trials = [trial(), of_model("doomed.Doomed"), of_model("not.there.Model")]
    sweep = ClusterSweep(tmp_path, trials)
    Driver(sweep, batched_trials=1).join()
    assert sweep.results[trials[0].key].status == "complete"
    died, missing = sweep.errors()
    assert "FAILED" in died and "the last words" in died and ".err" in died
    assert "not.there" in missing and "ConfigError" in missing
    assert sum("run again" in notice for notice in sweep.notices) == 1
    # Its array, the one of the second try, is kept for its log.
    assert Path(re.findall(r"the log is (.*?)\)", died)[0]).exists()


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


@pytest.mark.faults
def test_fewer_are_sent_when_slurm_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like MaxSubmitJobs, which needs accounting: sbatch takes no array, later one job."""
    folder = tmp_path / "bin"
    folder.mkdir()
    refusal = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
    real = shutil.which("sbatch")
    (folder / "sbatch").write_text(
        f'#!/bin/sh\ncase $1 in --*) exec {real} "$@";; esac\n'
        f'if grep -q -- --array= "$1"; then echo "{refusal}" >&2; exit 1; fi\nexec {real} "$@"\n'
    )
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    sweep = ClusterSweep(tmp_path, [trial(seed=seed) for seed in range(2)])
    Driver(sweep, batched_trials=1).join()
    assert sweep.times_recorded == 2 and not sweep.errors()
    assert len({entry.array for entry in sweep.queue()}) == 2
    assert any("accounting/QOS policy" in notice for notice in sweep.notices)
    assert not sweep.find("jobs/*") and not sweep.find("slurm/*/*")


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


@pytest.mark.faults
def test_a_job_told_to_leave_goes_on_where_it_was(tmp_path: Path) -> None:
    trials = [trial(train=LONG)]
    sweep = ClusterSweep(tmp_path, trials)
    driver = Driver(sweep, batched_trials=1, save_every=0.5)
    until(lambda: saved_step(sweep) > 50)
    (entry,) = [entry for entry in sweep.queue() if entry.active]
    slurm("scancel", "--signal=URG", entry.id)
    (note,) = until(lambda: sweep.find("jobs/*/submission-0/left-0.json"))
    assert saved_step(sweep) == round(LONG["steps"] * try_json(note)["fraction"]) < LONG["steps"]
    assert_goes_on(sweep, saved_step(sweep))
    driver.join()
    (tmp_path / "here").mkdir()
    assert sweep.objectives() == inline(tmp_path / "here", trials, batched_trials=1)
    assert len({entry.id for entry in sweep.queue()}) == 1
