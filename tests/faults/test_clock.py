"""A clock that jumps by hours while a study is searched."""

import pytest

from tests.faults.clock import VARIABLE
from tests.faults.harness import LAUNCHERS, SLOW, Harness, Outcomes, assert_whole, lines
from tests.waiting import until

pytestmark = pytest.mark.faults

HOUR = 3600.0


def clock(harness: Harness, *jumps: tuple[float, float]) -> dict[str, str]:
    site = harness.folder / "site"
    site.mkdir(exist_ok=True)
    code = "from tests.faults import clock\nclock.install()\n"
    (site / "sitecustomize.py").write_text(code)
    jumps_text = ",".join(f"{after}:{jump}" for after, jump in jumps)
    return {VARIABLE: jumps_text, "SITE": str(site)}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_clock_that_jumps_changes_no_result(
    harness: Harness, expected: Outcomes, launcher: str
) -> None:
    argv = ["search", *SLOW, *LAUNCHERS[launcher]]
    ahead = clock(harness, (0.0, 2 * HOUR))
    driver = harness.start(*argv, env=ahead)
    until(lambda: list(harness.study.glob("results/*.jsonl")) and lines(harness.study))
    driver.kill()
    behind = clock(harness, (0.0, -3 * HOUR), (1.0, 4 * HOUR), (2.0, -5 * HOUR))
    driver = harness.start(*argv, env=behind)
    until(lambda: list(harness.study.glob("checkpoints/*.checkpoint")))  # written by time
    assert harness.run("status", "a", env=clock(harness, (0.0, 9 * HOUR))).code == 0
    answer = driver.wait()
    assert answer.code == 0 and not answer.crashed, answer
    times = [line["finished_at"] for line in lines(harness.study)]
    assert max(times) - min(times) > 4 * HOUR and times != sorted(times)
    assert all(0 < line["seconds"] < 100 for line in lines(harness.study))
    assert_whole(harness, expected)
