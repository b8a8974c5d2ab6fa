"""The real command on a real Slurm, broken: each trial once, no job twice, nothing left."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sweeper.launch import slurm_queue
from sweeper.launch.slurm_jobs import prefix
from tests.cli.driver import assert_refused, make_workplace
from tests.faults.harness import (
    SEEDS,
    SLOW,
    WORDS,
    Harness,
    Outcomes,
    assert_whole,
    outcomes,
    recorded,
)
from tests.faults.test_clock import HOUR, clock
from tests.launch.cluster import intrude, slurm
from tests.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("cluster")]
REPLACED = ("runner.batched_trials", "runner.device")
SLURM_WORDS = [
    *("launcher=slurm", "launcher.gpus=0", "launcher.cpus=1", "launcher.time=5"),
    *("launcher.poll=0.2", "launcher.grace=2", "runner.compile=off", "runner.batched_trials=4"),
]


def search_on_slurm(base: list[str]) -> list[str]:
    return ["search", *(word for word in base if not word.startswith(REPLACED)), *SLURM_WORDS]


JOBS = 3
"""Five trials in two batches, then two that refine the line."""


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What an undisturbed search of the same trials finds in the same batches, here."""
    folder = make_workplace(tmp_path_factory.mktemp("batched"))
    here = [word for word in WORDS if not word.startswith("runner.batched_trials")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = Harness(folder)
        assert made.run("search", *here, "runner.batched_trials=4").code == 0
    return outcomes(made.study)


def jobs(harness: Harness, active: bool = False) -> list[str]:
    if not (harness.study / "slurm/study.json").exists():
        return []
    entries = slurm_queue.queue(prefix(harness.study))
    return [entry.id for entry in entries if entry.active or not active]


@pytest.fixture(autouse=True)
def no_jobs(harness: Harness) -> Iterator[None]:
    yield
    active_jobs = jobs(harness, active=True)
    slurm_queue.cancel(active_jobs)
    assert not active_jobs


def assert_finished(harness: Harness, undisturbed: Outcomes) -> None:
    answer = harness.run(*search_on_slurm(WORDS))
    assert answer.code == 0 and not answer.crashed, answer
    assert_whole(harness, undisturbed)


def test_a_second_driver_is_refused_and_the_first_killed(
    harness: Harness, undisturbed: Outcomes
) -> None:
    driver = harness.start(*search_on_slurm(WORDS))
    until(lambda: jobs(harness))
    refused = harness.run(*search_on_slurm(WORDS))
    if driver.lives():
        assert_refused(refused, "study a already has a driver: ", f"process {driver.pid} on")
    driver.kill()
    assert_finished(harness, undisturbed)
    assert len(jobs(harness)) == JOBS, "no job was submitted twice"


@pytest.mark.parametrize("seed", range(-(-SEEDS // 5)))
def test_the_driver_is_killed_again_and_again(
    harness: Harness, undisturbed: Outcomes, seed: int
) -> None:
    generator = random.Random(seed)
    for _ in range(3 + generator.randrange(3)):
        driver = harness.start(*search_on_slurm(WORDS))
        driver.lives(generator.choice([generator.uniform(0.3, 2.5), generator.uniform(0.3, 15)]))
        driver.kill()
    assert_finished(harness, undisturbed)
    assert len(jobs(harness)) == JOBS, "no job was submitted twice"


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 25)))
def test_jobs_are_killed_at_random(harness: Harness, undisturbed: Outcomes, seed: int) -> None:
    generator, kills = random.Random(seed), 0
    driver = harness.start(*search_on_slurm(SLOW), "launcher.retries=9", "runner.save_every=0.1")
    while driver.lives(generator.uniform(1.0, 4.0)):
        entries = [pid for pid in harness.processes() if pid != driver.pid]
        if entries and kills < 3:
            with suppress(ProcessLookupError):
                os.kill(generator.choice(entries), signal.SIGKILL)
            kills += 1
    assert driver.wait().code == 0 and kills
    assert_finished(harness, undisturbed)


def test_damaged_files_of_jobs_cost_time_alone(harness: Harness, undisturbed: Outcomes) -> None:
    answer = harness.run(*search_on_slurm(WORDS), "--detach")
    assert answer.code == 0, answer
    until(lambda: not jobs(harness, active=True))
    first, second, *_ = sorted(harness.study.glob("jobs/*/"))
    for path in first.glob("result-*.json"):
        path.write_bytes(path.read_bytes()[:1000])
    (second / "job.json").write_text("{")
    assert harness.run(*search_on_slurm(WORDS)).code == 0
    assert_finished(harness, undisturbed)  # the log of a job that died stays until the next run


def test_a_job_whose_file_is_damaged_while_it_waits_is_trained_by_the_next_search(
    harness: Harness, undisturbed: Outcomes
) -> None:
    other = intrude(600)
    until(lambda: "RUNNING" in slurm("squeue", "-h", "-j", other, "--format=%T"))
    driver = harness.start(*search_on_slurm(WORDS))
    until(lambda: jobs(harness))
    for path in harness.study.glob("jobs/*/job.json"):
        path.write_text('{"trials": [')
    slurm("scancel", other)
    answer = driver.wait()
    assert "there is no job in" in answer.out + answer.err
    answer = harness.run(*search_on_slurm(WORDS))
    assert answer.code == 0 and "failed" not in answer.out, answer
    assert recorded(harness.study) == len(undisturbed)


def test_a_clock_that_jumps_submits_nothing_twice(harness: Harness, undisturbed: Outcomes) -> None:
    """The driver's and the jobs', forwards and back; polling and waiting do not break."""
    env = clock(harness, (0.0, 2 * HOUR), (2.0, -3 * HOUR), (4.0, 5 * HOUR))
    driver = harness.start(*search_on_slurm(SLOW), env=env)
    until(lambda: jobs(harness))
    driver.kill()
    answer = harness.run(*search_on_slurm(SLOW), env=clock(harness, (0.0, -9 * HOUR), (3.0, HOUR)))
    assert answer.code == 0, answer
    assert_finished(harness, undisturbed)
    assert len(jobs(harness)) == JOBS


def test_watching_goes_on_while_jobs_do(harness: Harness) -> None:
    """No driver runs, but its jobs do."""
    other = intrude(600)
    until(lambda: "RUNNING" in slurm("squeue", "-h", "-j", other, "--format=%T"))
    assert harness.run(*search_on_slurm(WORDS), "--detach").code == 0
    watching = harness.start("status", "a", "--watch")
    assert watching.lives(4.0), "a job waits"
    slurm("scancel", other)
    until(lambda: not jobs(harness, active=True))
    answer = watching.wait(40)
    assert answer.code == 0 and "pending" in answer.out and "finished" in answer.out
