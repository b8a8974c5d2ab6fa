import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest

import sweeper as package
from tests.cli.driver import Run, assert_refused
from tests.evidence.rates.test_decision import frame
from tests.evidence.runs.grids import ETAS, WIDTHS, runs


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    runs().to_csv(path, index=False)
    return path


@pytest.mark.usefixtures("drawn")
def test_a_grid_whose_optima_stay_holds_and_one_whose_fall_fails(
    table: Path, sweeper: Run, tmp_path: Path
) -> None:
    flags = ("--columns", "width=n_embd,eta=lr,loss=val_loss,seed=seed", "--to-width", "2048")
    answer = sweeper("judge", str(table), *flags, "--json", "--root", str(tmp_path / "out"))
    assert answer.code == 0, answer.err
    document = answer.document
    (verdict,) = document["axes"]
    assert document["answer"] == verdict["answer"] == verdict["target"]["answer"] == "holds"
    assert [size["size"]["width"] for size in verdict["sizes"]] == [*WIDTHS]
    for size in verdict["sizes"]:
        assert size["optimum_log2"]["value"] == pytest.approx(-7, abs=0.1)
    for name in ("judge.html", "judge.json", "curves-width.png", "curves-width.svg"):
        assert (tmp_path / "out/judged/runs" / name).stat().st_size > 100
    assert "holds" in (tmp_path / "out/judged/runs/judge.html").read_text()
    runs((-5.0, -6.0, -7.0, -8.0)).to_csv(table, index=False)
    answer = sweeper("judge", str(table), "--strict", "--root", str(tmp_path / "out"))
    assert answer.code == 3 and "The transfer over width fails" in answer.out


def test_the_learning_rate_that_was_asked_for_is_said(tmp_path: Path, sweeper: Run) -> None:
    falling = runs((-5.0, -6.0, -7.0, -8.0))
    falling.to_csv(path := tmp_path / "runs.csv", index=False)
    answer = sweeper("judge", str(path), "--to-width", "4096", "--root", str(tmp_path / "out"))
    screen = " ".join(answer.out.split())
    assert "Trend over 4 widths: the rate goes as width^(-1.0" in screen
    assert "the trend's loses" in screen and "save" not in screen
    assert "The transferred learning rate: 0.031" in screen
    assert "at width 4096 the best one is predicted to be 0.000" in screen
    predicted = answer_of(tmp_path)["predicted"]
    assert predicted["low"] < -10 < predicted["high"]
    stays = package.judge(runs(), to_width=4096)
    assert "octaves from the transferred learning rate, which costs" in str(stays)
    # Without a target there is one number; of logarithms it is plain, too.
    logs = runs().assign(bpb=lambda table: table.val_loss, log2_lr=lambda table: np.log2(table.lr))
    judged = package.judge(logs.drop(columns=["lr", "val_loss"]))
    assert "The transferred learning rate: 0.0078" in str(judged)
    assert "predicted" not in str(judged) and judged.judged.unit == "bits/byte"


def answer_of(folder: Path) -> Any:
    return json.loads((folder / "out/judged/runs/judge.json").read_text())


def test_one_seed_of_few_rates_cannot_say_and_says_which_runs_would_tell() -> None:
    few = runs(seeds=1, etas=(-8.0, -7.0, -6.0))
    judged = package.judge(few)
    assert judged.answer == "cannot say yet" and "nothing shows the noise" in str(judged)
    next_runs = judged.judged.next_runs
    assert [(each.size["width"], each.runs) for each in next_runs] == [(w, 1) for w in WIDTHS]
    assert all(-7.0 in proposal.etas for proposal in next_runs)
    assert package.judge(runs(seeds=1), noise=0.003).answer == "holds"
    assert package.judge(runs(seeds=1), noise=1.0).answer == "cannot say yet"
    # Two widths hold, and tell nothing of a third.
    assert package.judge(runs().query("n_embd < 500"), to_width=4096).answer == "cannot say yet"


def test_a_rate_far_below_every_optimum_is_answered_with_what_it_costs(
    table: Path, sweeper: Run, tmp_path: Path
) -> None:
    flags = ("--eta", "0.002", "--to-width", "4096", "--strict", "--root", str(tmp_path / "out"))
    answer = sweeper("judge", str(table), *flags)
    screen = " ".join(answer.out.split())
    assert answer.code == 3 and answer_of(tmp_path)["answer"] == "fails"
    assert "At width 4096, no: the best is predicted at 0.0078" in screen
    assert "0.002 lies 2.0 octaves below it and costs about 0.3" in screen
    flags = ("--eta", "0.0078", "--to-width", "4096", "--strict", "--root", str(tmp_path / "out"))
    assert sweeper("judge", str(table), *flags).code == 0


def test_a_target_that_is_the_base_or_of_no_size_of_the_runs_is_said() -> None:
    assert f"the best at width {WIDTHS[0]}, which is the base" in str(
        package.judge(runs(), to_width=WIDTHS[0])
    )
    batches = runs().rename(columns={"n_embd": "batch_size"})
    with pytest.raises(package.BadInput, match="add axis='batch_size'"):
        package.judge(batches, to_width=4096)
    judged = package.judge(batches, to_width=4096, axis="batch")
    assert judged.judged.to == 4096


def test_a_loss_that_stands_under_two_rates_is_a_copy() -> None:
    frame = runs(seeds=1).drop(columns="seed")
    copied = frame.iloc[[5]].assign(lr=frame.lr.iloc[8])
    judged = package.judge(pandas.concat([frame, copied], ignore_index=True)).judged
    assert judged.runs == len(frame) and "as copies do" in str(judged.remarks)
    assert judged.verdict == package.judge(frame).judged.verdict


def test_advice_and_the_list_of_runs_say_the_same() -> None:
    frame = runs((-8.3,) * 4, etas=np.arange(-12.0, -4.0), seeds=1, curvature=0.02)
    judged = package.judge(frame, noise=0.03).judged
    assert judged.verdict is not None and "on this ladder" not in judged.verdict.todo
    judged = package.judge(frame, noise=0.1).judged
    assert judged.verdict is not None and "do not count on seeds" in judged.verdict.todo
    assert "A finer grid helps" in judged.verdict.todo
    listed = {(proposal.why, proposal.runs) for proposal in judged.next_runs}
    assert listed == {("a finer grid", 1)}
    total = sum(proposal.runs * len(proposal.etas) for proposal in judged.next_runs)
    assert f"({total} runs more, at width 128" in judged.verdict.todo


def test_an_optimum_that_is_not_bracketed_is_a_bound_and_what_lacks_runs_is_listed(
    tmp_path: Path, sweeper: Run
) -> None:
    (end,) = package.judge(runs((-7.0, -7.0, -4.2, -3.0))).judged.ends
    assert "width 512 and 1024 is not bracketed: it lies at or above 0.0625" in end
    screen = package.judge(runs((-12.0,) * 4))
    low = screen.judged
    assert low.answer == "cannot say yet" and "at or below 0.000977" in low.ends[0]
    assert all(max(proposed.etas) < -10 for proposed in low.next_runs)
    assert {size.side for size in low.axes[0].sizes} == {-1}
    assert "rate: 0.000977, a bound: the best one of the base lies at or below it." in str(screen)
    runs((-3.0, -3.0, -3.0, -7.0)).to_csv(path := tmp_path / "runs.csv", index=False)
    answer = sweeper("judge", str(path), "--to-width", "4096", "--root", str(tmp_path / "out"))
    assert answer.code == 0
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    for begin, rest in (
        ("128 ≥0.0625 ≥-4.00 0 0", ""),
        ("256 ≥0.0625 ≥-4.00 - 0.0", ""),
        ("1024 0.0078", " ≤-3.0"),
    ):
        assert any(line.startswith(begin) and rest in line for line in lines)


def test_one_width_transfers_nothing_and_asks_for_more() -> None:
    frame = runs()
    judged = package.judge(frame[frame.n_embd == 256])
    assert judged.answer == "cannot say yet" and "nothing transfers" in str(judged)
    assert [proposal.size["width"] for proposal in judged.judged.next_runs] == [512, 1024]


def test_a_verdict_in_a_notebook_draws_itself(table: Path, tmp_path: Path) -> None:
    judged = package.judge(
        table, columns={"width": "n_embd", "eta": "lr", "loss": "val_loss"}, to_width=4096
    )
    assert judged.answer == "holds" and "<svg" in judged._repr_html_()
    assert [*judged.to_dataframe()["width"]] == [str(width) for width in WIDTHS]
    assert judged.document["axes"][0]["target"]["size"] == 4096
    assert judged.save(tmp_path / "saved")["page"].is_file()


@pytest.mark.parametrize(
    ("axis", "column"),
    [("depth", "n_layer"), ("steps", "max_steps"), ("tokens", "tokens"), ("size", "n_embd")],
)
def test_a_ladder_over_any_axis_has_its_usual_names(axis: str, column: str) -> None:
    frame = runs((-5.5, -6.5, -7.5, -8.5), seeds=2, etas=ETAS[::2])
    frame["n_layer"] = frame.n_embd // 64
    if axis != "size":
        frame = frame.drop(columns="n_layer").rename(columns={"n_embd": column})
    judged = package.judge(frame, axis=axis)
    assert (judged.answer, judged.document["axis"]) == ("fails", axis)


BAD: dict[str, tuple[str, tuple[str, ...], str]] = {
    "empty": ("n_embd,lr,val_loss\n", (), "has no rows"),
    "nothing": ("", (), "runs.csv"),
    "no loss": ("n_embd,lr,val_loss\n128,0.1,\n256,0.1,\n", (), "has a loss"),
    "optima": ("width,optimal_lr\n128,0.001\n", (), "judge takes runs with their losses"),
    "series": ("width,lr,loss\n1,1,1\n", ("--series", "loss"), "--series"),
    "window": ("width,lr,loss\n1,1,1\n", ("--window", "2"), "--window"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_message(name: str, tmp_path: Path, sweeper: Run) -> None:
    text, flags, part = BAD[name]
    (path := tmp_path / "runs.csv").write_text(text)
    assert_refused(sweeper("judge", str(path), *flags, "--root", str(tmp_path / "out")), part)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", [(), ("wandb:",), ("--study", "absent"), ("absent.csv",)])
def test_a_source_that_is_none_is_refused(flags: tuple[str, ...], sweeper: Run) -> None:
    assert_refused(sweeper("judge", *flags))


@pytest.mark.parametrize(
    ("keywords", "part"),
    [
        ({"noise": 1e300}, "a positive number of nats"),
        ({"eta": -2000.0}, "a learning rate"),
        ({"to_width": 512, "to_params": 1e9}, "leave one of them out"),
        ({"each": True, "to_params": 1e9}, "is of learning rates along sizes"),
    ],
)
def test_numbers_that_no_run_has_are_refused(keywords: dict[str, Any], part: str) -> None:
    with pytest.raises(package.BadInput, match=part):
        package.judge(runs(), **keywords)


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
    points = [{"alpha": 2.0**k, "beta": 1.0} for k in (-1, 0, 1, 2)]
    points += [{"alpha": 1.0, "beta": 2.0**k} for k in (-1, 1)]
    grid = product((64, 128), points, range(4))
    table = pandas.DataFrame({"width": width, **point, "seed": seed} for width, point, seed in grid)
    noise = np.random.default_rng(0).normal(0, 0.001, len(table))
    table["loss"] = 3.29 + 0.01 * (np.log2(table.alpha) - 1) ** 2 + noise
    table.to_csv(tmp_path / "each.csv", index=False)
    document = sweeper("judge", "each.csv", "--each", "--json").document
    answers = {each["name"]: each["answer"] for each in document["hyperparameters"]}
    assert answers == {"alpha": "carry", "beta": "leave"}
    assert document["axis"] == "width" and Path("runs/judged/each/each.html").exists()
    table.query("width == 64").to_csv("one.csv", index=False)
    screen = " ".join(sweeper("judge", "one.csv", "--each").out.split())
    assert "- alpha: one size alone was run" in screen
    assert_refused(sweeper("judge", "each.csv", "--each", "--strict"), "--strict")


def test_a_table_of_two_sizes_tells_the_rate_and_the_batch(sweeper: Run, tmp_path: Path) -> None:
    frame((4, 5, 6, 7, 8, 9)).to_csv(tmp_path / "runs.csv", index=False)
    asked = ("judge", "runs.csv", "--to-params", "8e8", "--to-tokens", "4e10")
    answer = sweeper(*asked)
    assert answer.code == 0
    folder = tmp_path / "runs/judged/runs"
    document = json.loads((folder / "rates.json").read_text())
    assert document["answer"] == document["code"] == "predicted"
    assert (folder / "rates.html").exists()
    assert_refused(sweeper(*asked, "--axis", "width"), "--to-params")
    assert_refused(sweeper("judge", "runs.csv", "--to-width", "64", "--to-tokens", "1e9"), "params")


def test_a_ladder_over_batch_tells_the_critical_one(sweeper: Run, tmp_path: Path) -> None:
    generator, rows = np.random.default_rng(1), []
    for batch in (8, 16, 32, 64, 128, 256):
        for seed in range(2):
            at = np.arange(0, 6000, 25)
            losses = 2.5 + 8 * ((at + 1) / (1 + 60 / batch)) ** -0.35
            losses += generator.normal(0, 0.01, len(at))
            shared = {"batch_size": batch, "seed": seed, "run": f"{batch}-{seed}"}
            rows += [{**shared, "step": s, "loss": v} for s, v in zip(at, losses, strict=True)]
    table = pandas.DataFrame(rows)
    table.to_csv(tmp_path / "curves.csv", index=False)
    document = sweeper("judge", "curves.csv", "--axis", "batch", "--json").document
    results = document["critical_batch"]
    assert document["answer"] == results["code"] == "critical" and results["runs"] == 12
    assert results["batch"]["low"] <= 60 <= results["batch"]["high"] < 75
    assert [batch for batch, _ in results["points"][::2]] == results["batches"]
    page = (tmp_path / "runs/judged/curves/critical.html").read_text()
    assert page.count("<svg") == 1 and "How large a batch?" in page
    assert (tmp_path / "runs/judged/curves/critical.png").exists()
    assert any("no verdict on the learning rate" in note for note in document["notes"])
    few = sweeper("judge", "curves.csv", "--axis", "batch", "--where", "batch_size < 20")
    assert_refused(few, "eta")
    answer = package.judge(table.assign(lr=0.001), axis="batch")
    assert answer.answer == "critical" and "critical batch" in answer.text
    with pytest.raises(package.BadInput, match="lacks batch_size"):
        package.judge(table.drop(columns="batch_size"), axis="batch")
