"""`sweeper judge`: tables of runs with known optima, and tables that others published."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest

import sweeper as package
from tests.cli.driver import Run, assert_refused
from tests.evidence.runs.grids import ETAS, WIDTHS, runs

MEGATRON = """parameterization,width,optimal_lr
standard,128,0.000977
mup,128,0.000977
standard,256,0.000488
mup,256,0.000977
"""
"""Best learning rates on a grid of factors of 2, pull request 3058 of NVIDIA/Megatron-LM."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    runs().to_csv(path, index=False)
    return path


def test_a_grid_comes_by_a_pipe(table: Path, sweeper: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(table.read_bytes())))
    document = sweeper("judge", "-", "--json").document
    assert document["answer"] == "holds" and document["source"] == "stdin"
    assert Path("runs/judged/stdin/judge.json").exists()


@pytest.mark.usefixtures("drawn")
def test_a_grid_whose_optima_stay_holds_and_one_whose_fall_fails(
    table: Path, sweeper: Run, tmp_path: Path
) -> None:
    words = ("--columns", "width=n_embd,eta=lr,loss=val_loss,seed=seed", "--to-width", "2048")
    answer = sweeper("judge", str(table), *words, "--json", "--out", str(tmp_path / "out"))
    assert answer.code == 0, answer.err
    document = answer.document
    (verdict,) = document["axes"]
    assert document["answer"] == verdict["answer"] == verdict["target"]["answer"] == "holds"
    assert [size["size"]["width"] for size in verdict["sizes"]] == [*WIDTHS]
    for size in verdict["sizes"]:
        assert size["optimum_log2"]["value"] == pytest.approx(-7, abs=0.1)
    for name in ("judge.html", "judge.json", "curves-width.png", "curves-width.svg"):
        assert (tmp_path / "out" / name).stat().st_size > 100
    assert "holds" in (tmp_path / "out" / "judge.html").read_text()
    runs((-5.0, -6.0, -7.0, -8.0)).to_csv(table, index=False)
    answer = sweeper("judge", str(table), "--strict", "--out", str(tmp_path / "out"))
    assert answer.code == 3 and "The transfer over width fails" in answer.out


def test_the_learning_rate_that_was_asked_for_is_said(tmp_path: Path, sweeper: Run) -> None:
    """In plain numbers at its end: the transferred one, and the best one at the target."""
    falling = runs((-5.0, -6.0, -7.0, -8.0))
    falling.to_csv(path := tmp_path / "runs.csv", index=False)
    answer = sweeper("judge", str(path), "--to-width", "4096", "--out", str(tmp_path / "out"))
    said = " ".join(answer.out.split())
    assert "Trend over 4 widths: eta goes as width^(-1.0" in said
    assert "The transferred learning rate: 0.031" in said
    assert "at width 4096 the best one is predicted to be 0.000" in said
    assert "transfer.correct" not in said and "plan" not in said
    predicted = answer_of(tmp_path)["predicted"]
    assert predicted["low"] < -10 < predicted["high"]
    told = str(package.judge(falling, to_width=4096))
    assert "Trend over 4 widths" in told and "is predicted to be 0.00" in told
    stays = package.judge(runs(), to_width=4096)
    assert "octaves from the transferred learning rate, which costs" in str(stays)
    assert "the plan's eta" not in str(stays.document)
    # Without a target there is one number; of logarithms it is plain, too; at an end it is a bound.
    logs = runs().assign(log2_lr=lambda table: np.log2(table.lr)).drop(columns="lr")
    assert "The transferred learning rate: 0.0078" in str(package.judge(logs))
    assert "predicted" not in str(package.judge(logs))
    low = str(package.judge(runs((-12.0,) * 4)))
    assert "rate: 0.000977, a bound: the best one of the base lies at or below it." in low


def answer_of(folder: Path) -> Any:
    return json.loads((folder / "out" / "judge.json").read_text())


def test_one_seed_of_few_rates_cannot_say_and_says_which_runs_would_tell() -> None:
    few = runs(seeds=1, etas=(-8.0, -7.0, -6.0))
    judged = package.judge(few)
    assert judged.answer == "cannot say yet" and "nothing shows the noise" in str(judged)
    found = judged.judged.next_runs
    assert [one.size["width"] for one in found] == [*WIDTHS] and all(o.runs == 1 for o in found)
    assert all(-7.0 in one.etas for one in found)
    assert package.judge(runs(seeds=1), noise=0.003).answer == "holds"
    assert package.judge(runs(seeds=1), noise=1.0).answer == "cannot say yet"


def test_the_noise_of_one_seed_is_what_smooth_curves_leave() -> None:
    stays, falls = package.judge(runs(seeds=1)), package.judge(runs((-5.0, -6, -7, -8), seeds=1))
    assert (stays.answer, falls.answer) == ("holds", "fails")
    assert "by what smooth curves leave" in stays.judged.noise
    assert stays.judged.verdict is not None
    for size in stays.judged.verdict.sizes:
        assert size.optimum_log2.low < -7 < size.optimum_log2.high < size.optimum_log2.low + 1


def test_runs_that_came_apart_at_a_finite_loss_are_told_and_bend_nothing() -> None:
    frame = runs()
    infinite, finite = frame.copy(), frame.copy()
    gone = frame.lr > 2.0**-5.75
    infinite.loc[gone, "val_loss"] = np.inf
    finite.loc[gone, "val_loss"] = 6.0 + frame.val_loss[gone] / 10
    expected, found = package.judge(infinite).judged.verdict, package.judge(finite).judged.verdict
    assert expected is not None and found is not None
    assert found.answer == expected.answer == "holds"
    for one, other in zip(found.sizes, expected.sizes, strict=True):
        assert (one.optimum_log2, one.loss_gap) == (other.optimum_log2, other.loss_gap)
        assert one.cliff is not None and one.cliff.log2 == -5.5 and one.cliff.above > 6
    assert "leave the basin by a jump" in found.note


def test_a_rate_far_below_every_optimum_is_answered_with_what_it_costs(
    table: Path, sweeper: Run, tmp_path: Path
) -> None:
    words = ("--eta", "0.002", "--to-width", "4096", "--strict", "--out", str(tmp_path / "out"))
    answer = sweeper("judge", str(table), *words)
    said = " ".join(answer.out.split())
    assert answer.code == 3 and answer_of(tmp_path)["answer"] == "fails"
    assert "At width 4096, no: the best is predicted at 0.0078" in said
    assert "0.002 lies 2.0 octaves below it and costs about 0.3" in said
    words = ("--eta", "0.0078", "--to-width", "4096", "--strict", "--out", str(tmp_path / "out"))
    assert sweeper("judge", str(table), *words).code == 0


def test_what_is_lost_at_the_target_stands_beside_an_open_answer() -> None:
    judged = package.judge(runs(seeds=1, curvature=0.02, noise=0.02), to_width=4096)
    trend = judged.judged.trend
    assert judged.answer == "cannot say yet" and trend is not None
    assert 0 <= trend.predicted_gap.low <= trend.predicted_gap.value <= trend.predicted_gap.high
    assert trend.predicted_gap.value <= trend.loss_gap.high
    assert "At width 4096 the predicted one would lose 0.0" in str(judged)


def test_a_target_that_is_the_base_or_of_no_size_of_the_runs_is_said() -> None:
    assert f"the best at width {WIDTHS[0]}, which is the base" in str(
        package.judge(runs(), to_width=WIDTHS[0])
    )
    batches = runs().rename(columns={"n_embd": "batch_size"})
    with pytest.raises(package.BadInput, match="add axis='batch_size'"):
        package.judge(batches, to_width=4096)
    judged = package.judge(batches, to_width=4096, axis="batch")
    assert judged.judged.to == 4096


def test_a_ladder_goes_along_parameters() -> None:
    frame = runs(seeds=1).assign(N=lambda table: 12 * table.n_embd**2)
    along = package.judge(frame, axis="params").judged
    across = package.judge(frame, columns={"params": "N"}).judged
    assert (along.axis, across.axis) == ("params", "width")
    assert along.verdict is not None and along.answer == across.answer == "holds"
    sizes = [size.size for size in along.verdict.sizes]
    assert [size.params for size in sizes] == [12 * width**2 for width in WIDTHS]
    assert [size.width for size in sizes] == [*WIDTHS]


def test_a_loss_that_stands_under_two_rates_is_a_copy() -> None:
    frame = runs(seeds=1).drop(columns="seed")
    copied = frame.iloc[[5]].assign(lr=frame.lr.iloc[8])
    judged = package.judge(pandas.concat([frame, copied], ignore_index=True)).judged
    assert judged.runs == len(frame) and "as copies do" in str(judged.remarks)
    assert judged.verdict == package.judge(frame).judged.verdict


def test_a_far_value_is_no_candidate_for_the_optimum_by_a_given_noise() -> None:
    """A noise that might rise 22 times by there made one of it: ±2.5 octaves, on a parabola."""
    frame = runs((-8.3,) * 4, etas=np.arange(-12.0, -4.0), seeds=1, curvature=0.02, noise=0.004)
    for size in package.judge(frame, noise=0.006).judged.axes[0].sizes:
        assert size.optimum_log2.high - size.optimum_log2.low < 1.2


def test_advice_and_the_list_of_runs_say_the_same() -> None:
    frame = runs((-8.3,) * 4, etas=np.arange(-12.0, -4.0), seeds=1, curvature=0.02)
    judged = package.judge(frame, noise=0.03).judged
    assert judged.verdict is not None and "on this ladder" not in judged.verdict.todo
    judged = package.judge(frame, noise=0.1).judged
    assert judged.verdict is not None and "do not count on seeds" in judged.verdict.todo
    assert "A finer grid helps" in judged.verdict.todo
    listed = {(one.why, one.runs) for one in judged.next_runs}
    assert listed == {("a finer grid", 1)}
    total = sum(one.runs * len(one.etas) for one in judged.next_runs)
    assert f"({total} runs more, at width 128" in judged.verdict.todo


@pytest.mark.usefixtures("drawn")
def test_only_widths_that_fail_are_said_to_fail_and_pictures_name_the_loss() -> None:
    judged = package.judge(runs((-5.0, -5.0, -7.0, -8.0)))
    assert "The transfer over width fails at width 512 and 1024, of widths 128 to 1024" in str(
        judged
    )
    assert judged.plot()[0].get_ylabel() == "val_loss (nats)"


def test_a_text_without_quotes_in_a_filter_is_shown_with_them() -> None:
    frame = runs().assign(status="finished")
    for where in ("status==finished", "n_embd > 100 and status == finished"):
        with pytest.raises(package.BadInput, match='status == "finished"'):
            package.judge(frame, where=where)
    with pytest.raises(package.BadInput, match="a condition on"):
        package.judge(frame, where="stat == finished")


def test_repeated_cells_say_what_one_seed_cannot() -> None:
    frame = runs(seeds=4).drop(columns="seed")
    few = frame[(frame.groupby(["n_embd", "lr"]).cumcount() == 0) | (frame.lr == 2.0**-7)]
    judged = package.judge(few)
    assert judged.answer == "holds" and "by the repeated cells" in str(judged)


def test_an_optimum_that_is_not_bracketed_is_a_bound() -> None:
    judged = package.judge(runs((-7.0, -7.0, -4.2, -3.0)))
    ends = judged.judged.ends
    assert "width 512 and 1024 is not bracketed: it lies at or above 0.0625" in ends[0]
    assert len(ends) == 1
    low = package.judge(runs((-12.0, -12.0, -12.0, -12.0))).judged
    assert low.answer == "cannot say yet" and "at or below 0.000977" in low.ends[0]
    assert all(max(one.etas) < -10 for one in low.next_runs)


def test_a_bound_is_shown_as_one_and_every_size_that_lacks_runs_is_listed(
    tmp_path: Path, sweeper: Run
) -> None:
    """As of a curve that ends before its optimum no shift is known; all on one screen."""
    runs((-3.0, -3.0, -3.0, -7.0)).to_csv(path := tmp_path / "runs.csv", index=False)
    answer = sweeper("judge", str(path), "--to-width", "4096", "--out", str(tmp_path / "out"))
    assert answer.code == 0
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert any(line.startswith("128 ≥-4.00 0 0") for line in lines)
    assert any(line.startswith("256 ≥-4.00 - 0.0") for line in lines)
    assert any(line.startswith("1024 -7.0") and " ≤-3.0" in line for line in lines)
    runs((-12.0,) * 4).to_csv(path, index=False)
    answer = sweeper("judge", str(path), "--out", str(tmp_path / "out"))
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert any(line.startswith("1024 ≤-10.00 - 0.0") for line in lines)
    assert any(line.startswith("128, 256, 512, 1024 0.000") for line in lines)
    assert "Not shown: 1 row (" not in answer.out
    (verdict,) = answer_of(tmp_path)["axes"]
    assert {size["side"] for size in verdict["sizes"]} == {-1}


def test_one_width_transfers_nothing_and_asks_for_more() -> None:
    frame = runs()
    judged = package.judge(frame[frame.n_embd == 256])
    assert judged.answer == "cannot say yet" and "nothing transfers" in str(judged)
    assert [one.size for one in judged.judged.next_runs] == [{"width": 512}, {"width": 1024}]


def test_a_shift_that_an_error_hides_is_not_judged_by_it() -> None:
    frame = runs((-7.0, -7.2, -7.1, -8.4), seeds=2, noise=0.15)
    assert package.judge(frame).answer != "holds"


def test_optima_alone_are_refused(tmp_path: Path, sweeper: Run) -> None:
    (path := tmp_path / "optima.csv").write_text(MEGATRON)
    assert_refused(sweeper("judge", str(path)), "judge takes runs with their losses")
    asked = sweeper("judge", str(path), "--columns", "optimum=optimal_lr")
    assert_refused(asked, "judge takes runs with their losses")


BAD = {
    "empty": "n_embd,lr,val_loss\n",
    "nothing": "",
    "text": "n_embd,lr,val_loss\n128,high,3.0\n256,0.1,3.1\n",
    "units": "n_embd,lr,val_loss\n128,3,3.0\n128,0.0003,3.1\n256,0.0003,3.1\n",
    "missing": "n_embd,lr\n128,0.1\n",
    "differ": "n_embd,lr,seed,val_loss\n128,0.1,0,3.0\n128,0.1,0,3.5\n",
    "batch": "n_embd,lr,batch,val_loss\n128,0.1,8,3.0\n256,0.1,16,3.5\n",
    "no loss": "n_embd,lr,val_loss\n128,0.1,\n256,0.1,\n",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_message(name: str, tmp_path: Path, sweeper: Run) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(BAD[name])
    assert_refused(sweeper("judge", str(path), "--out", str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_other_files_are_read_or_refused(table: Path, tmp_path: Path, sweeper: Run) -> None:
    frame = runs()
    frame.to_csv(tmp_path / "runs.tsv", sep="\t", index=False)
    frame.to_json(tmp_path / "runs.jsonl", orient="records", lines=True, double_precision=15)
    optima = []
    for name in ("tsv", "jsonl"):
        assert sweeper("judge", str(tmp_path / f"runs.{name}"), "--out", str(tmp_path)).code == 0
        (verdict,) = json.loads((tmp_path / "judge.json").read_text())["axes"]
        optima.append([size["optimum_log2"]["value"] for size in verdict["sizes"]])
    assert optima[0] == pytest.approx(optima[1], abs=1e-9)
    assert_refused(sweeper("judge", str(tmp_path / "absent.csv")))
    assert_refused(sweeper("judge", str(table), "--where", "optimizer == 3"))
    assert_refused(sweeper("judge", str(table), "--axis", "height"))
    assert_refused(sweeper("judge", str(table), "--columns", "width=n_emb"))


SOME_AXES = ("batch_size", "tokens", "size")
"""Those whose flag, columns or sizes are told in a way of their own."""


def test_a_verdict_in_a_notebook_draws_itself(table: Path, tmp_path: Path) -> None:
    judged = package.judge(
        table, columns={"width": "n_embd", "eta": "lr", "loss": "val_loss"}, to_width=4096
    )
    assert judged.answer == "holds" and "<svg" in judged._repr_html_()
    assert [*judged.to_dataframe()["width"]] == [str(width) for width in WIDTHS]
    assert judged.document["axes"][0]["target"]["size"] == 4096
    assert judged.save(tmp_path / "saved")["page"].is_file()


@pytest.mark.parametrize(
    "axis",
    [pytest.param(a, marks=pytest.mark.long) for a in ("depth", "steps", *SOME_AXES[:2])]
    + ["size"],
)
def test_a_ladder_over_any_axis_is_judged(axis: str, tmp_path: Path, sweeper: Run) -> None:
    column = {"depth": "n_layer", "batch_size": "batch", "steps": "max_steps"}.get(axis, axis)
    tables = {}
    for name, optima in (("holds", (-7.0,) * 4), ("fails", (-5.5, -6.5, -7.5, -8.5))):
        frame = runs(optima, seeds=2, etas=ETAS[::2])
        if axis == "size":
            frame["n_layer"] = frame.n_embd // 64
        tables[name] = frame if axis == "size" else frame.rename(columns={"n_embd": column})
    assert package.judge(tables["fails"], axis=axis).answer == "fails"
    tables["holds"].to_csv(path := tmp_path / "runs.csv", index=False)
    flags = ("--axis", "batch" if axis == "batch_size" else axis, "--root", str(tmp_path))
    answer = sweeper("judge", str(path), *flags, "--json")
    assert answer.code == 0, answer.err
    assert answer.document["axis"] == axis and answer.document["answer"] == "holds"
    assert (tmp_path / "judged" / "runs" / f"curves-{axis}.png").is_file()


def test_one_size_differs_with_another_only_where_both_are_asked_for() -> None:
    frame = runs().assign(n_layer=lambda table: table.n_embd // 64)
    with pytest.raises(package.BadInput, match="axis='size' judges n_layer along"):
        package.judge(frame)
    assert package.judge(frame, axis="size", to_width=2048).judged.verdict is not None


def test_nothing_to_judge_and_flags_of_other_places_are_refused(table: Path, sweeper: Run) -> None:
    for words in (
        (),
        (str(table), "--series", "loss"),
        (str(table), "--window", "2"),
        ("wandb:",),
        ("--study", "absent"),
    ):
        assert_refused(sweeper("judge", *words))


def test_losses_in_bits_per_byte_are_called_so(tmp_path: Path, sweeper: Run) -> None:
    """And the seeds of a table are no others than a search's: there was none."""
    frame = runs().rename(columns={"val_loss": "bpb"})
    frame.to_csv(tmp_path / "runs.csv", index=False)
    answer = sweeper("judge", str(tmp_path / "runs.csv"), "--verbose")
    assert answer.code == 0, answer.err
    said = " ".join(answer.out.split())
    assert "bits/byte lost at the base's optimum" in said
    assert "'bpb' is in bits per byte" in said and "the search" not in said


def test_a_table_whose_columns_nobody_knows_is_told_what_to_name(
    tmp_path: Path, sweeper: Run
) -> None:
    (tmp_path / "runs.csv").write_text("a,b\n1,2\n2,3\n")
    for verb in (["judge"], ["predict", "--to-params", "1e9"]):
        answer = sweeper(*verb, str(tmp_path / "runs.csv"))
        assert answer.code == 2 and "=COLUMN" in answer.err
        assert "--columns: it needs a value" in answer.err and "=''" not in answer.err


@pytest.mark.parametrize(("suffix", "reader"), [(".parquet", "pyarrow"), (".xlsx", "openpyxl")])
def test_other_formats_where_their_reader_is_installed(
    suffix: str, reader: str, tmp_path: Path
) -> None:
    pytest.importorskip(reader)
    frame, path = runs(), tmp_path / f"runs{suffix}"
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_excel(path, index=False)
    judged = package.judge(path)
    assert judged.answer == "holds"
    # Excel keeps fifteen digits.
    for one, other in zip(judged.judged.curves, package.judge(frame).judged.curves, strict=True):
        assert [*one.losses] == pytest.approx([*other.losses], rel=1e-12)
        assert [x for each in one.losses.values() for x in each] == pytest.approx(
            [x for each in other.losses.values() for x in each], rel=1e-12
        )


def test_a_format_without_its_reader_says_which_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*arguments: object, **options: object) -> None:
        raise ImportError("Missing optional dependency 'openpyxl'", name="openpyxl")

    monkeypatch.setattr(pandas, "read_excel", absent)
    (path := tmp_path / "runs.xlsx").write_bytes(b"PK")
    with pytest.raises(package.BadInput, match="openpyxl"):
        package.judge(path)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"noise": 1e-300}, "a positive number of nats"),
        ({"noise": 1e300}, "a positive number of nats"),
        ({"eta": -2000.0}, "a learning rate"),
        ({"columns": "width=none"}, "a width is a whole number from 1"),
        ({"to_width": 512, "to_params": 1e9}, "leave one of them out"),
        ({"each": True, "to_params": 1e9}, "is of learning rates along sizes"),
    ],
)
def test_numbers_that_no_run_has_are_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(package.BadInput, match=said):
        package.judge(runs().assign(none=0), **how)


def test_runs_that_differ_too_much_along_one_size_are_sent_to_another() -> None:
    random = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"width": w, "params": w * w, "batch_size": 2**i, "tokens": 10**9 * j, "lr": 0.01 * i}
        for w in (64, 128, 256)
        for i, j in ((1, 1), (2, 3), (3, 2))
    ).assign(loss=lambda f: 3 + random.random(len(f)))
    with pytest.raises(package.BadInput, match="axis='params' may have runs alike"):
        package.judge(frame, columns="params=params")


def test_settings_varied_around_a_point_are_told_one_by_one(tmp_path: Path, sweeper: Run) -> None:
    generator, rows = np.random.default_rng(0), list[dict[str, float]]()
    points = [{"alpha": 2.0**k, "beta": 1.0} for k in (-1, 0, 1, 2)]
    points += [{"alpha": 1.0, "beta": 2.0**k} for k in (-1, 1)]
    for width in (64, 128):
        for point in points:
            gain = 0.01 * (1 - (np.log2(point["alpha"]) - 1) ** 2)
            for seed in range(4):
                loss = 3.3 - gain + generator.normal(0, 0.001)
                rows.append({"width": width, **point, "seed": seed, "loss": loss})
    pandas.DataFrame(rows).to_csv(tmp_path / "each.csv", index=False)
    document = sweeper("judge", "each.csv", "--each", "--json").document
    answers = {each["name"]: each["answer"] for each in document["hyperparameters"]}
    assert answers == {"alpha": "carry", "beta": "leave"}
    assert document["axis"] == "width" and Path("runs/judged/each/each.html").exists()
    pandas.DataFrame(rows).query("width == 64").to_csv("one.csv", index=False)
    said = " ".join(sweeper("judge", "one.csv", "--each").out.split())
    assert "- alpha: one size alone was run" in said
    assert_refused(sweeper("judge", "each.csv", "--each", "--strict"), "--strict")
