import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.records import from_json, to_json
from sweeper.study.logs.log import JsonLines, Ledger, loss_curve, notice_of, plan_line
from sweeper.study.logs.tensorboard import TensorBoard
from sweeper.trial import Result, Trial, curve
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.report import samples
from tests.specs import spec_of
from tests.study.study_files import logged as result

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


there = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


@there
def test_a_folder_a_trial_with_curve_outcome_and_hyperparameters(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    for number in range(20):
        TensorBoard().log(tmp_path, result(number))
    assert len(list((tmp_path / "tensorboard" / "eta").iterdir())) == 10
    events = read(tmp_path / "tensorboard" / "eta" / result(2).key)
    points = [(event.step, event.value) for event in events.Scalars("loss")]
    assert points == [(3, 3.0), (6, 2.75), (8, 2.5), (10, 2.25)]
    assert [(e.step, e.value) for e in events.Scalars("objective")] == [(10, 2.5)]
    assert "heldout" not in events.Tags()["scalars"]
    assert events.Tensors("status/text_summary")[0].tensor_proto.string_val == [b"complete"]
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = HParamsPluginData.FromString(content).session_start_info.hparams
    fields = {name: value.number_value for name, value in values.items()}
    assert fields == {"eta": 4.0, "width": 8.0, "depth": 2.0, "seed": 1.0}


@there
def test_nothing_is_written_twice_and_another_outcome_takes_its_place(tmp_path: Path) -> None:
    failed = result(0, status="failed", objective=math.nan, curve=(), steps=0, error="no memory")
    TensorBoard().log(tmp_path, failed)
    TensorBoard().log(tmp_path, result(0))
    before = sorted(tmp_path.rglob("*"))
    TensorBoard().log(tmp_path, result(0))
    assert sorted(tmp_path.rglob("*")) == before
    (file,) = (tmp_path / "tensorboard" / "eta").glob("*/events*")
    assert len(read(file.parent).Scalars("loss")) == 4


@there
def test_a_folder_without_its_line_is_written_anew(tmp_path: Path) -> None:
    TensorBoard().log(tmp_path, result(0))
    (tmp_path / "tensorboard" / "logged").write_text("cut sho")
    TensorBoard().log(tmp_path, result(0))
    assert len(list((tmp_path / "tensorboard" / "eta").glob("*/events*"))) == 1


@there
def test_the_plan_and_its_verdict_are_texts(tmp_path: Path) -> None:
    folder = samples.study(tmp_path / "mine", w256=samples.validation())
    for _ in range(2):
        TensorBoard().plan(folder, folder / "transfer" / "w256-d2")
    (file,) = (folder / "tensorboard" / "plan" / "w256-d2").iterdir()
    events = read(file.parent)
    assert events.Tensors("transfer over width/text_summary")[0].tensor_proto.string_val == [
        b"holds"
    ]
    assert b'"parameters"' in events.Tensors("plan/text_summary")[0].tensor_proto.string_val[0]


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with raises_config_error("_target_", "sweeper.study.logs.tensorboard.TensorBoard", golden):
        TensorBoard()
