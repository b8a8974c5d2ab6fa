"""What every launcher in conf/launcher must do."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sweeper.errors import BadInput, SweeperError
from sweeper.launch.executor import JobState, Launcher, Scheduled
from sweeper.launch.job_states import cancel_jobs, job_states, schedulers
from sweeper.records import arguments, import_target
from sweeper.registry import build_plugin, plugins
from sweeper.study.lock import request_cancel
from sweeper.trial import Trial
from tests.golden import Golden
from tests.launch.counting import CountSweep, counted, expected
from tests.launch.trial_sweep import without_times
from tests.launch.trouble import Trouble, trouble
from tests.refusals import refused
from tests.waiting import until

CONF = Path(__file__).parent.parent.parent / "conf" / "launcher"
QUICK: dict[str, Any] = {"workers": 1}
QUICK |= {"time": 10, "cpus": 1, "gpus": 0, "poll": 0.3, "warn": 30, "retries": 1}
"""What keeps these tests short, for launchers that have such a setting."""


@pytest.fixture(params=sorted(path.stem for path in CONF.glob("*.yaml")))
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    """One of each kind; that of Slurm on a Slurm of the tests' own, where there can be one."""
    if request.param == "slurm":
        request.getfixturevalue("cluster")
    config = yaml.safe_load((CONF / f"{request.param}.yaml").read_text())
    taken = arguments(import_target(config["_target_"]))
    built = build_plugin(config | {name: value for name, value in QUICK.items() if name in taken})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield built
    torch.set_num_threads(before)


def test_it_trains_what_is_named_once_and_asks_for_more(tmp_path: Path, launcher: Launcher) -> None:
    """Equal to the inline launcher's results; what was begun or left behind is no trial's harm."""
    first = [counted(seed=i) for i in range(3)]
    second = [counted(eta=1.0)]

    def more(count: int) -> list[Trial]:
        return second if count >= 3 else []

    sweep = CountSweep(trials=first, folder=tmp_path, more=more)
    results = sweep.run(launcher, batched_trials=2)
    assert without_times(results) == expected([*first, *second], tmp_path)
    assert sweep.work_done == pytest.approx(4)
    assert not list((tmp_path / "checkpoints").glob("*")), "no checkpoint outlives its results"
    assert not [path for path in (tmp_path / "jobs").glob("*") if path.is_dir()]
    sweep.run(launcher, batched_trials=2)
    assert sweep.times_recorded == 4, "nothing is pending, nothing is run"


def test_what_the_configuration_is_to_blame_for_is_told(tmp_path: Path, launcher: Launcher) -> None:
    """At once; or, where a trial runs out of sight, as the reason why it failed."""
    refuses = trouble(tmp_path, "refuse")
    sweep = CountSweep(trials=[counted()], trouble=refuses, folder=tmp_path)
    messages = []
    try:
        messages += [result.error for result in sweep.run(launcher, batched_trials=2).values()]
    except BadInput as error:
        messages.append(str(error))
    assert len(messages) == 1 and "not to be read" in messages[0]


def test_its_jobs_are_seen_and_cancelled_from_any_process_and_go_on_later(
    tmp_path: Path, launcher: Launcher, golden: Golden
) -> None:
    """Where jobs outlive the driver, none is needed to see and end them; nothing is lost."""
    slow = trouble(tmp_path, "slow")
    # The trial outlives the look at it on any machine; once it has been seen, it hurries.
    sweep = CountSweep(trials=[counted(steps=1000)], trouble=slow, folder=tmp_path)
    loop, seen, ended = sweep.loop(launcher, batched_trials=1), list[JobState](), list[int]()

    def look() -> list[JobState]:
        return job_states(tmp_path) or loop.states()

    def look_and_cancel() -> None:
        try:
            seen.extend(until(look))
            until(lambda: [state for state in look() if state.stage == "running"])
        finally:  # whatever was seen, the loop must end
            request_cancel(tmp_path)
            ended.append(cancel_jobs(tmp_path))

    other = threading.Thread(target=look_and_cancel)
    other.start()
    with refused(golden, SweeperError):
        loop.run(sweep.pending)
    other.join()
    assert [(state.trials, state.stage in ("queued", "running")) for state in seen] == [(1, True)]
    assert ended == [int(isinstance(launcher, Scheduled))]
    sweep.trouble = Trouble()
    assert job_states(tmp_path) == [] and not sweep.results
    assert [r.status for r in sweep.run(launcher, batched_trials=1).values()] == ["complete"]
    assert job_states(tmp_path) == []


def test_a_scheduler_is_found_by_its_folder_alone(tmp_path: Path) -> None:
    assert schedulers(tmp_path) == []
    for name, target in plugins()["launcher"].items():
        (tmp_path / name).mkdir()
        kind = import_target(target)
        assert (kind in schedulers(tmp_path)) == isinstance(kind, Scheduled)
        if isinstance(kind, Scheduled):
            assert kind.states(tmp_path) == []
            kind.forget(tmp_path, {"a"})
