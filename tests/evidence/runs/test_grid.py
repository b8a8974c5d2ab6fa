import math
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest

from sweeper.errors import SHELL, BadInput
from sweeper.evidence.judge.decision import TableQuestion, judge_runs
from sweeper.evidence.runs.cells import rectangle
from sweeper.evidence.runs.grid import GridOptions, grid_of, ladder_runs, ladders_of
from sweeper.evidence.runs.read import read as read_runs
from sweeper.evidence.runs.roles import axis_key
from sweeper.stats import curve as curve_module
from tests.evidence.runs.grids import ETAS, WIDTHS, runs
from tests.evidence.runs.grids import grid as read
from tests.refusals import raises_config_error

RANDOM = np.random.default_rng(0)


def test_rates_that_are_logarithms_are_known_by_name_or_sign() -> None:
    frame = runs()
    grid = read(frame)
    assert grid.columns == {"width": "n_embd", "eta": "lr", "loss": "val_loss", "seed": "seed"}
    assert [curve.size.width for curve in grid.curves] == [*WIDTHS]
    assert all(sorted(curve.losses) == [*ETAS] for curve in grid.curves)
    assert grid.base.width == 128 and grid.seeds == 3 and grid.plain
    for name, scale in (("lr", 1.0), ("log10_lr", np.log10(2.0))):
        table = frame.assign(lr=np.log2(frame.lr) * scale).rename(columns={"lr": name})
        grid = read(table, f"eta={name}")
        assert not grid.plain and len(grid.notes) == 1
        assert sorted(grid.curves[0].losses) == pytest.approx([*ETAS])


@pytest.mark.parametrize("extra", [3.0, -7.0], ids=["jump", "sign"])
def test_rates_of_two_units_are_refused(extra: float) -> None:
    frame = runs(etas=(-11.0, -10.5, -10.0))
    frame.loc[len(frame)] = [128, extra, 0, 3.1]
    with raises_config_error("columns", "eta=lr"):
        read(frame)


def test_a_marked_base_is_found_among_averaged_runs() -> None:
    frame = runs(seeds=70)
    assert read(frame.assign(base=frame.n_embd == 512)).base.width == 512


def test_what_differs_beside_size_rate_and_seed_is_named() -> None:
    frame = runs().assign(batch_size=lambda f: f.n_embd // 4, optimizer="adam")
    with pytest.raises(BadInput, match=r"batch_size \(32, 64, 128, \.\.\., with the width\)"):
        read(frame, axis="width")
    frame.loc[::2, "optimizer"] = "muon"
    with pytest.raises(BadInput, match="ignore='batch_size,optimizer' says") as caught:
        read(frame, axis="width")
    assert "where=" not in str(caught.value)  # one width would be left
    with pytest.raises(BadInput, match=r"ignore='optimizer' .*where='optimizer == \"muon\"'"):
        read(frame.drop(columns="batch_size"))
    grid = read(frame, axis="width", ignore=("batch_size", "optimizer"))
    assert len(grid.curves) == 4
    assert read(frame.drop(columns="optimizer"), axis="size").axis == "size"
    with raises_config_error("ignore", "optimiser"):
        read(frame, ignore=("optimiser",))


def test_what_varies_and_is_not_named_is_listed_once_with_the_words_to_copy() -> None:
    frame = runs()
    days = [f"2026-10-{1 + row % 28:02d} 1{row % 10}:02" for row in range(len(frame))]
    frame = frame.assign(
        run=[f"run-{row}" for row in range(len(frame))],  # the name of each run is no setting
        runtime=RANDOM.random(len(frame)),
        n_heads=frame.n_embd // 64,
        z_loss=np.where(frame.seed % 2 == 0, 1e-4, 0.0),
        began=days,
        Comment=None,
    )
    frame["Comment"] = frame.Comment.astype(object)
    frame.loc[3, "Comment"] = "blew up at step 900"
    with pytest.raises(BadInput) as caught:
        read(frame)
    message = caught.value.spelled(SHELL)
    ignored = "runtime,n_heads,z_loss,began,Comment"
    assert f"--ignore {ignored} says" in message and "where" not in message
    assert "n_heads (2, 4, 8, ..., with the width)" in message
    grid = read(frame, ignore=tuple(ignored.split(",")))
    assert grid.curves == read(runs()).curves
    # Numbers of parameters go with the width, and are a size.
    assert read(runs().assign(n_params=lambda f: f.n_embd**2)).curves == grid.curves


def test_parameters_alone_are_the_size_in_ones_and_what_is_empty_in_all_runs_is_none() -> None:
    frame = runs().rename(columns={"n_embd": "params_M"}).assign(steps=math.nan)
    head = pandas.DataFrame({"steps": [100.0]})  # of a section, which is no run
    grid = read(pandas.concat([head, frame], ignore_index=True))
    assert [c.size.params for c in grid.curves] == [10**6 * w for w in WIDTHS]
    assert grid.axis == "params" and "1 row without" in str(grid.notes)


@pytest.mark.parametrize("column", ["tokens", "steps", "experts"])
def test_sizes_that_differ_are_never_ignored_nor_repeats_of_a_run(column: str) -> None:
    frame = runs(seeds=1)
    two = pandas.concat([frame.assign(**{column: count}) for count in (100, 200)])
    with pytest.raises(BadInput) as refused:
        read(two)
    assert "--ignore" not in refused.value.spelled(SHELL)
    with raises_config_error("ignore", column) as caught:
        read(two, ignore=(column,))
    message = caught.value.spelled(SHELL)
    where = shlex.split(message[message.index("--where") :].split(" takes")[0])[1]
    assert len(read_runs(two, where=where)) == len(frame)


@pytest.mark.parametrize("name", ["rank", "seq len", "lora.rank"])
def test_any_column_of_whole_numbers_is_an_axis_under_its_own_name(name: str) -> None:
    key = axis_key(name)
    frame = runs().rename(columns={"n_embd": name})
    grid = grid_of(ladder_runs(read_runs(frame, axis=key)), GridOptions(axis=key))
    assert grid.axis == key and [getattr(c.size, key) for c in grid.curves] == [*WIDTHS]
    usual = read(runs())
    for first, other in zip(grid.curves, usual.curves, strict=True):
        assert first.losses == other.losses
    # Beside a width it is another size: each width is a ladder.
    both = pandas.concat([frame.assign(width=width) for width in (64, 128)])
    result = ladders_of(ladder_runs(read_runs(both, axis=key)), GridOptions(axis=key))
    assert [each for _, each, _ in result] == [{"width": 64}, {"width": 128}]
    frame[name] = frame[name] + 0.5
    with pytest.raises(BadInput, match="is a whole number"):
        grid_of(ladder_runs(read_runs(frame, axis=key)), GridOptions(axis=key))


def test_runs_that_diverged_are_known_by_a_rule_that_is_said() -> None:
    frame = runs()
    highest = frame.lr == frame.lr.max()
    cases: list[tuple[Callable[[Any], Any], dict[str, Any]]] = [
        (lambda f: f.assign(val_loss=f.val_loss.mask(highest, np.inf)), {}),
        (lambda f: f.assign(val_loss=f.val_loss.mask(highest, 1e5)), {}),
        (lambda f: f.assign(val_loss=f.val_loss.mask(highest, 9.0)), {"diverged": 8.0}),
        (lambda f: f.assign(val_loss=f.val_loss.mask(highest, 9.0), first_loss=8.5), {}),
        (lambda f: f.assign(status=np.where(highest, "diverged", "complete")), {}),
    ]
    for change, reading in cases:
        grid = read(change(frame), **reading)
        for curve in grid.curves:
            infinite = [eta for eta, losses in curve.losses.items() if np.isinf(losses).all()]
            assert infinite == [ETAS[-1]]
    assert any("median" in note for note in read(cases[1][0](frame)).notes)


def test_a_cell_without_a_loss_is_no_divergence_where_a_higher_rate_trains() -> None:
    frame = runs()
    inside = (frame.n_embd == 256) & (frame.lr == 2.0 ** ETAS[3]) & (frame.seed < 2)
    top = (frame.n_embd == 512) & (frame.lr == frame.lr.max())
    grid = read(frame.assign(val_loss=frame.val_loss.astype(object).mask(inside | top, "NaN")))
    by_width = {curve.size.width: curve.losses for curve in grid.curves}
    assert np.isfinite([*by_width[256].values()]).all()
    assert np.isinf(by_width[512][ETAS[-1]]).all()
    assert any("left out, with no loss: 2 of the runs" in note for note in grid.notes)
    grid = read(frame.assign(val_loss=frame.val_loss.mask(inside, np.inf)))
    assert not any("no loss" in note for note in grid.notes)


def test_logarithms_to_an_unknown_base_are_asked_for() -> None:
    frame = runs()
    log10 = np.log10(frame.lr)
    for values in (log10, np.log(frame.lr), log10.round(1), -frame.lr):
        with raises_config_error("columns", "eta=lr"):
            read(frame.assign(lr=values))
    natural = frame.assign(lr=np.log(frame.lr)).rename(columns={"lr": "ln_lr"})
    assert sorted(read(natural, "eta=ln_lr").curves[0].losses) == pytest.approx([*ETAS])


def test_a_number_and_its_text_are_no_two_settings() -> None:
    table = runs()
    table["momentum"] = [0.001 if row % 2 else "1e-3" for row in range(len(table))]
    assert len(read(table).curves) == 4
    table.loc[3, "momentum"] = "1e-2"
    with pytest.raises(BadInput, match="differ in momentum"):
        read(table)


def test_rows_that_stand_twice_may_not_differ() -> None:
    frame = runs()
    twice = pandas.concat([frame, frame.iloc[:5]])
    assert any("5 rows stand there twice" in note for note in read(twice).notes)
    twice.iloc[-1, twice.columns.get_loc("val_loss")] += 0.1
    with pytest.raises(BadInput, match="different losses"):
        read(twice)


def test_the_rectangle_has_the_most_runs_near_the_best_cell() -> None:
    etas, losses = np.arange(7.0), np.full((7, 4), 3.0)
    losses[3] = 2.0
    losses[:2, 3] = losses[5:, 3] = losses[6, 2] = np.nan
    result, left_out = rectangle(etas, losses)
    cells, seeds = result
    assert [*cells] == [0, 1, 2, 3, 4, 5] and [*seeds] == [0, 1, 2] and left_out == 5
    losses[:, 1:] = np.nan
    losses[3, 1] = 2.1
    assert rectangle(etas, losses) == (None, 0)


def test_repeated_cells_show_the_noise_where_others_have_one_run() -> None:
    frame = runs(seeds=6, noise=0.01).drop(columns="seed")
    cell = frame.groupby(["n_embd", "lr"]).cumcount()
    few = frame[(cell == 0) | (frame.lr == 2.0**-7)]
    grid = read(few)
    noise = grid.curves[0].noise
    assert noise is not None and noise.freedom == 4 * 5
    assert noise.deviation == pytest.approx(0.0141, rel=0.5)  # offset and noise of a seed
    assert all(len(first) == 1 for curve in grid.curves for first in curve.losses.values())
    lone = few[(few.n_embd < 1024) | (few.lr == few.lr.min())]
    assert len(read(lone).curves[-1].losses) == 1


def test_many_runs_a_cell_are_averaged_in_groups() -> None:
    frame = runs(seeds=200, etas=(-8.0, -7.0, -6.0), widths=(128, 256), optima=(-7.0, -7.0))
    grid = read(frame)
    assert grid.seeds == 64
    mean = np.mean(grid.curves[0].losses[-7.0])
    mean_known = frame[(frame.n_embd == 128) & (frame.lr == 2.0**-7)].val_loss.mean()
    assert mean == pytest.approx(mean_known, abs=5e-4)


def test_a_crashed_seed_takes_its_cell_out_of_the_rectangle() -> None:
    frame = runs()
    coarse = frame[np.log2(frame.lr) % 1 == 0].assign(status="finished")
    crashed = (coarse.n_embd == 256) & (coarse.lr == 2.0**-9) & (coarse.seed == 1)
    grid = read(coarse.assign(status=np.where(crashed, "crashed", "finished")))
    assert len(grid.curves[1].losses) == len(grid.curves[0].losses) - 1 and grid.seeds == 3
    assert any("2 at width 256" in note for note in grid.notes)
    assert read(frame.assign(val_loss=frame.val_loss.round(2))).rounded == 0.01


@pytest.mark.parametrize(
    ("column", "value"),
    [("lr", 0.0), ("n_embd", 128.5), ("n_embd", np.nan), ("lr", np.nan), ("lr", "high")],
)
def test_a_cell_that_is_no_number_of_its_kind_is_refused(column: str, value: object) -> None:
    frame = runs().astype({column: object})
    frame.loc[3, column] = value
    with pytest.raises(BadInput, match="row 4"):
        read(frame)


def test_a_table_without_a_column_that_it_takes_names_those_there_are() -> None:
    with raises_config_error("columns", None):
        read(runs().rename(columns={"val_loss": "score"}))
    with raises_config_error("columns", "loss=scor"):
        read(runs(), "loss=scor")
    with raises_config_error("axis", "depth"):
        read(runs(), axis="depth")
    with pytest.raises(BadInput, match="513 learning rates: so many are no grid"):
        read(runs(seeds=1, widths=(128,), optima=(-7,), etas=tuple(np.linspace(-10, -4, 513))))
    with raises_config_error("noise", -1.0):
        GridOptions(noise=-1.0)
    with pytest.raises(BadInput, match="wd"):
        read(pandas.concat(runs().assign(wd=decay) for decay in (0.0, 0.1)))


def two_horizons() -> pandas.DataFrame:
    """The second horizon's optima drift, and one width alone has a third."""
    first, other = runs(), runs((-7.0, -8.2, -9.0, -9.0))
    parts = [first.assign(tokens=10**9), other.assign(tokens=4 * 10**9)]
    parts.append(first[first.n_embd == 128].assign(tokens=10**10))
    return pandas.concat(parts, ignore_index=True)


def test_every_value_of_a_further_size_has_a_ladder_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(curve_module, "DRAWS", 200)
    runs_of = ladder_runs(read_runs(two_horizons()))
    result = ladders_of(runs_of, GridOptions())
    assert [(axis, key) for axis, key, _ in result] == [
        ("width", {"tokens": 10**9}),
        ("width", {"tokens": 4 * 10**9}),
    ]
    judged = judge_runs(runs_of, TableQuestion())
    assert (judged.answer, judged.finding) == ("fails", "ladders")
    assert [(first.answer, first.key["tokens"]) for first in judged.ladders] == [
        ("holds", 10**9),
        ("fails", 4 * 10**9),
    ]
    assert len(judged.remarks) == 1 and "39 rows left out" in str(judged.remarks[0])
    assert judged.runs == sum(len(part) for _, _, part in result) == 2 * len(runs())
    alone = judge_runs(ladder_runs(read_runs(runs())), TableQuestion())
    assert judged.ladders[0].axes[0].sizes == alone.axes[0].sizes


def test_a_size_that_goes_with_the_axis_is_no_key() -> None:
    frame = runs().assign(batch_size=lambda f: f.n_embd // 4)
    for table, axis in ((frame, None), (two_horizons(), "size")):
        ladders = ladders_of(ladder_runs(read_runs(table)), GridOptions(axis=axis))
        assert [key for _, key, _ in ladders] == [{}]
