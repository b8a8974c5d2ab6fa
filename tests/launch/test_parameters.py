"""Parameters of submitit's that a user sets: which there are, what each launcher makes of them."""

import os
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import submitit

from sweeper.config.compose import compose_tree
from sweeper.config.settings import resolve
from sweeper.launch.local import Local
from sweeper.launch.machine import WorkerSlot
from sweeper.launch.parameters import OURS, Parameters
from sweeper.launch.pool import Pool
from sweeper.launch.slurm import Slurm
from tests.refusals import raises_config_error
from tests.waiting import until


def test_they_are_all_that_submitit_takes() -> None:
    theirs = submitit.AutoExecutor._valid_parameters()
    for executor in (submitit.SlurmExecutor, submitit.LocalExecutor):
        names = executor._valid_parameters()
        theirs |= {f"{executor.name()}_{name}" for name in names}
    assert {each.name for each in fields(Parameters) if each.init} == theirs


@pytest.mark.parametrize("name", sorted(OURS))
def test_what_sweeper_sets_itself_is_refused(name: str) -> None:
    with raises_config_error(name, 1):
        Parameters(**{name: 1})


@pytest.mark.parametrize("value", [{"slurm_comment": "a\nb"}, {"slurm_setup": ("a", "b\nc")}])
def test_a_text_of_several_lines_is_refused(value: dict[str, Any]) -> None:
    with raises_config_error(*value):
        Parameters(**value)


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["launcher=local", "launcher.submitit.timeout=60"], "launcher.submitit.timeout"),
        (["launcher=local", "launcher.submitit.timeout_min=0"], "launcher.submitit.timeout_min"),
        (["launcher=local", "launcher.submitit.timeout_min=a"], "launcher.submitit.timeout_min"),
        (["launcher=local", "launcher.submitit.gpus_per_node=1"],
         "launcher.submitit.gpus_per_node"),
        (["launcher=local", "launcher.submitit.nodes=2"], "launcher.submitit.nodes"),
        (["launcher=slurm", "launcher.submitit.slurm_mem=lots"], "launcher.memory"),
        (["launcher=inline", "launcher.submitit.timeout_min=60"], "launcher.submitit"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_key(argv: list[str], key: str) -> None:
    with raises_config_error(key):
        resolve(compose_tree(argv))


def test_what_is_a_key_of_slurm_sets_it_and_the_rest_is_passed_on(
    commands: Path, tmp_path: Path
) -> None:
    argv = ["launcher=slurm", "launcher.submitit.timeout_min=30", "launcher.submitit.mem_gb=1.5",
             "launcher.submitit.cpus_per_task=2", "launcher.submitit.slurm_comment='a b'",
             "launcher.submitit.slurm_setup=['module load a']", "launcher.submitit.local_setup=[x]",
             "launcher.submitit.slurm_additional_parameters={mail_hours: 2}",
             "launcher.submitit.slurm_srun_args=['--export=ALL']",
             "launcher.submitit.slurm_exclude=node7"]  # fmt: skip
    launcher = resolve(compose_tree(argv)).launcher
    assert isinstance(launcher, Slurm)
    assert (launcher.time, launcher.cpus, launcher.memory) == (30, 2, "1536M")
    script = launcher.script(tmp_path, 1)
    for option in ("--time=30\n", "--mem=1536M\n", "--cpus-per-task=2\n",
                 "--comment='a b sweeper-", "--mail-hours=2\n", "--exclude=node7\n"):  # fmt: skip
        assert f"#SBATCH {option}" in script, option
    assert "module load a\n" in script and "--export=ALL" in script and "wckey" not in script


def test_a_local_worker_s_setup_and_time(tmp_path: Path) -> None:
    """When its time is up, submitit says so to its parent: it leaves, and nobody is to blame."""
    setup: dict[str, Any] = {"local_setup": ("export SET_UP=1",), "slurm_partition": "unheard"}
    parameters = Local(submitit=Parameters(timeout_min=60, **setup)).submitit.local()
    workers = Pool(tmp_path / "jobs", [WorkerSlot(threads=1)], None, "json", parameters)
    try:
        assert workers.fill()
        [worker] = workers.workers
        assert b"SET_UP=1" in Path(f"/proc/{worker.pids[0]}/environ").read_bytes().split(b"\0")
        os.kill(worker.pids[1], signal.SIGUSR2)  # as its controller does before the end
        until(lambda: workers.wait() == [(worker, {"left": True})], 60)
        workers.dismiss(worker)
        assert workers.room()
    finally:
        workers.stop()
    assert not list((tmp_path / "jobs").iterdir())
