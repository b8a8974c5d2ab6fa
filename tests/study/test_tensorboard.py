import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

from sweeper.study.logs.tensorboard import TensorBoard
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.report import samples
from tests.study.study_files import logged as result

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
