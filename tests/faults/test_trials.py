"""Trials that go wrong: not a number from the first step on, no end, an exit, a crash."""

import pytest

from tests.faults.harness import (
    FAULTY,
    LAUNCHERS,
    WORDS,
    Harness,
    Outcomes,
    lines,
)

pytestmark = pytest.mark.faults

NAN = [
    "data._target_=tests.faults.injection.FaultyText",
    "model._target_=tests.faults.injection.NanLlama",
]
PAIRS = ["search.seeds=2", "search.line.points=3"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_not_a_number_at_step_0_is_a_diverged_trial(harness: Harness, launcher: str) -> None:
    argv = [*WORDS, *NAN, *PAIRS, "runner.batched_trials=2"]
    poison = ["+data.fault=poison", "+data.seed=1", "+data.at=0"]
    answer = harness.run("search", *argv, *poison, *LAUNCHERS[launcher], "--json")
    assert answer.code == 1 and answer.document["finished"], answer
    by_seed = {
        seed: [r for r in lines(harness.study) if r["trial"]["seed"] == seed] for seed in (0, 1)
    }
    assert {r["status"] for r in by_seed[1]} == {"diverged"}
    assert {r["objective"] for r in by_seed[1]} == {"inf"} and all(r["steps"] for r in by_seed[1])
    assert {r["status"] for r in by_seed[0]} == {"complete"}, "its company in the batch goes on"
    assert len(by_seed[0]) == len(by_seed[1]) == 3


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_trial_that_exits_fails_alone_and_is_tried_again(
    harness: Harness, expected: Outcomes, launcher: str
) -> None:
    once = f"+data.once={harness.folder / 'once'}"
    faulty = [*FAULTY, "+data.fault=exit", "+data.at=5", once]
    answer = harness.run("search", *faulty, *LAUNCHERS[launcher])
    assert "1 trial failed and will be tried again next time: SystemExit: 7" in answer.out
    assert [r["status"] for r in lines(harness.study)].count("failed") == 1
    assert harness.run("search", *WORDS, *LAUNCHERS[launcher]).code == 0
    kept = [line for line in lines(harness.study) if line["status"] != "failed"]
    assert len(kept) == len(lines(harness.study)) - 1
    assert {line["key"] for line in kept} >= expected.keys()
