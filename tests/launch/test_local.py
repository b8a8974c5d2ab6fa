"""Worker processes: equal results, whatever happens to a worker, the driver, or their files.

Their trials only count: workers then start at once.
"""

import importlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeper.engine.runner import Engine
from sweeper.errors import SweeperError
from sweeper.launch import machine
from sweeper.launch.executor import Context, Machine
from sweeper.launch.inline import Inline
from sweeper.launch.job import Job, run_job, write_job
from sweeper.launch.local import Local, LocalExecutor
from sweeper.launch.machine import THREADS, WorkerSlot, visible_gpus, worker_slots
from sweeper.launch.pool import Pool, fate_of
from sweeper.launch.slurm import Slurm
from sweeper.launch.worker import GRACE
from sweeper.trial import Trial
from tests.engine.tiny_trials import corpus, trial
from tests.golden import Golden
from tests.launch.counting import Ask, Compile, CountSweep, counted, expected
from tests.launch.trial_sweep import without_times
from tests.launch.trouble import calls, trouble
from tests.refusals import raises_config_error, refused
from tests.waiting import until


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    assert not [command for command in descendants(os.getpid()).values() if b"submitit" in command]
    assert not workers_of(os.getpid())


def descendants(pid: int) -> dict[int, bytes]:
    """All living processes below `pid`, with their command lines."""
    parents, commands = dict[int, int](), dict[int, bytes]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            command = stat.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if state != "Z":
            parents[int(stat.parent.name)], commands[int(stat.parent.name)] = int(parent), command
    below = dict[int, bytes]()
    new = {pid}
    while new := {child for child, parent in parents.items() if parent in new}:
        below |= {child: commands[child] for child in new}
    return below


def workers_of(pid: int) -> list[int]:
    return [
        child for child, command in descendants(pid).items() if b"sweeper.launch.worker" in command
    ]


def test_a_trial_that_always_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    trials = [counted(seed=i) for i in range(2)]
    bad_luck = trouble(tmp_path, "segfault", seed=1, at=3)
    sweep = CountSweep(trials=trials, trouble=bad_luck, folder=tmp_path)
    results = sweep.run(Local(workers=2, retries=1), batched_trials=2)
    good, bad = (results[t.key] for t in trials)
    assert bad.status == "failed" and math.isnan(bad.objective)
    assert "killed by SIGSEGV, 2 times:" in bad.error
    assert without_times({good.key: good}) == expected(trials[:1], tmp_path)
    assert "trouble.py" in bad.error  # the last lines of the log show where
    again = "a job is run again: its worker process was killed by SIGSEGV"
    assert any(again in notice for notice in sweep.notices)
    assert sweep.work_done == pytest.approx(2)


def test_what_an_idle_worker_trains_ahead_is_not_waited_for_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    slow, later = trouble(tmp_path, "slow"), [counted(seed=1, steps=1000)]
    trials = [counted(steps=30)]
    sweep = CountSweep(trials=trials, trouble=slow, later=later, folder=tmp_path)
    assert without_times(sweep.run(Local(workers=2))) == expected(trials, tmp_path)
    assert {seed for seed, *_ in calls(tmp_path)} == {0, 1}, "it was begun"
    assert not [*tmp_path.glob("jobs/*"), *tmp_path.glob("checkpoints/*")]


def test_a_worker_that_hangs_is_ended(tmp_path: Path) -> None:
    trials = [counted(seed=i) for i in range(2)]
    hangs = trouble(tmp_path, "hang", seed=1, at=3)
    sweep = CountSweep(trials=trials, trouble=hangs, folder=tmp_path)
    results = sweep.run(Local(workers=2, retries=0, hang=1.5))
    assert [results[t.key].status for t in trials] == ["complete", "failed"]
    assert "no step for 1.5 s" in results[trials[1].key].error


def test_a_worker_that_is_told_to_leave_is_not_blamed(tmp_path: Path) -> None:
    trials = [counted()]
    leaves = trouble(tmp_path, "terminate", at=4, once=True)
    sweep = CountSweep(trials=trials, trouble=leaves, folder=tmp_path)
    results = sweep.run(Local(workers=1, retries=0))
    assert without_times(results) == expected(trials, tmp_path)
    steps = [step for _, step, *_ in calls(tmp_path)]
    assert steps == list(range(8)) and not sweep.notices


def test_who_waits_for_a_worker_that_will_not_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Pool(tmp_path / "jobs", [WorkerSlot(threads=1)], None, "tests.launch.counting")
    sentences: list[str] = []
    try:
        assert workers.fill()
        pid = workers.workers[0].pids[0]
        os.kill(pid, signal.SIGSTOP)
        # Until all its threads stand still, one may yet hear that it is to end.
        until(
            lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", 60
        )
        monkeypatch.setattr("sweeper.launch.pool.SOON", 0.1)
        monkeypatch.setattr("sweeper.launch.pool.MOST", 0.3)
    finally:
        workers.stop(sentences.append)
    assert sentences == [
        "Waiting for what still runs to end, 0.2 s at most; Ctrl-C ends it at once"
    ]
    until(lambda: not Path(f"/proc/{pid}").exists(), 60)


def test_a_worker_that_compiles_is_not_waited_for(tmp_path: Path) -> None:
    task = Compile(trials=(counted(),), trouble=trouble(tmp_path, "exit", seed=9), saves=tmp_path)
    job = write_job(tmp_path / "jobs", Job(task=task), sync=False)
    workers = Pool(tmp_path / "jobs", [WorkerSlot(threads=1)], None, "tests.launch.counting")
    try:
        assert workers.fill()
        workers.give(workers.workers[0], {"job": str(job), "attempt": 0}, "a task")
        until((tmp_path / "compiles").exists, 60)
    finally:
        began = time.monotonic()
        workers.stop()
    assert time.monotonic() - began < GRACE


def test_workers_import_what_the_driver_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own modules lie in the folder worked in, which no PYTHONPATH names."""
    module = "from tests.launch.trouble import Trouble\n\n\nclass Own(Trouble):\n    pass\n"
    (tmp_path / "own_module_of_a_user.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_module_of_a_user").Own(**asdict(trouble(tmp_path)))
    sweep = CountSweep(trials=[counted()], trouble=own, folder=tmp_path)
    [result] = sweep.run(Local(workers=1)).values()
    assert result.status == "complete" and len(calls(tmp_path)) == 8


def test_workers_that_cannot_start_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").write_text("raise SystemExit('no torch here')")
    monkeypatch.syspath_prepend(tmp_path)  # this process has its `tests` already
    sweep = CountSweep(trials=[counted()], folder=tmp_path)
    with refused(golden, SweeperError):
        sweep.run(Local(workers=1))


STEPS = 400
"""So many slow ones that no machine comes to the end before the driver is killed."""
DRIVER = f"""
import sys
from pathlib import Path
from sweeper.launch.local import Local
from tests.launch.counting import CountSweep, counted
from tests.launch.trouble import trouble
folder = Path(sys.argv[1])
trials = [counted(seed=seed, steps={STEPS}) for seed in range(2)]
CountSweep(trials=trials, trouble=trouble(folder, "slow"), folder=folder).run(Local(workers=2))
"""


def driver(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder)], cwd=Path(__file__).parents[2],
        start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    until(lambda: {seed for seed, step, *_ in calls(folder) if step >= 4} == {0, 1}, 60)
    return process


@pytest.mark.parametrize("how", [pytest.param("kill", marks=pytest.mark.long), "interrupt"])
def test_a_driver_that_dies_leaves_no_process_and_loses_no_step(tmp_path: Path, how: str) -> None:
    process = driver(tmp_path)
    assert len(workers_of(process.pid)) == 2
    workers = descendants(process.pid)
    if how == "kill":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 60)
    if how == "interrupt":
        assert errors.count(b"Traceback") == 1 and errors.strip().endswith(b"KeyboardInterrupt")
        assert not list((tmp_path / "jobs").glob("*.log"))
    before = calls(tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    trials = [counted(seed=seed, steps=STEPS) for seed in range(2)]
    sweep = CountSweep(trials=trials, trouble=trouble(tmp_path), folder=tmp_path)
    results = sweep.run(Local(workers=1), batched_trials=2)
    assert without_times(results) == expected(trials, tmp_path)
    after = calls(tmp_path)
    assert len(before) < 2 * STEPS
    assert sorted(call[:2] for call in after) == [(s, i) for s in range(2) for i in range(STEPS)]


def left_job(folder: Path, trials: list[Trial]) -> Path:
    runner = CountSweep(trials=trials, folder=folder).runner(Local())
    job_dir = write_job(folder / "jobs", runner.job(tuple(trials), None))
    run_job(job_dir, 0)
    return job_dir


def test_what_a_dead_driver_s_workers_finished_counts(tmp_path: Path) -> None:
    trials = [counted(seed=i) for i in range(4)]
    job_dir = left_job(tmp_path, trials[:2])
    other = left_job(tmp_path, [counted(eta=1.0)])
    sweep = CountSweep(trials=trials, trouble=trouble(tmp_path), folder=tmp_path)
    results = sweep.run(Local(workers=1), batched_trials=2)
    assert without_times(results) == expected(trials, tmp_path)
    assert {seed for seed, *_ in calls(tmp_path)} == {2, 3}
    assert not job_dir.exists() and other.exists(), "what is not wanted now may be wanted later"


def question(folder: Path, how: str = "", at: int = -1) -> Ask:
    return Ask(trials=(counted(),), trouble=trouble(folder, how, at=at), saves=folder)


def test_a_model_that_dies_while_it_is_measured_does_not_take_the_driver(tmp_path: Path) -> None:
    """Its worker has no answer, alone or among others, and the next job finds another."""
    executor = Local(workers=2).executor(Context(folder=tmp_path))
    dies, lives = question(tmp_path, "exit", at=1), question(tmp_path)
    try:
        assert executor.call([dies], 2) == [None]
        nothing, answer = executor.call([dies, lives], 2)
        assert nothing is None and answer["process"] in workers_of(os.getpid())
        (alone,) = executor.call([lives], 1)  # of a layout of its own
        assert {answer["process"], alone["process"]} == {*workers_of(os.getpid())}
        executor.use(1)
        assert workers_of(os.getpid()) == [alone["process"]]
    finally:
        executor.close()
    sweep = CountSweep(trials=[counted()], folder=tmp_path)
    [result] = sweep.run(Local(workers=2)).values()
    assert result.status == "complete"


def test_a_job_is_written_ahead_while_all_workers_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.launch.local.cores", lambda: 2)
    assert Local().executor(Context(folder=tmp_path)).layouts == range(1, 3)
    executor = LocalExecutor(Context(folder=tmp_path), Local(workers=2))
    busy: Any = SimpleNamespace(workers=["one", "other"], room=lambda: False)
    executor._pools[2] = busy
    assert executor.room(ahead=True) and not executor.room()


def test_every_worker_is_pinned_to_a_gpu_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(machine, "cores", lambda: 6)

    monkeypatch.delenv(THREADS, raising=False)

    def slots(device: str, workers: int) -> list[WorkerSlot]:
        return worker_slots(Machine(gpus=visible_gpus(device), threads=8), workers)

    def pinned(device: str, workers: int) -> list[str]:
        return [slot.env["CUDA_VISIBLE_DEVICES"] for slot in slots(device, workers)]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert pinned("cuda", 2) == ["0", "1"] and pinned("cuda:1", 1) == ["1"]
    assert pinned("cuda", 3) == ["0", "1", "0"]
    assert [slot.threads for slot in slots("cuda", 2)] == [3, 3]
    assert Local().at_once(visible_gpus("cuda")) == 2
    monkeypatch.setattr("sweeper.launch.local.cores", lambda: 4)
    assert [Local(workers=count).at_once(()) for count in ("auto", 2, 9)] == [1, 2, 4]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc")
    assert pinned("cuda", 2) == ["5", "GPU-abc"]
    workers = Pool(tmp_path / "jobs", slots("cuda", 2), None, "json")
    try:
        first = workers.free()
        assert first is not None
        workers.give(first, {}, "a task")
        second = workers.free()
        assert second is not None and workers.room() is True
        for worker, gpu in ((first, b"5"), (second, b"GPU-abc")):
            # What the other one says is no news of this one.
            until(lambda worker=worker: (workers.wait(), worker.ready)[1], 60)
            path = Path(f"/proc/{worker.pids[0]}/environ")
            assert b"OMP_NUM_THREADS=3" in path.read_bytes().split(b"\0")
            assert b"SUBMITIT" not in path.read_bytes()
            assert b"CUDA_VISIBLE_DEVICES=" + gpu in path.read_bytes().split(b"\0")
    finally:
        workers.stop()


@pytest.mark.parametrize(("cores", "workers", "each"), [(8, 3, 2), (8, 1, 8), (2, 4, 1)])
def test_threads_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, each: int
) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    slots = worker_slots(Machine(threads=16), workers)
    assert [(slot.threads, slot.env) for slot in slots] == [(each, {THREADS: str(each)})] * workers


@pytest.mark.parametrize("own", ["1", "6,2"])
def test_the_user_s_threads_are_kept_and_the_choice_of_workers_is_told(
    monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    monkeypatch.setenv(THREADS, own)
    [slot] = worker_slots(Machine(threads=16), 1)
    assert (slot.threads, slot.env) == (int(own[0]), {})
    sentences = Local().sharing(Machine(threads=16))
    assert re.match(r"(1 trial|\d+ trials) at a time, one a core; ", sentences)
    most = Local(workers=1000).sharing(Machine(threads=16))
    assert most.startswith("1000 trials at a time, on ")
    assert sentences.endswith(f"{THREADS}={own[0]}, as you have set it")
    sentences = Local().sharing(Machine(gpus=("0", "1")))
    assert sentences.startswith("2 trials at a time, one a GPU; ")


def test_a_control_group_s_quota_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("3:cpu,cpuacct:/batch\n0::/a/b\n")
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "cpu/batch").mkdir(parents=True)
    (tmp_path / "a/cpu.max").write_text("150000 100000\n")
    (tmp_path / "a/b/cpu.max").write_text("max 100000\n")
    (tmp_path / "cpu/batch/cpu.cfs_quota_us").write_text("400000\n")
    (tmp_path / "cpu/batch/cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert sorted(machine._cpu_quotas(tmp_path, own)) == [1.5, 4.0]
    assert 1 <= machine.cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(("key", "value"), [("workers", 0), ("hang", 0.0), ("retries", -1)])
def test_impossible_settings_are_refused(key: str, value: Any) -> None:
    with raises_config_error(key):
        Local(**{key: value})


def test_the_end_of_a_process_is_named() -> None:
    assert fate_of(-9) == "was killed by SIGKILL" and fate_of(3) == "ended with exit code 3"
    assert fate_of(-250) == "was killed by signal 250"


@pytest.mark.filterwarnings("ignore:.*batching rule for aten")
def test_a_gpu_more_takes_its_share_of_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.engine.runner.resolve_device", lambda name: "cuda")
    monkeypatch.setattr("sweeper.engine.runner.measure_here", lambda *_: (4, 1.0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    engine, trials, where = Engine(), [trial()], corpus(tmp_path)
    assert engine.estimate(trials, where, Local()) == (4, 0.25)
    assert engine.estimate(trials, where, Local(workers=2)) == (4, 0.5)
    assert engine.estimate(trials, where, Inline()) == (4, 1.0)
    assert engine.precision(Local()) == "bfloat16"
    assert engine.precision(Slurm(gpus=0)) == "float32"
    size, seconds = Engine(batched_trials=2).estimate(trials, where, Slurm(gpus=0))
    assert size == 2 and math.isnan(seconds)  # how long a node takes is not known
