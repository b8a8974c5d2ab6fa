"""A clock that jumps by hours while a study is searched."""

from __future__ import annotations

import pytest

from tests.faults.bench import (
    INLINE_QUICK,
    LAUNCHERS,
    SLOW,
    Bench,
    Outcomes,
    assert_whole,
    lines,
    until,
)
from tests.faults.clock import VARIABLE

HOUR = 3600.0


def clock(bench: Bench, *jumps: tuple[float, float]) -> dict[str, str]:
    """The environment of commands, and of all processes below them, with such a clock."""
    site = bench.folder / "site"
    site.mkdir(exist_ok=True)
    code = "from tests.faults import clock\nclock.install()\n"
    (site / "sitecustomize.py").write_text(code)
    told = ",".join(f"{after}:{jump}" for after, jump in jumps)
    return {VARIABLE: told, "SITE": str(site)}


@pytest.mark.parametrize("launcher", INLINE_QUICK)
def test_a_clock_that_jumps_changes_no_result(
    bench: Bench, expected: Outcomes, launcher: str
) -> None:
    words = ["search", *SLOW, *LAUNCHERS[launcher]]
    ahead = clock(bench, (0.0, 2 * HOUR))
    driver = bench.start(*words, env=ahead)
    until(lambda: list(bench.study.glob("results/*.jsonl")) and lines(bench.study))
    driver.kill()
    behind = clock(bench, (0.0, -3 * HOUR), (1.0, 4 * HOUR), (2.0, -5 * HOUR))
    driver = bench.start(*words, env=behind)
    until(lambda: list(bench.study.glob("checkpoints/*.checkpoint")))  # written by time
    assert bench.run("status", "a", env=clock(bench, (0.0, 9 * HOUR))).code == 0
    answer = driver.wait()
    assert answer.code == 0 and "Traceback" not in answer.err, answer
    times = [line["finished_at"] for line in lines(bench.study)]
    assert max(times) - min(times) > 4 * HOUR and times != sorted(times)
    assert all(0 < line["seconds"] < 100 for line in lines(bench.study))
    assert_whole(bench, expected)
