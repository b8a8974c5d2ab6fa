"""`sweeper judge`: tables of runs with known optima, and tables that others published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest

import sweeper as package
from tests.cli.driver import Run, assert_refused
from tests.existing.grids import WIDTHS, runs

MEGATRON = """parameterization,width,optimal_lr
standard,128,0.000977
mup,128,0.000977
standard,256,0.000488
mup,256,0.000977
standard,512,0.000244
mup,512,0.000977
standard,1024,0.000122
mup,1024,0.000977
standard,2048,6.1e-05
mup,2048,0.00195
"""
"""Best learning rates on a grid of factors of 2, pull request 3058 of NVIDIA/Megatron-LM."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    runs().to_csv(path, index=False)
    return path


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


def test_one_seed_cannot_say_and_says_which_runs_would_tell() -> None:
    judged = package.judge(runs(seeds=1))
    assert judged.answer == "cannot say yet" and "nothing shows the noise" in str(judged)
    found = judged.judged.next_runs
    assert [one.size["width"] for one in found] == [*WIDTHS] and all(o.runs == 1 for o in found)
    assert all(-7.0 in one.etas for one in found)
    assert package.judge(runs(seeds=1), noise=0.003).answer == "holds"
    assert package.judge(runs(seeds=1), noise=1.0).answer == "cannot say yet"


def test_repeated_cells_say_what_one_seed_cannot() -> None:
    frame = runs(seeds=4).drop(columns="seed")
    few = frame[(frame.groupby(["n_embd", "lr"]).cumcount() == 0) | (frame.lr == 2.0**-7)]
    judged = package.judge(few)
    assert judged.answer == "holds" and "by the repeated cells" in str(judged)


def test_an_optimum_that_is_not_bracketed_is_a_bound() -> None:
    judged = package.judge(runs((-7.0, -7.0, -4.2, -3.0)))
    ends = judged.judged.ends
    assert "width 512 is not bracketed: it lies at or above 0.0625" in ends[0]
    assert "2 of 4 curves" in ends[2]
    low = package.judge(runs((-12.0, -12.0, -12.0, -12.0))).judged
    assert low.answer == "cannot say yet" and "at or below 0.000977" in low.ends[0]
    assert all(max(one.etas) < -10 for one in low.next_runs)


def test_one_width_transfers_nothing_and_asks_for_more() -> None:
    frame = runs()
    judged = package.judge(frame[frame.n_embd == 256])
    assert judged.answer == "cannot say yet" and "nothing transfers" in str(judged)
    assert [one.size for one in judged.judged.next_runs] == [{"width": 512}, {"width": 1024}]


def test_a_shift_that_an_error_hides_is_not_judged_by_it() -> None:
    frame = runs((-7.0, -7.2, -7.1, -8.4), seeds=2, noise=0.15)
    assert package.judge(frame).answer != "holds"


@pytest.mark.parametrize(
    ("kind", "answer", "slope"), [("standard", "fails", -1.0), ("mup", "cannot say yet", 0.2)]
)
def test_optima_alone_are_judged_by_their_trend(
    kind: str, answer: str, slope: float, tmp_path: Path, sweeper: Run
) -> None:
    path = tmp_path / "optima.csv"
    path.write_text(MEGATRON)
    assert_refused(sweeper("judge", str(path)))
    words = ("--where", f'parameterization == "{kind}"', "--out", str(tmp_path / "out"))
    document = sweeper("judge", str(path), *words, "--json").document
    assert document["answer"] == answer
    (movement,) = document["movements"]
    assert movement["slope"]["value"] == pytest.approx(slope, abs=0.01)
    assert movement["slope"]["low"] < slope < movement["slope"]["high"]


def grid(best: dict[int, tuple[float, float]], etas: Any, decays: Any) -> pandas.DataFrame:
    """One seed of a bowl in log2 eta and log2 decay."""
    rows = [
        {"width": width, "lr": 2.0**e, "weight_decay": 2.0**d, "loss": 3 + 0.1 * (e - a) ** 2}
        | {"loss": 3 + 0.1 * (e - a) ** 2 + 0.05 * (d - b) ** 2}
        for width, (a, b) in best.items()
        for e in etas
        for d in decays
    ]
    return pandas.DataFrame(rows)


def test_of_rate_and_decay_it_says_which_moves() -> None:
    etas, decays = np.arange(-11.0, -3.0), np.arange(-6.0, 2.0)
    best = {128: (-6.0, -3.0), 256: (-7.0, -2.0), 512: (-8.0, -1.0)}
    judged = package.judge(grid(best, etas, decays)).judged
    found = {one.name: one.slope for one in judged.movements}
    assert found["the learning rate"].high < 0 < found["the weight decay"].low
    assert found["their product"].value == 0 and found["their ratio"].value == -2
    assert "is not seen to move" in " ".join(judged.sentences)


def test_a_grid_of_one_width_whose_best_rate_is_its_last_everywhere() -> None:
    frame = grid({256: (-2.0, 0.0)}, np.arange(-8.0, -3.0), np.arange(-5.0, -1.0))
    judged = package.judge(frame.assign(weight_decay=frame.weight_decay - 2.0**-5)).judged
    said = " ".join((*judged.sentences, *judged.ends))
    assert "nothing transfers" in said and "nothing shows the noise" in said
    assert "at or above 0.0625, in every column" in said


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


def test_a_verdict_in_a_notebook_draws_itself(table: Path, tmp_path: Path) -> None:
    judged = package.judge(table, width="n_embd", eta="lr", loss="val_loss", to_width=4096)
    assert judged.answer == "holds" and "<svg" in judged._repr_html_()
    assert [*judged.table["width"]] == [str(width) for width in WIDTHS]
    assert judged.record["axes"][0]["target"]["size"] == 4096
    assert judged.save(tmp_path / "saved")["page"].is_file()
