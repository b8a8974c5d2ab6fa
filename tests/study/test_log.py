import json
import math
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sweeper.records import from_json, to_json
from sweeper.study.logs.log import JsonLines, Ledger, loss_curve, notice_of, plan_line
from sweeper.trial import Result, Trial, curve
from tests.golden import Golden
from tests.report import samples
from tests.specs import spec_of

TRIAL = Trial(spec=spec_of({"model": {"width": 8, "depth": 1}}), log2_hps={"eta": 1.0}, phase="eta")
RESULT = Result(trial=TRIAL, status="diverged", objective=math.inf, curve=(3.0, math.inf))


def test_a_line_a_trial_in_strict_json_once(tmp_path: Path) -> None:
    for _ in range(2):
        JsonLines().log(tmp_path, RESULT)
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()
    assert len(lines) == 1 and "Infinity" not in lines[0]
    record = json.loads(lines[0])
    assert record["curve"] == [3.0, "inf"] and record["trial"]["phase"] == "eta"
    assert to_json(from_json(Result, record)) == to_json(RESULT)


def test_a_line_cut_short_is_taken_off_and_what_was_whole_stays(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger(path).add("one")
    with path.open("a") as file:
        file.write("tw")
    ledger = Ledger(path)
    assert "one" in ledger and "tw" not in ledger and "two" not in ledger
    ledger.add("two")
    ledger.add("two")
    assert path.read_text() == "one\ntwo\n"


@given(st.lists(st.floats(0, 9, width=16), min_size=1, max_size=350))
def test_a_curve_s_points_lie_where_their_stretches_end(losses: list[float]) -> None:
    means = tuple(curve(np.array(losses)))
    points = loss_curve(
        Result(trial=TRIAL, status="complete", objective=1.0, curve=means, steps=len(losses))
    )
    assert points[-1][0] == len(losses) and tuple(loss for _, loss in points) == means
    starts = [0, *(step for step, _ in points[:-1])]
    for start, (end, loss) in zip(starts, points, strict=True):
        assert math.isclose(sum(losses[start:end]) / (end - start), loss, abs_tol=1e-5)


def test_a_failure_is_told_and_a_sentence_passed_on(golden: Golden) -> None:
    def fails() -> None:
        raise OSError("the disk is full")

    golden.says(notice_of(fails))
    assert notice_of(lambda: "go") == "go" and notice_of(lambda: None) is None


def test_a_plan_is_another_by_its_numbers_and_its_verdict_alone(tmp_path: Path) -> None:
    target = samples.study(tmp_path / "a", w64=None) / "transfer" / "w64-d2"
    lines = [plan_line(target)]
    made = samples.plan(64)
    for change in ({"source": {"date": "later"}}, {"hps": {"eta": 9.0}}):
        samples.write(target / "plan.json", made | change)
        lines.append(plan_line(target))
    samples.write(target / "validation.json", samples.validation())
    lines.append(plan_line(target))
    assert lines[0] == lines[1] and len(set(lines)) == 3
