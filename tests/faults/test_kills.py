"""Processes that are killed at random, again and again, and two drivers of one study at once."""

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sweeper.launch.executor import MAX_FALSE_STARTS
from sweeper.study.lock import live_holder
from tests.cli.driver import make_workplace
from tests.faults.harness import (
    LAUNCHERS,
    LOCAL,
    MEASURED,
    SEEDS,
    SIGNALS,
    WORDS,
    Harness,
    Outcomes,
    assert_whole,
    forget,
    lines,
    outcomes,
    recorded,
)
from tests.waiting import until

pytestmark = pytest.mark.faults
LONGEST = {"inline": 2.5, "local": 8.0}
"""Seconds within which a driver is killed."""


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("launcher", [*LAUNCHERS, "in turn"])
def test_the_driver_is_killed_again_and_again(
    harness: Harness, expected: Outcomes, launcher: str, seed: int
) -> None:
    """Half of the kills wait for a new result, so that every run of the tests sees some."""
    generator, kept = random.Random(seed), set[str]()
    for kill in range(2 + generator.randrange(3)):
        now_by = [*LAUNCHERS][kill % 2] if launcher == "in turn" else launcher
        argv = ["search", *WORDS, *LAUNCHERS[now_by]]
        driver, before = harness.start(*argv), len(kept)
        if kill % 2:
            until(lambda d=driver, n=before: recorded(harness.study) > n or not d.lives(), 60)  # type: ignore[misc]
            time.sleep(generator.uniform(0.0, 0.3))
        else:
            driver.lives(generator.uniform(0.0, LONGEST[now_by]))
        driver.kill()
        now = set(outcomes(harness.study)) if harness.study.is_dir() else set()
        assert kept <= now, "what was recorded is safe"
        kept = now
    answer = harness.run(*argv)
    assert answer.code == 0 and not answer.crashed, answer
    assert_whole(harness, expected)


INDEPENDENT = ["search=independent", "search.runs=12", "search.seeds=1", "search.combine_seeds=2"]


@pytest.mark.parametrize("search", ["lr", "independent"])
def test_batches_of_a_measured_size_are_the_same_after_kills(harness: Harness, search: str) -> None:
    """In float32, where another batch rounds otherwise; and so where a search is repeated."""
    argv = ["search", *MEASURED]
    if search == "independent":
        argv = [word for word in argv if not word.startswith("search")]
        argv = ["search", *argv, *INDEPENDENT, "parameterization=umup"]
    answer = harness.run(*argv)
    assert answer.code == 0, answer
    undisturbed = outcomes(harness.study)
    record = (harness.study / "batches.jsonl").read_text().splitlines(keepends=True)
    assert any('"keys"' in line and line.count('", "') > 1 for line in record), "no two together"
    shutil.rmtree(harness.study / "results")
    answer = harness.run(*argv)
    assert answer.code == 0 and outcomes(harness.study) == undisturbed, "repeated"

    generator = random.Random(search)
    for _ in range(max(2, SEEDS // 10)):
        forget(harness.study)
        harness.study.mkdir(parents=True)
        # Another study, of the same sizes: what was formed is not known to it.
        sizes = [line for line in record if '"measured"' in line]
        (harness.study / "batches.jsonl").write_text("".join(sizes))
        for _ in range(3):
            driver = harness.start(*argv)
            driver.lives(generator.uniform(0.5, 5.0))
            driver.kill()
        answer = harness.run(*argv)
        assert answer.code == 0, answer
        assert_whole(harness, undisturbed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_workers_are_killed_at_random(harness: Harness, expected: Outcomes, seed: int) -> None:
    """Never so often in a row that none becomes ready: that is no accident, and ends the run."""
    generator = random.Random(seed)
    more = [*LOCAL, "launcher.retries=9"]
    driver, kills, in_a_row, before = harness.start("search", *WORDS, *more), 0, 0, 0
    while driver.lives(generator.uniform(0.1, 1.5)):
        workers, now = harness.workers(), recorded(harness.study)
        # Earlier results say nothing of the workers that are starting now.
        in_a_row, before = (0, now) if now > before else (in_a_row, before)
        if workers and in_a_row < MAX_FALSE_STARTS - 1:
            with suppress(ProcessLookupError):
                os.kill(generator.choice(workers), signal.SIGKILL)
            kills, in_a_row = kills + 1, in_a_row + 1
    answer = driver.wait()
    assert answer.code == 0 and kills, answer
    assert_whole(harness, expected)


TRANSFER = ["transfer", "--study", "a", "--to-width", "64"]
SERIES = {
    "settle": [*TRANSFER, "--validate", "--settle", "--budget", "20", "transfer.widths=[16,24]"],
    "horizons": [*TRANSFER, "--horizons", "transfer.widths=[16,24]", "transfer.steps=[20,40]"],
    "compare": ["compare", "a", "b", "--settle", "--budget", "8"],
}
"""Verbs that train beside a search, the branches of horizons from common trunks."""
OF_THE_RUN = {"sum", "time", "date", "seconds", "command", "provenance", "versions"}
"""What a document says of when and how it was made."""
LONG = 1200.0
"""Seconds that one of them may take: its workers start anew for every study and round."""


def documents(root: Path) -> dict[str, Any]:
    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kept(v) for name, v in value.items() if name not in OF_THE_RUN}
        return [kept(each) for each in value] if isinstance(value, list) else value

    paths = [*root.glob("*/transfer/*/*.json"), *root.glob("comparisons/*/*.json")]
    return {str(path.relative_to(root)): kept(json.loads(path.read_text())) for path in paths}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workplace(tmp_path_factory.mktemp("two"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = Harness(folder)
        more = ["search.line.points=3", "train.schedule=wsd", "train.steps=40"]
        for study, kind in (("a", "mup"), ("b", "standard")):
            argv = [*WORDS[:-1], *more, f"study={study}", f"parameterization={kind}"]
            assert made.run("search", *argv).code == 0
    return folder


UNDISTURBED: dict[str, tuple[Outcomes, Outcomes, dict[str, Any]]] = {}


@pytest.mark.parametrize("seed", range(max(2, SEEDS // 10)))
@pytest.mark.parametrize("victim", ["driver", "workers", "both"])
@pytest.mark.parametrize("verb", SERIES)
def test_what_trains_beside_a_search_is_killed(
    harness: Harness, two: Path, verb: str, victim: str, seed: int
) -> None:
    """Any signal, at random, and run again until it ends: as if nothing had happened.

    Every other driver trains by itself, where a kill meets it in the middle of a step.
    """
    place, generator = harness.folder, random.Random(f"{verb} {victim} {seed}")
    scratch = place / "scratch"
    scratch.mkdir()
    environment = {"TMPDIR": str(scratch)}

    def begin() -> None:
        shutil.rmtree(place / "runs", ignore_errors=True)
        shutil.copytree(two / "runs", place / "runs")

    def left_behind() -> tuple[Outcomes, Outcomes, dict[str, Any]]:
        a, b = place / "runs/a", place / "runs/b"
        return outcomes(a), outcomes(b), documents(place / "runs")

    alone = victim == "driver" and seed % 2 == 0
    argv = [*SERIES[verb], *(LAUNCHERS["inline"] if alone else [*LOCAL, "launcher.retries=9"])]
    if verb not in UNDISTURBED:
        begin()
        answer = harness.start(*SERIES[verb], env=environment).wait(LONG)
        assert answer.code == 0, answer
        UNDISTURBED[verb] = left_behind()
    begin()
    for _ in range(1 + generator.randrange(3)):
        driver = harness.start(*argv, env=environment)
        driver.lives(generator.uniform(0.5, 6.0))
        number = generator.choice(SIGNALS)
        doomed = harness.workers()[:2] if victim != "driver" else []
        doomed += [driver.pid] if victim != "workers" else []
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if victim != "workers":
            until(lambda d=driver: not d.lives(), 60)  # type: ignore[misc]
        else:
            assert driver.wait(LONG).code == 0
    answer = harness.start(*argv, env=environment).wait(LONG)
    assert answer.code == 0 and not answer.crashed, answer
    assert left_behind() == UNDISTURBED[verb]
    until(lambda: not harness.processes(), 60)  # a worker that still imports notices late
    for name in ("a", "b"):
        study = place / "runs" / name
        counts = Counter(line["key"] for line in lines(study))
        assert set(counts.values()) == {1} and live_holder(study) is None
        assert not [*study.glob("jobs/*"), *study.glob("checkpoints/*"), *study.rglob(".*.tmp")]
    assert not [*scratch.iterdir()]
