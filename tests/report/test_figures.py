"""Figures: what is drawn, what it says, and that it draws whatever there is."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from statistics import median

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from sweeper.decide.documents import Documents
from sweeper.report.drawing import KEY, save, set_scale, svg
from sweeper.report.figures import (
    best_loss_figure,
    chosen_trials,
    chosen_widths,
    learning_rate_figure,
    lines_figure,
    pairs_figure,
    steps_figure,
)
from sweeper.report.study_page import render
from sweeper.search.strategy import Conclusion, PairGrid
from sweeper.study.setup import Trials
from sweeper.trial import Log2Hps, Result, Status, Trial
from tests.layout import without_drawing, without_layout
from tests.report import samples
from tests.specs import spec_of


def axes_of(figure):
    return figure.axes[0]


def texts(figure):
    """All words of a figure's drawing."""
    with without_layout():
        root = ElementTree.fromstring(svg(figure))
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


def validation_figure(record, axis="width"):
    validation = samples.validated(record)
    return learning_rate_figure(validation, validation.over(axis))


def sizes_of(record, axis):
    return [curve.size for curve in samples.validated(record).ladder(axis)]


def conclusion(**changes):
    return samples.searched(samples.search(**changes)).conclusion


def search_lines(**changes):
    searched = samples.searched(samples.search(**changes))
    return lines_figure(searched.conclusion, searched.space)


NOTHING = Conclusion(best_log2={}, objective=math.inf, seeds=1, runs=0)


@pytest.mark.parametrize("answer", ["holds", "fails", "cannot say yet"])
def test_title_says_the_verdict(answer):
    figure = validation_figure(samples.validation(answer))
    assert axes_of(figure).get_title(loc="left") == f"Transfer over width: {answer}"


def test_ladders_are_told_apart_and_ordered_by_size():
    validation = samples.validation(depth=True)
    validation["curves"].reverse()
    assert [size.width for size in sizes_of(validation, "width")] == [32, 64, 128, 256]
    depths = [(size.width, size.depth) for size in sizes_of(validation, "depth")]
    assert depths == [(32, 2), (32, 4), (32, 8)]


def test_ladders_over_batch_size_share_the_base_s_size():
    curves = [samples.curve(width, 2, 1.5) for width in (64, 32, 32, 32)]
    trained = [(8, 50), (16, 50), (8, 50), (8, 99)]
    for curve, (batch, steps) in zip(curves, trained, strict=True):
        curve["size"] |= {"batch_size": batch, "steps": steps}
    sizes = [samples.size_verdict(curve, 1.5, 1.5, "holds") for curve in curves]
    over_batch = {"axis": "batch_size", "answer": "holds", "sizes": [sizes[2], sizes[1]]}
    over_steps = {"axis": "steps", "answer": "holds", "sizes": [sizes[2], sizes[3]]}
    validation = {"planned_log2": 1.5, "curves": curves, "axes": [over_batch, over_steps]}
    assert [size.batch_size for size in sizes_of(validation, "batch_size")] == [8, 16]
    assert [size.steps for size in sizes_of(validation, "steps")] == [50, 99]
    title = axes_of(validation_figure(validation, "batch_size")).get_title(loc="left")
    assert title.startswith("Transfer over batch size: ")


def test_legend_names_sizes_in_order_with_their_optima():
    words = texts(validation_figure(samples.validation()))
    entries = [word for word in words if re.fullmatch(r"\d+: .*", word)]
    assert entries[0] == "32: 1.52 [1.41, 1.63]"
    assert [entry.partition(":")[0] for entry in entries] == ["32", "64", "128", "256"]
    assert "transferred: 1.50" in words


def test_a_huge_loss_does_not_squash_the_basin():
    validation = samples.validation()
    validation["curves"][0]["losses"]["3.5"] = [900.0, 1100.0]
    figure = validation_figure(validation)
    bottom, top = axes_of(figure).get_ylim()
    best = [min(sum(p) / 2 for p in c["losses"].values()) for c in validation["curves"]]
    assert bottom < min(best)
    assert max(best) < top < 6
    assert "above the axis" in texts(figure)


def test_diverged_points_are_said_to_be_so():
    figure = validation_figure(samples.validation("fails"))
    assert "diverged" in texts(figure)


def test_bands_of_seeds_are_within_the_axis_within_reason():
    figure = Figure()
    points = [(-1.0, 2.4), (0.0, 2.0), (1.0, 2.2)]
    for wide, expected in ((0.1, 1.9), (50.0, None)):
        ax = figure.subplots()
        plain = set_scale(ax, [points], median)
        whole = np.diff(ax.get_ylim())[0]
        top = set_scale(ax, [points], median, [(y, y - wide, y + wide) for _, y in points])
        bottom = ax.get_ylim()[0]
        assert expected is None or bottom < expected
        assert top > plain
        assert np.diff(ax.get_ylim())[0] < 2.3 * whole


def test_a_size_of_diverged_runs_only_has_no_optimum():
    figure = validation_figure(samples.diverged_validation())
    words = texts(figure)
    assert "no finite loss" in words
    assert "32: none" in words


def test_a_failed_seed_counts_as_diverged():
    validation = samples.validation()
    validation["curves"][3]["losses"]["-0.5"] = [3.0, math.nan]
    assert "diverged" in texts(validation_figure(validation))


@pytest.mark.parametrize(
    "validation",
    [
        samples.validation() | {"curves": []},
        samples.validation() | {"curves": [samples.curve(32, 2, 1.5) | {"losses": {"1.5": [3.5]}}]},
        samples.validation(seeds=1),
        samples.diverged_validation(),
    ],
    ids=["empty", "one point", "one seed", "diverged"],
)
def test_learning_rate_figure_draws_whatever_there_is(validation):
    assert svg(validation_figure(validation)).startswith("<svg")


@pytest.mark.parametrize(
    "changes",
    [
        {"best_loss_curve": [], "phase_ends": {}, "lines": []},
        {"best_loss_curve": [[1, "inf"], [2, "inf"]], "phase_ends": {"eta": 2}},
        pytest.param(
            {"best_loss_curve": [[1, "inf"], [2, 3.5]], "phase_ends": {}}, marks=pytest.mark.long
        ),
        {
            "lines": [
                {
                    "name": "eta",
                    "points_log2": [[1, math.inf]],
                    "optimum_log2": 1,
                    "objective": math.inf,
                }
            ]
        },
        {
            "lines": [
                {"name": "x" * 90, "points_log2": [[1, 3.5]], "optimum_log2": 1, "objective": 3.5}
            ]
        },
        {"lines": samples.search()["lines"][:4], "space": {}},
    ],
    ids=["empty", "all diverged", "first diverged", "diverged line", "one point", "four lines"],
)
def test_search_figures_draw_whatever_there_is(changes):
    assert svg(best_loss_figure(conclusion(**changes))).startswith("<svg")
    assert svg(search_lines(**changes)).startswith("<svg")


def test_search_figures_of_nothing():
    assert "no finite loss" in texts(best_loss_figure(NOTHING))
    assert "no finite loss" in texts(lines_figure(NOTHING, {}))


def test_best_loss_figure_says_the_best_and_names_the_phases():
    words = texts(best_loss_figure(conclusion()))
    assert "Best loss so far: 3.4120 nats after 60 runs" in words
    assert {"eta", "lines", "combine"} <= set(words)


def test_lines_share_a_scale_and_name_their_optimum():
    figure = search_lines()
    words = texts(figure)
    assert "alpha_residual_attn_ratio" in words
    assert "optimum -0.5" in words
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_runs_are_marked_at_the_mean_of_their_seeds():
    """A point of two seeds has a dot and a bar for both; a failed one, and one of no run, none."""
    found = samples.searched(samples.search())
    line = found.conclusion.lines[0]
    (x, mean), (other, alone), *_ = sorted(line.points_log2, key=lambda point: point[1])
    made = [run(mean + sign * 0.1, seed=seed, eta=x) for seed, sign in enumerate((-1, 1))]
    made.append(run(alone, eta=other))
    conclusion = replace(found.conclusion, lines=(line,), retune=None)
    with without_layout():
        drawn = svg(lines_figure(conclusion, found.space, made))
    keys = [result.key[:KEY] for result in made]
    assert {*re.findall('data-runs="([^"]*)"', drawn)} == {f"{keys[0]} {keys[1]}", keys[2]}
    marks = drawn.split(f'data-runs="{keys[0]} {keys[1]}"')[1].split("</g>")[0]
    assert marks.count("<use") == 2


def test_names_are_text_and_neither_markup_nor_math():
    name = "<script>$x_$y$"
    lines = samples.search()["lines"]
    lines[0]["name"] = name
    figure = search_lines(lines=lines)
    assert name in texts(figure)
    assert name in texts(best_loss_figure(conclusion(phase_ends={name: 60})))
    assert "<script" not in svg(figure)


def test_svg_is_the_same_every_time_and_fits_its_box():
    first, second = (svg(best_loss_figure(conclusion())) for _ in range(2))
    assert first == second
    tag = first[: first.index(">")]
    assert "viewBox" in tag
    assert " width=" not in tag
    assert "<style" not in first


def test_svg_ids_bear_the_name_and_are_all_defined():
    text = svg(best_loss_figure(conclusion()), "cost")
    ids = re.findall(r'\sid="([^"]*)"', text)
    used = re.findall(r'(?:href="#|url\(#)([^")]*)', text)
    assert all(found.startswith("cost-") for found in ids)
    assert len(ids) == len(set(ids))
    assert used
    assert set(used) <= set(ids)


def test_save_writes_png_and_svg_beside_each_other(tmp_path):
    png, vector = save(best_loss_figure(conclusion()), tmp_path / "w1.5-cost")
    assert (png.name, vector.name) == ("w1.5-cost.png", "w1.5-cost.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "Best loss so far" in vector.read_text()
    ElementTree.parse(vector)
    assert sorted(tmp_path.iterdir()) == [png, vector]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_with_controls_leave_whole_xml(tmp_path):
    figure = best_loss_figure(conclusion(phase_ends={"\x1b[31m\x00\x0c": 60}))
    _, vector = save(figure, tmp_path / "cost")
    for root in (ElementTree.parse(vector).getroot(), ElementTree.fromstring(svg(figure))):
        assert root.tag.endswith("svg")


def test_no_global_state_is_changed():
    before = dict(mpl.rcParams)
    svg(search_lines())
    assert dict(mpl.rcParams) == before
    code = "import sweeper.report.study_page, sys; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_optimum_without_an_interval_is_marked_and_has_none():
    record = samples.validation(seeds=1)
    for size in record["axes"][0]["sizes"]:
        size["optimum_log2"] |= {"low": "-inf", "high": "inf"}
    found = svg(validation_figure(record))
    assert "inf" not in found and "nan" not in found


def test_a_best_loss_that_is_found_early_has_an_axis_that_shows_how() -> None:
    losses = [9.0, 2.5, 2.4, 2.3, *[2.25] * 9]
    curve = [[i + 1, loss] for i, loss in enumerate(losses)]
    low, high = best_loss_figure(conclusion(best_loss_curve=curve)).axes[0].get_ylim()
    assert low < 2.25 and high > 2.5


# Pairs.


ROWS = [[3.0, 2.0, 4.0], [2.5, 3.5, math.inf]]


def searched(losses=ROWS, names=("eta", "alpha_<attn>")):
    values = ((-1.0, 0.0), (-2.0, 0.0, 2.0))
    grid = PairGrid(names=names, values_log2=values, losses=losses, transfer_error=0.1234)
    return [grid]


def markers(ax, marker):
    return sorted(
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in ax.lines
        if line.get_marker() == marker
    )


def test_the_optima_of_rows_and_columns_and_what_diverged_are_marked():
    """Rows have their least at columns 1 and 0; columns 0, 1 and 2 at rows 1, 0 and 0."""
    ax = pairs_figure(searched()).axes[0]
    assert markers(ax, "o") == [(0, 1), (1, 0)]
    assert markers(ax, "x") == [(0, 1), (1, 0), (2, 0)]
    assert markers(ax, "^") == [(2, 1)]
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("eta", "alpha_<attn>")
    assert ax.get_title(loc="left") == "transfer error 0.1234"
    assert [text.get_text() for text in ax.get_xticklabels()] == ["-2", "0", "2"]


def test_a_cell_s_colour_is_its_loss():
    mesh = pairs_figure(searched()).axes[0].collections[0]
    assert mesh.get_array().tolist()[:1] == [[3.0, 2.0, 4.0]]
    assert mesh.get_array().mask.tolist() == [[False] * 3, [False, False, True]]


def test_grids_without_a_finite_loss_or_none_at_all():
    for grids in (searched([[math.inf] * 3] * 2), []):
        assert svg(pairs_figure(grids)).startswith("<svg")


def test_is_drawn_without_images_and_saved_twice(tmp_path):
    root = ElementTree.fromstring(svg(pairs_figure(searched())))
    assert not list(root.iter("{http://www.w3.org/2000/svg}image"))
    png, drawing = save(pairs_figure(searched()), tmp_path / "pairs")
    assert png.read_bytes().startswith(b"\x89PNG") and drawing.stat().st_size > 1000


def test_the_page_shows_it_only_where_there_is_one(tmp_path):
    with_pairs = samples.study(tmp_path / "a", samples.search(pairs=searched()))
    without = samples.study(tmp_path / "b", samples.search())
    with without_drawing():
        assert "Pairs of hyperparameters" in render(Documents.read(with_pairs))
        assert "Pairs of hyperparameters" not in render(Documents.read(without))


# Single runs.


def run(
    loss: float,
    *,
    width: int = 16,
    eta: float = 0.0,
    seed: int = 0,
    phase: str = "eta",
    status: Status = "complete",
) -> Result:
    spec = spec_of({"model": {"width": width, "depth": 1}, "base": {"width": 16, "depth": 1}})
    trial = Trial(spec=spec, log2_hps=Log2Hps({"eta": eta, "alpha": 1.0}), seed=seed, phase=phase)
    curve = tuple(loss + 1 / (step + 1) for step in range(10))
    return Result(trial=trial, status=status, objective=loss, curve=curve, steps=10)


def test_best_median_and_worst_of_those_that_ended() -> None:
    losses = [3.0, 1.0, 2.0, 5.0, 4.0]
    results = [run(loss, eta=loss) for loss in losses]
    results += [run(0.1, eta=8, status="pruned"), run(9.0, eta=9, status="diverged")]
    results += [run(0.5, width=32, phase="validate")]
    chosen = chosen_trials(Trials(results, 0))
    assert [(one.name, one.result.objective) for one in chosen] == [
        ("best", 1.0),
        ("median", 3.0),
        ("worst", 5.0),
    ]
    assert [one.name for one in chosen_trials(Trials(results[:1], 0))] == ["best"]
    assert chosen_trials(Trials([], 0)) == []


def test_each_width_at_the_least_mean_over_the_seeds() -> None:
    """A lucky seed does not choose the learning rate; the first seed is drawn."""
    results = [run(2.0, eta=0, seed=0), run(2.2, eta=0, seed=1)]
    results += [run(1.0, eta=1, seed=0, phase="validate")]
    results += [run(9.0, eta=1, seed=1, phase="validate")]
    results += [run(1.5, width=32, eta=1, seed=s, phase="validate") for s in (1, 0)]
    other = run(0.1, eta=0, seed=5)
    spec = other.trial.spec
    assert spec.depth == 1
    chosen = chosen_widths(Trials(results, 0))
    told = [(one.name, one.result.trial.log2_hps["eta"], one.result.trial.seed) for one in chosen]
    assert told == [("width 16", 0.0, 0), ("width 32", 1.0, 0)]
    assert chosen_widths(Trials(results[:2], 0)) == []


def test_the_drawing_says_its_numbers() -> None:
    chosen = chosen_trials(Trials([run(1.0), run(2.0, eta=1.0)], 0))
    with without_layout():
        text = svg(steps_figure(chosen, []))
    assert "best: 1.000" in text and "worst: 2.000" in text
    assert "best, log2 η 0, seed 0, step 10: 1.1000 nats" in text
    assert text.count('class="tip"') == 20
