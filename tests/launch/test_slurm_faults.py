"""What goes wrong on clusters, done to a real one: no trial may be lost, nor counted twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.files import try_json
from sweeper.launch.code import user_modules
from sweeper.launch.inline import Inline
from sweeper.launch.slurm import Slurm
from sweeper.trial import Trial
from tests.engine.tiny_trials import tree, trial
from tests.launch.cluster import (
    SMALL,
    Cluster,
    ClusterSweep,
    Driver,
    assert_goes_on,
    intrude,
    saved_step,
    slurm,
    stand_in,
    started,
)
from tests.specs import spec_of
from tests.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("cluster")]
SLURM = {"SLURM_LOCAL_GRACE": "10", "SLURM_LOCAL_SILENCE": "5"}
LONG = {"steps": 2000, "batch_size": 1}


def assert_finished(sweep: ClusterSweep, driver: Driver, seconds: float = 180.0) -> None:
    """Every trial is complete, and was recorded once."""
    driver.join(seconds)
    assert sweep.times_recorded == len(sweep.trials) and not sweep.errors(), sweep.notices
    assert all(result.status == "complete" for result in sweep.results.values())


def long_run(
    folder: Path, steps: int = LONG["steps"], **options: Any
) -> tuple[ClusterSweep, Driver]:
    """A long trial that has a checkpoint."""
    sweep = ClusterSweep(folder, [trial(train={**LONG, "steps": steps})])
    driver = Driver(sweep, batched_trials=1, save_every=0.5, grace=10.0, **options)
    until(lambda: saved_step(sweep) > 50)
    return sweep, driver


def test_time_limit(tmp_path: Path) -> None:
    sweep = ClusterSweep(tmp_path, [trial(train={"steps": 10000, "batch_size": 1})])
    driver = Driver(sweep, batched_trials=1, time=1, warn=30)
    # A minute is the shortest limit, and the steps take as many runs as the machine is slow.
    started(sweep)
    started(sweep, restart=1, seconds=180)
    (note,) = sweep.find("jobs/*/submission-0/left-0.json")
    assert 0 < try_json(note)["fraction"] < 1
    assert_finished(sweep, driver, seconds=900)
    assert len(sweep.queue()) == 1


def test_the_warning_and_sigterm_at_once(tmp_path: Path) -> None:
    sweep, driver = long_run(tmp_path)
    (entry,) = [entry for entry in sweep.queue() if entry.active]
    for name in ("URG", "TERM"):
        slurm("scancel", f"--signal={name}", entry.id)
    assert_goes_on(sweep, saved_step(sweep))
    assert_finished(sweep, driver)
    (tmp_path / "here").mkdir()
    here = ClusterSweep(tmp_path / "here", sweep.trials)
    here.run(Inline(), batched_trials=1)
    assert sweep.objectives() == here.objectives()


def test_a_node_that_may_not_requeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("scontrol")
    stand_in(tmp_path, "scontrol", f'[ $1 = requeue ] || exec {real} "$@"\nexit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sweep, driver = long_run(tmp_path)
    (entry,) = [entry for entry in sweep.queue() if entry.active]
    slurm("scancel", "--signal=URG", entry.id)
    until(lambda: sweep.find("jobs/*/submission-0/left-0.json"))
    assert_goes_on(sweep, saved_step(sweep), restart=0, submission=1)
    assert_finished(sweep, driver)
    assert len(sweep.queue()) == 2


def test_node_lost(cluster: Cluster, tmp_path: Path) -> None:
    sweep, driver = long_run(tmp_path)
    before, node = saved_step(sweep), started(sweep)["node"]
    cluster("kill-node", node)
    assert_goes_on(sweep, before)
    assert started(sweep, restart=1)["node"] != node
    assert_finished(sweep, driver)
    cluster("start-node", node)
    until(lambda: "idle" in slurm("sinfo", "-h", "-N", "-n", node, "-o", "%T"), 30)


def test_a_silent_node_makes_two_copies_and_one_result(cluster: Cluster, tmp_path: Path) -> None:
    # Half a minute: the silence must be noticed before the run on that node ends.
    sweep, driver = long_run(tmp_path, steps=8000)
    node = started(sweep)["node"]
    done = subprocess.run(
        ["pgrep", "-f", f"slurmd -N {node} -f {cluster.folder}/"], capture_output=True, text=True
    )
    silent = [pid for pid in map(int, done.stdout.split())
              if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmd"]  # fmt: skip
    assert silent
    for pid in silent:
        os.kill(pid, signal.SIGSTOP)
    try:
        started(sweep, restart=1)
        assert_finished(sweep, driver)
    finally:
        for pid in silent:
            os.kill(pid, signal.SIGCONT)
    until(lambda: "idle" in slurm("sinfo", "-h", "-N", "-n", node, "-o", "%T"), 60)


def test_controller_down_while_jobs_run_and_end(cluster: Cluster, tmp_path: Path) -> None:
    sweep, driver = long_run(tmp_path)
    cluster("kill-ctld")
    sweep.trials = [*sweep.trials, trial(seed=7)]
    until(lambda: any("could be submitted" in notice for notice in sweep.notices), 90)
    assert sweep.times_recorded == 1  # collected without the controller
    cluster("start-ctld")
    assert_finished(sweep, driver)
    assert len(sweep.queue()) == 2


def of_model(target: str) -> Trial:
    made = tree()
    made["model"]["_target_"] = target
    return replace(trial(), spec=spec_of(made))


@pytest.mark.parametrize("anew", [False, True], ids=["same driver", "new driver"])
def test_code_edited_while_the_job_waits(
    anew: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job refuses what it was not submitted with; a new driver submits it anew."""
    user_modules.cache_clear()
    module = tmp_path / "edited_model.py"
    module.write_text("from sweeper.models.llama import Llama as Mine\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    monkeypatch.syspath_prepend(str(tmp_path))
    other = intrude(60)
    sweep = ClusterSweep(tmp_path, [of_model("edited_model.Mine"), trial()])
    sweep.run(Slurm(**SMALL), wait=False, batched_trials=1)
    assert not sweep.results and len(sweep.queue()) == 2
    module.write_text("# edited\nfrom sweeper.models.llama import Llama as Mine\n")
    if anew:
        user_modules.cache_clear()
    driver = Driver(sweep, batched_trials=1)
    until(lambda: len({entry.array for entry in sweep.queue()}) == (2 if anew else 1))
    slurm("scancel", other)
    driver.join()
    assert len(sweep.results) == 2 and len(sweep.errors()) == (0 if anew else 1)
    assert all("the code of edited_model is not" in error for error in sweep.errors())
