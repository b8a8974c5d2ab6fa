import gzip
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pandas as pd
import pytest

import sweeper
from sweeper.errors import SHELL, BadInput
from sweeper.evidence.judge.request import JudgeRequest
from sweeper.evidence.runs import table as table_module
from sweeper.evidence.runs.grid import GridOptions, grid_of, ladder_runs
from sweeper.evidence.runs.loss_runs import law_runs, loss_runs_of
from sweeper.evidence.runs.read import read, study_folder
from tests.api.test_types import ODD, refused
from tests.evidence.predict.test_decision import predicted, surface
from tests.evidence.runs.grids import grid, runs
from tests.refusals import raises_config_error


def test_columns_are_found_by_name_or_told() -> None:
    frame = surface().rename(columns={"params": "n_params", "loss": "eval/loss"})
    named = {"params": "n_params", "tokens": "tokens", "loss": "eval/loss", "seed": "seed"}
    assert law_runs(read(frame)).columns == named
    other = surface().rename(columns={"params": "Size of model"})
    with raises_config_error("columns"):
        predicted(other)
    assert predicted(other, columns="params=Size of model").inputs.runs == 32
    for wrong in (
        *("size=params", "params=nothing", "params"),
        *("loss=loss,loss=params", "seed=seed,seed=", "loss=loss,params=loss"),
    ):
        with raises_config_error("columns"):
            predicted(surface(), columns=wrong)


def test_a_filter_takes_rows_or_says_why_not() -> None:
    assert predicted(surface(), where="seed == 0").inputs.runs == 16
    with raises_config_error("where"):
        predicted(surface(), where="seed > 7")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx"])
def test_tables_are_read_from_every_kind_of_file(tmp_path: Path, suffix: str) -> None:
    path, frame = tmp_path / f"runs{suffix}", surface()
    match suffix:
        case ".csv" | ".tsv":
            frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
        case ".parquet":
            pytest.importorskip("pyarrow")
            frame.assign(betas=[[0.9, 0.95]] * len(frame)).to_parquet(path)
        case ".xlsx":
            pytest.importorskip("openpyxl")
            frame.to_excel(path, index=False)
        case _:
            frame.to_json(path, orient="records", lines=suffix == ".jsonl")
    points, expected = (loss_runs_of(law_runs(read(each))) for each in (path, frame))
    np.testing.assert_allclose([points.params, points.loss], [expected.params, expected.loss])


@pytest.mark.parametrize("more", ["", ",loss"])
def test_what_would_be_misread_is_refused(tmp_path: Path, more: str) -> None:
    path = tmp_path / "runs.csv"
    head, *lines = surface().to_csv(index=False).splitlines()
    path.write_text("\n".join([head + more, *(line + ",9" for line in lines)]) + "\n")
    with pytest.raises(BadInput):
        read(path)
    with pytest.raises(BadInput, match="ends in one of"):
        table_module.kind_of(path.rename(tmp_path / "runs.pdf"))


def test_a_columns_name_may_have_commas_and_equals_signs() -> None:
    for name in ("N, total", "a=b", "N;'x'", "größe"):
        frame = surface().rename(columns={"params": name})
        runs = law_runs(read(frame, columns=f"params={name},loss=loss"))
        assert runs.columns["params"] == name


def test_truth_values_equal_losses_and_columns_twice_are_refused() -> None:
    twice = surface()
    twice.columns = ["params", "loss", "seed", "loss"]
    for frame in (surface().assign(loss=True), surface().assign(loss=3.0), twice):
        with pytest.raises(BadInput):
            predicted(frame)


HEAD = "width,lr,loss"
ROWS = [f"{width},{lr},{3 + width / 1e4 + lr}" for width in (64, 128) for lr in (0.1, 0.2, 0.4)]


@pytest.mark.parametrize(
    "lines",
    [
        ["# a, b", "#", HEAD, *ROWS],
        [HEAD.replace("width", "#width"), *ROWS],
        [HEAD, *ROWS[:3], ",,", *ROWS[3:]],
        ["\ufeff" + HEAD, *ROWS],
        [HEAD, "", *ROWS, "", ""],
    ],
)
def test_what_people_write_between_runs_is_passed_over(lines: list[str], tmp_path: Path) -> None:
    (path := tmp_path / "runs.csv").write_text("\n".join(lines), encoding="utf-8")
    table = read(path)
    assert len(table) == 6 and table.frame.dtypes.map(lambda kind: kind.kind in "if").all()


def broken(name: str, folder: Path) -> Path:
    path = folder / name
    match name.split(".")[0]:
        case "ragged":
            path.write_text("\n".join([HEAD, *ROWS, ROWS[0] + ",9,9"]))
        case "columns":
            path.write_text(",".join(f"c{n}" for n in range(100_000)) + "\n1\n")
        case "line":
            with gzip.open(path, "wb", 1) as file:
                file.write(b"a" * (1 << 24))
        case "cells":
            path.write_text("\n".join([HEAD, *ROWS * 100]))
        case "bomb":
            with gzip.open(path, "wb", 1) as file:
                file.write(f"{HEAD}\n".encode())
                for _ in range(20):
                    file.write(b"64,0.1,3\n" * 100_000)
        case "stray":
            book = pytest.importorskip("openpyxl").Workbook()
            book.active.cell(row=500, column=3, value=1)
            book.save(path)
        case "link":
            path.symlink_to("/proc/self/mem")
        case "endless":
            path.symlink_to("/proc/self/pagemap")
        case "device":
            path.symlink_to("/dev/zero")
        case "deep":
            path.write_text("[" * 100_000)
        case _:
            path.write_bytes(bytes(range(256)) * 20)
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("ragged.csv", "columns.csv", "cells.csv", "line.csv.gz", "bomb.csv.gz", "link.csv"),
        *("endless.csv", "stray.xlsx"),
        *("device.csv", "deep.json", "noise.csv", "noise.csv.xz", "noise.csv.gz"),
        *("noise.csv.bz2", "noise.json", "noise.jsonl", "noise.xlsx", "noise.parquet"),
    ],
)
def test_a_broken_table_is_one_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "LARGEST", 1 << 24)
    monkeypatch.setattr(table_module, "MOST_CELLS", 1000)
    with pytest.raises(BadInput) as caught:
        read(broken(name, tmp_path))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize("cell", ["0", "a", {"b": 1}, [1], np.ones(2)])
def test_thousands_of_columns_are_read_in_a_second(cell: object) -> None:
    rows = [line.split(",") for line in ROWS for _ in range(3)]
    frame = pandas.DataFrame(rows, columns=HEAD.split(",")).astype(float)
    cells = {f"c{n}": [cell if n % 2 else row for row in range(len(rows))] for n in range(4000)}
    start = time.process_time()
    with pytest.raises(BadInput, match="more columns") as caught:
        grid(pandas.concat([frame, pandas.DataFrame(cells)], axis=1))
    assert time.process_time() - start < 3 and len(str(caught.value)) < 2000


@pytest.mark.parametrize("wide", ["1" + "0" * 400, "1e400", "-5", "nan"])
def test_a_width_that_is_none_is_named_by_its_row(wide: str, tmp_path: Path) -> None:
    bad = [f"{wide},0.1,3", f"{wide},0.2,3"]
    (path := tmp_path / "runs.csv").write_text("\n".join([HEAD, *ROWS, *bad]))
    with pytest.raises(BadInput, match=r"row 7 .*, and 1 more rows such"):
        grid(path)


def test_a_filter_for_the_other_rows_is_named_where_there_are_some(tmp_path: Path) -> None:
    (path := tmp_path / "runs.csv").write_text("\n".join([HEAD, *ROWS]))
    for where, others in (("width >= 64", True), ("width < 128", False)):
        frame = read(path, where=where).frame
        frame.loc[frame["width"] == 64, "width"] = -64
        with pytest.raises(BadInput, match="a whole number from 1") as caught:
            grid(frame)
        assert ("takes the others" in str(caught.value)) == others


@pytest.mark.parametrize(("name", "package"), [("a.parquet", "pyarrow"), ("a.xlsx", "openpyxl")])
def test_the_package_that_a_kind_of_file_needs_is_named(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / name).write_bytes(b"PAR1")

    def lacking(*_: object) -> None:
        raise ImportError("Unable to find a usable engine\nA suitable version")

    monkeypatch.setattr(table_module, "_check_size", lambda *_: None)
    monkeypatch.setattr("pandas.read_parquet", lacking)
    monkeypatch.setattr("pandas.read_excel", lacking)
    with pytest.raises(BadInput, match=f"needs another package, {package}: install it"):
        read(path)


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
    with pytest.raises(BadInput, match="a table with a row a run"):  # no `series` to be asked for
        read(tmp_path)
    assert some.row(0) == f"row 14 of {path}" and some.ignore == ("seed",)
    assert grid_of(ladder_runs(some), GridOptions(noise=0.01)).base.width == 256


RUNS = runs(seeds=2)
NO_PATH = "\ud800"


@pytest.mark.parametrize("name", ["noise", "ignore", "columns"])
def test_of_tables(name: str) -> None:
    for value in ODD:
        assert name in refused(sweeper.judge, RUNS, **{name: value})


def test_a_table_in_memory_is_no_word_of_a_call() -> None:
    assert SHELL.call(JudgeRequest(source=RUNS, axis="depth").call) == "sweeper judge --axis depth"


@pytest.mark.parametrize(
    ("call", "keywords"),
    [
        (sweeper.judge, {"root": NO_PATH}),
        (sweeper.judge, {"study": "x"}),
        (sweeper.judge, {"series": "x"}),
        *[
            (sweeper.compare, {"by": value, "baseline": "a"})
            for value in (np.array([1, 2]), pd.Series([1]), RUNS, pd.NA, np.int64(3), 5)
        ],
        (sweeper.compare, {"by": "seed", "baseline": "0", "root": NO_PATH}),
    ],
)
def test_of_keywords_beside_a_table(call: Any, keywords: dict[str, Any]) -> None:
    names = [name for name in keywords if name != "baseline"]
    assert names[-1] in refused(call, RUNS, **keywords)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"width": 64}\n\n{"width"\n', "line 3: "),
        ("a.json", '{"a": 1}', "rows are"),
        ("a.json", "[1, 2]", "rows are"),
        ("a.json", f"[{'9' * 5000}]", "a whole number has more than 4,300 digits"),
        ("a.jsonl", "{}\n" + "[" * 100_000, "line 2: nested more than 64 deep"),
    ],
)
def test_json_that_is_no_table_says_where_and_what_is_one(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=f"cannot be read as JSON.*: {message}"):
        read(tmp_path / name)


def test_a_table_takes_three_times_the_room_of_its_file(tmp_path: Path) -> None:
    cells = [(w, 2.0**lr, s) for w in (64, 128, 256) for lr in range(-12, -6) for s in range(2**14)]
    frame = pandas.DataFrame(cells, columns=["width", "lr", "seed"])
    curve = 3 + 0.03 * (np.log2(frame.lr) + 9) ** 2 - np.log2(frame.width) / 20
    noise = np.random.default_rng(0).normal(0, 0.01, len(frame))
    frame.assign(loss=(curve + noise).round(6)).to_csv(path := tmp_path / "runs.csv", index=False)
    grid(frame[frame.seed < 2].assign(loss=curve))
    tracemalloc.start()
    grid(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * path.stat().st_size
