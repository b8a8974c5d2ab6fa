import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.engine.runner import Engine
from sweeper.sweep import base_search as cost
from tests.cli.driver import TINY, Run

Timed = Callable[[float], list[int]]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    """Makes steps take so many seconds; the numbers of trials that were timed."""
    counts: list[int] = []

    def make(seconds: float) -> list[int]:
        def estimate(self: Engine, trials: Any, *_: object) -> tuple[int, float]:
            counts.append(len(trials))
            return 1, seconds

        monkeypatch.setattr(Engine, "estimate", estimate)
        monkeypatch.setattr(cost, "FAST_FLOPS", 1.0)
        return counts

    return make


def test_a_long_search_says_so_first_with_a_smaller_command(
    sweeper: Run, workplace: Path, timed: Timed
) -> None:
    timed(1000.0)
    answer = sweeper("search", *TINY, "train.steps=40", "--root", "my runs", "--study", "a")
    lines = answer.err.splitlines()
    assert lines[0] == "This search trains 3 trials: about 33 h 20 min here."
    assert lines[2].startswith("To try it first, in about 7 h 46 min: the same with --study a-try ")
    argv = shlex.split(lines[2].partition("with ")[2])
    assert argv[2:] == ["search=lr", "train.steps=2"]
    assert sweeper("search", *TINY, "--root", "my runs", *argv[:2], argv[-1]).code == 0
    assert (workplace / "my runs/a-try/search.json").is_file()
    again = sweeper("search", *TINY, "train.steps=40", "--root", "my runs", "--study", "a")
    assert "here." not in again.err, "one that goes on tells the time that is left"


def test_a_short_search_is_not_timed(
    sweeper: Run, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = timed(0.001)
    assert "This search" not in sweeper("search", *TINY, "study=a").err and counts == [1]
    # What is small anyway is not even looked at.
    counts = timed(1000.0)
    monkeypatch.setattr(cost, "FAST_FLOPS", 2e10)
    assert "This search" not in sweeper("search", *TINY, "study=b").err and counts == [1]


def test_of_a_command_nothing_is_known(sweeper: Run, timed: Timed, workplace: Path) -> None:
    experiment: Any = SimpleNamespace(
        precision="float32",
        spec=lambda size: None,
        settings=SimpleNamespace(
            base=None,
            space={},
            search=SimpleNamespace(plan=lambda space: []),
            runner=SimpleNamespace(flops=lambda spec: 1e9, parameters=lambda spec: None),
        ),
    )
    counts = timed(1000.0)
    cost.tell_cost(experiment, None)  # type: ignore[arg-type]
    assert counts == []
