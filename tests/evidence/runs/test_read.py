from pathlib import Path
from typing import Any

import pandas  # type: ignore[import-untyped]
import pytest

from sweeper.errors import BadInput
from sweeper.evidence.runs.grid import GridOptions, grid_of, ladder_runs
from sweeper.evidence.runs.read import read, study_folder
from tests.evidence.runs.grids import runs


@pytest.mark.parametrize(
    "source",
    [5, 2.5, b"lr,loss", None, True, len, {"a": [1], "b": [1, 2]}, {1, 2}, object()],
    ids=lambda source: type(source).__name__,
)
def test_what_is_no_table_is_one_message(source: Any) -> None:
    with pytest.raises(BadInput):
        ladder_runs(read(source))


def test_columns_by_name_rows_and_a_frame_are_one_source() -> None:
    frame = runs(seeds=1)
    for source in (frame, frame.to_dict("list"), frame.to_dict("records")):
        assert len(read(source)) == len(frame)
    grouped = frame.groupby(["n_embd", "lr"]).mean()
    assert {*read(grouped).frame.columns} >= {"n_embd", "lr", "val_loss"}
    levels = pandas.concat({"a": frame}, axis=1)
    with pytest.raises(BadInput, match="several levels"):
        read(levels)


def test_a_study_is_named_by_its_folder_or_in_its_root(tmp_path: Path) -> None:
    (tmp_path / "mine" / "results").mkdir(parents=True)
    (tmp_path / "mine" / "config.yaml").write_text("{}")
    assert study_folder("mine", tmp_path) == tmp_path / "mine"
    assert study_folder(tmp_path / "mine", None) == tmp_path / "mine"
    for source in (".", "-", "wandb:a/mine", "sqlite:///mine", "other", "mine/results", 3):
        assert study_folder(source, tmp_path) is None
    with pytest.raises(BadInput, match="'' is no path"):
        read("", root=tmp_path)
    with pytest.raises(BadInput):
        read("mine", root=tmp_path)  # it has no trials yet


def test_what_is_read_says_where_it_came_from(tmp_path: Path) -> None:
    frame = runs(seeds=1)
    frame.to_csv(path := tmp_path / "runs.csv", index=False)
    whole = read(path)
    some = read(path, where="n_embd > 128", columns="loss=val_loss", ignore=("seed",))
    assert whole.name == str(path) and whole.sha256 == some.sha256 and some.where
    assert some.row(0) == f"row 14 of {path}" and some.ignore == ("seed",)
    assert grid_of(ladder_runs(some), GridOptions(noise=0.01)).base.width == 256
