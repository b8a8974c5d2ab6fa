import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest

from sweeper.errors import BadInput
from sweeper.evidence.compare.reading import variant_runs
from sweeper.evidence.runs.loss_runs import law_runs, loss_runs_of
from sweeper.evidence.runs.read import read
from tests.evidence.runs.grids import ETAS, grid, runs


@pytest.mark.parametrize("kind", ["csv", "json", "frame"])
@pytest.mark.parametrize(
    ("cell", "diverged"),
    [(c, c in ("NaN", "inf")) for c in ("", "-", "NA", "null", "#N/A", "None", "NaN", "inf")],
)
def test_an_empty_cell_is_a_run_that_was_not_made_and_nan_one_that_diverged(
    cell: str, diverged: bool, kind: str, tmp_path: Path
) -> None:
    frame = runs(seeds=1)
    frame.to_csv(path := tmp_path / "runs.csv", index=False)
    lines = path.read_text().splitlines()
    last = 1 + frame.index[(frame.n_embd == 512) & (frame.lr == frame.lr.max())][0]
    lines[last] = f"{lines[last].rpartition(',')[0]},{cell}"
    path.write_text("\n".join(lines))
    source: object = path
    if kind == "json":
        word = {"": "null", "NaN": "NaN", "inf": "Infinity"}.get(cell, f'"{cell}"')
        rows = frame.assign(val_loss=frame.val_loss.where(frame.index != last - 1, 2**70))
        source = path.with_suffix(".json")
        source.write_text(json.dumps(rows.to_dict("records")).replace(str(float(2**70)), word))
    elif kind == "frame":
        source = frame.astype({"val_loss": object})
        source.loc[last - 1, "val_loss"] = {"": math.nan}.get(cell, cell)
    losses = next(c for c in grid(source).curves if c.size.width == 512).losses
    assert (ETAS[-1] in losses) == diverged
    assert not diverged or np.isinf(losses[ETAS[-1]]).all()


def test_a_law_passes_over_a_run_that_was_not_made(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"{n},{20 * n},{loss}" for n, loss in ((10**8, 3.1), (2 * 10**8, ""), (10**9, 2.5))]
    path.write_text("\n".join(["params,tokens,loss", *rows]))
    table = law_runs(read(path))
    assert len(loss_runs_of(table)) == 2 and "not made" in str(table.notes)


def test_small_losses_diverge_by_the_median_too() -> None:
    frame = runs(seeds=1).assign(val_loss=lambda table: table.val_loss / 10)
    frame.loc[frame.lr == frame.lr.max(), "val_loss"] = 9.0
    assert all(np.isinf(c.losses[ETAS[-1]]).all() for c in grid(frame).curves)


@pytest.mark.parametrize("value", [-1e308, 1e-300, -1e31])
def test_a_loss_that_nothing_trains_to_is_refused(value: float) -> None:
    frame = runs(seeds=1)
    frame.loc[7, "val_loss"] = value
    with pytest.raises(BadInput, match="row 8 has a loss of"):
        grid(frame)


def test_a_run_without_a_seed_is_one_of_its_own() -> None:
    frame = runs(seeds=3).astype({"seed": object})
    frame.loc[4, "seed"] = None
    assert grid(frame).seeds == 3 and grid(frame).runs == len(frame)
    frame["seed"] = None
    assert grid(frame).seeds == 3


@pytest.mark.parametrize("name", ["training_iteration", "_step", "trainer/global_step"])
def test_a_run_that_came_less_far_is_no_run_whatever_says_that_it_is_done(name: str) -> None:
    frame = runs(seeds=1).assign(**{name: 16, "done": True})
    frame.loc[[1, 2], [name, "done"]] = [4, False]
    assert grid(frame).runs == len(frame) - 2
    with pytest.raises(BadInput, match="'done' has False"):
        grid(frame.drop(columns=name))


@pytest.mark.parametrize("word", ["aborted", "EarlyStopped", "CANCELLED by 1001", "terminated", 1])
def test_a_status_that_is_not_known_is_asked_about_wherever_runs_are_read(word: object) -> None:
    status = np.where(np.arange(12) < 2, word, np.array("DONE", object))
    sizes = {"params": [10**7, 10**8, 10**9] * 4, "tokens": np.repeat([1, 2, 3, 4], 3) * 1e10}
    frame = pandas.DataFrame({**sizes, "loss": np.linspace(3, 2, 12), "kind": ["a", "b"] * 6})
    readers: list[Callable[..., Any]] = [law_runs, partial(variant_runs, by="kind", baseline="a")]
    for reader in readers:
        for ignore in ([], ["status"]):
            table = read(frame.assign(status=status), ignore=[*ignore, "kind"])
            if ignore:
                reader(table)
                continue
            with pytest.raises(BadInput, match=f"'status' has {word}") as caught:
                reader(table)
            (where,) = (p for p in caught.value.args if getattr(p, "name", "") == "where")
            reader(read(frame.assign(status=status), where=where.value, ignore=["kind"]))
    killed = np.where(np.arange(12) < 2, "killed", "finished")
    assert len(law_runs(read(frame.assign(status=killed), ignore=["kind"]))) == 10
    for name, *codes in (("exitCode", 137, 0), ("ExitCode", "0:9", "0:0"), ("rc", "9:0", "0")):
        ends = np.where(np.arange(12) < 2, *codes)
        assert len(law_runs(read(frame.assign(**{name: ends}), ignore=["kind"]))) == 10
    for name, ends in {"run_state": killed, "finished": killed != "killed"}.items():
        with pytest.raises(BadInput, match=f"the runs differ in {name}"):
            loss_runs_of(law_runs(read(frame.assign(**{name: ends}), ignore=["kind"])))
    table = runs(seeds=1).assign(status=[word, *["DONE"] * (len(runs(seeds=1)) - 1)])
    with pytest.raises(BadInput, match=f"'status' has {word}"):
        grid(table)


@pytest.mark.parametrize("name", ["objective", "loss", "eval_reward", "log_likelihood", "f1"])
def test_what_is_maximized_is_asked_about_by_name(name: str) -> None:
    is_named = name in ("objective", "loss")
    frame = runs(seeds=1).assign(val_loss=lambda t: t.val_loss * (-1) ** is_named)
    frame = frame.rename(columns={"val_loss": name})
    with pytest.raises(BadInput, match=f"'{name}' is .*maximized"):
        grid(frame, "" if is_named else f"loss={name}")
    assert not is_named or grid(frame, f"loss={name}").runs
    for other in (f"{name}_error", "1 - accuracy", "neg_reward"):
        assert grid(frame.rename(columns={name: other}), f"loss={other}").runs
    with pytest.raises(BadInput, match="'-loss' is maximized"):
        grid(frame.rename(columns={name: "-loss"}))
