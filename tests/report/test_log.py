import json
import math
from pathlib import Path

import pytest

from sweeper.report.log import JsonLines, NoLog
from sweeper.trial import Result, Trial

TRIAL = Trial(setup={"model": {"width": 8, "depth": 1}}, hps={"eta": 1.0}, phase="eta")
RESULT = Result(trial=TRIAL, status="diverged", objective=math.inf, curve=(3.0, math.inf))


def test_no_log_writes_nothing(tmp_path: Path) -> None:
    NoLog().log(tmp_path, RESULT)
    assert list(tmp_path.iterdir()) == []


def test_a_line_a_trial_in_strict_json(tmp_path: Path) -> None:
    for _ in range(2):
        JsonLines().log(tmp_path, RESULT)
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()
    assert lines[0] == lines[1] and "Infinity" not in lines[0]
    record = json.loads(lines[0])
    assert record["curve"] == [3.0, "inf"] and record["trial"]["phase"] == "eta"
    assert Result.from_json(record).to_json() == RESULT.to_json()


def test_a_folder_that_is_gone_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        JsonLines().log(tmp_path / "nope", RESULT)
