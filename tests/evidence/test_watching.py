"""What only looks on is killed: `follow`, and the process that writes the page of a study."""

import json
import os
import random
import re
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.evidence.made import prediction, run
from tests.faults.harness import SEEDS, SIGNALS, Harness

pytestmark = pytest.mark.faults
FOLLOW = ["follow", "--metric", "jsonl:log.jsonl:loss", "--prediction"]


def last_page(folder: Path) -> str:
    return re.sub(r"<svg.*?</svg>", "", (folder / "w/follow.html").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("seed", range(max(2, SEEDS // 10)))
def test_following_is_killed(harness: Harness, seed: int) -> None:
    generator, log = random.Random(seed), harness.folder / "log.jsonl"
    losses = enumerate(run(seed).tolist())
    lines = [json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses]
    for place in ("kept", "killed"):
        prediction().write(harness.folder / place / "w")
    log.write_text("".join(lines))
    begun = time.monotonic()
    kept = harness.run(*FOLLOW, "kept/w/prediction.json", "--once")
    seconds = time.monotonic() - begun
    assert kept.code in (0, 3), kept
    log.write_text("")
    at, arguments = 0, [*FOLLOW, "killed/w/prediction.json"]
    for _ in range(12):
        driver = harness.start(*arguments)
        # The last of them meet a run that has ended.
        end = time.monotonic() + generator.uniform(0.2, 1.1) * seconds
        while driver.lives(0.05) and time.monotonic() < end:
            at, before = min(len(lines), at + generator.randrange(60)), at
            with log.open("a") as file:
                file.writelines(lines[before:at])
        number = generator.choice(SIGNALS)
        with suppress(ProcessLookupError):
            os.kill(driver.pid, number)
        answer = driver.wait()
        assert not answer.crashed, (number, answer)
    log.write_text("".join(lines))
    answer = harness.run(*arguments)
    assert answer.code == kept.code and not answer.crashed, answer
    assert last_page(harness.folder / "killed") == last_page(harness.folder / "kept")
    assert 'http-equiv="refresh"' not in (harness.folder / "killed/w/follow.html").read_text()
    assert not list(harness.folder.rglob(".*.tmp"))
