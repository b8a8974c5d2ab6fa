"""The real command on a real Slurm, broken: each trial once, no job twice, nothing left."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sweeper.launch import scheduler
from sweeper.launch.arrays import prefix
from tests.commands.driver import assert_refused, make_workplace
from tests.faults.bench import (
    SEEDS,
    SLOW,
    WORDS,
    Bench,
    Outcomes,
    assert_whole,
    outcomes,
    recorded,
    seeds,
    until,
)
from tests.faults.test_clock import HOUR, clock
from tests.launch.cluster import slurm

pytestmark = pytest.mark.usefixtures("cluster")
GIVEN = ("launcher.pack", "launcher.device")
SLURM_WORDS = [
    "launcher=slurm",
    "launcher.gpus=0",
    "launcher.cpus=1",
    "launcher.compile=off",
    "launcher.pack=4",
    "launcher.time=5",
    "launcher.poll=0.2",
    "launcher.grace=2",
]


def words(base: list[str]) -> list[str]:
    """A search on the cluster, in packs of at most four."""
    return ["search", *(word for word in base if not word.startswith(GIVEN)), *SLURM_WORDS]


JOBS = 3
"""Five trials in two packs, then two that refine the line."""


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What an undisturbed search of the same trials finds in the same packs, here."""
    folder = make_workplace(tmp_path_factory.mktemp("packed"))
    here = [word for word in WORDS if not word.startswith("launcher.pack")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = Bench(folder)
        assert made.run("search", *here, "launcher.pack=4").code == 0
    return outcomes(made.study)


def jobs(bench: Bench, active: bool = False) -> list[str]:
    """The study's jobs in the queue, those that have ended too unless `active`."""
    if not (bench.study / "slurm/study.json").exists():
        return []
    found = scheduler.queue(prefix(bench.study))
    return [entry.id for entry in found if entry.active or not active]


@pytest.fixture(autouse=True)
def no_jobs(bench: Bench) -> Iterator[None]:
    """None is left in the queue, whatever becomes of the test."""
    yield
    left = jobs(bench, active=True)
    scheduler.cancel(left)
    assert not left


def assert_finished(bench: Bench, packed: Outcomes) -> None:
    answer = bench.run(*words(WORDS))
    assert answer.code == 0 and "Traceback" not in answer.err, answer
    assert_whole(bench, packed)


def test_a_second_driver_is_refused_and_the_first_killed(bench: Bench, packed: Outcomes) -> None:
    driver = bench.start(*words(WORDS))
    until(lambda: jobs(bench))
    refused = bench.run(*words(WORDS))
    if driver.lives():
        assert_refused(refused, "study a already has a driver: ", f"process {driver.pid} on")
    driver.kill()
    assert_finished(bench, packed)
    assert len(jobs(bench)) == JOBS, "no job was submitted twice"


@pytest.mark.parametrize("seed", seeds(-(-SEEDS // 5), quick=0))
def test_the_driver_is_killed_again_and_again(bench: Bench, packed: Outcomes, seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(3 + generator.randrange(3)):
        driver = bench.start(*words(WORDS))
        driver.lives(generator.choice([generator.uniform(0.3, 2.5), generator.uniform(0.3, 15)]))
        driver.kill()
    assert_finished(bench, packed)
    assert len(jobs(bench)) == JOBS, "no job was submitted twice"


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(max(1, SEEDS // 25)))
def test_jobs_are_killed_at_random(bench: Bench, packed: Outcomes, seed: int) -> None:
    generator, kills = random.Random(seed), 0
    driver = bench.start(*words(SLOW), "launcher.retries=9", "launcher.save_every=0.1")
    while driver.lives(generator.uniform(1.0, 4.0)):
        found = [pid for pid in bench.processes() if pid != driver.pid]
        if found and kills < 3:
            with suppress(ProcessLookupError):
                os.kill(generator.choice(found), signal.SIGKILL)
            kills += 1
    assert driver.wait().code == 0 and kills
    assert_finished(bench, packed)


@pytest.mark.faults
def test_damaged_files_of_jobs_cost_time_alone(bench: Bench, packed: Outcomes) -> None:
    answer = bench.run(*words(WORDS), "--detach")
    assert answer.code == 0, answer
    until(lambda: not jobs(bench, active=True))
    first, second, *_ = sorted(bench.study.glob("jobs/*/"))
    for path in first.glob("result-*.json"):
        path.write_bytes(path.read_bytes()[:1000])
    (second / "job.json").write_text("{")
    assert bench.run(*words(WORDS)).code == 0
    assert_finished(bench, packed)  # the log of a job that died stays until the next run


@pytest.mark.faults
def test_a_job_whose_file_is_damaged_while_it_waits_is_trained_by_the_next_search(
    bench: Bench, packed: Outcomes
) -> None:
    other = slurm("sbatch", "--parsable", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null",
                  "--wrap=sleep 600").strip()  # fmt: skip
    until(lambda: "RUNNING" in slurm("squeue", "-h", "-j", other, "--format=%T"))
    driver = bench.start(*words(WORDS))
    until(lambda: jobs(bench))
    for path in bench.study.glob("jobs/*/job.json"):
        path.write_text('{"trials": [')
    slurm("scancel", other)
    answer = driver.wait()
    assert "there is no job in" in answer.out + answer.err
    answer = bench.run(*words(WORDS))
    assert answer.code == 0 and "failed" not in answer.out, answer
    assert recorded(bench.study) == len(packed)


@pytest.mark.faults
def test_a_clock_that_jumps_submits_nothing_twice(bench: Bench, packed: Outcomes) -> None:
    """The driver's and the jobs', forwards and back; polling and waiting do not break."""
    env = clock(bench, (0.0, 2 * HOUR), (2.0, -3 * HOUR), (4.0, 5 * HOUR))
    driver = bench.start(*words(SLOW), env=env)
    until(lambda: jobs(bench))
    driver.kill()
    answer = bench.run(*words(SLOW), env=clock(bench, (0.0, -9 * HOUR), (3.0, HOUR)))
    assert answer.code == 0, answer
    assert_finished(bench, packed)
    assert len(jobs(bench)) == JOBS


@pytest.mark.faults
def test_watching_goes_on_while_jobs_do(bench: Bench) -> None:
    """No driver runs, but its jobs do."""
    other = slurm("sbatch", "--parsable", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null",
                  "--wrap=sleep 600").strip()  # fmt: skip
    until(lambda: "RUNNING" in slurm("squeue", "-h", "-j", other, "--format=%T"))
    assert bench.run(*words(WORDS), "--detach").code == 0
    watching = bench.start("status", "a", "--watch")
    assert watching.lives(4.0), "a job waits"
    slurm("scancel", other)
    until(lambda: not jobs(bench, active=True))
    answer = watching.wait(40)
    assert answer.code == 0 and "pending" in answer.out and "finished" in answer.out
