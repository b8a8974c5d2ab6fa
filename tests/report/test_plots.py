from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import pytest

from sweeper.records import to_json
from sweeper.report.documents import ladder_curves, number
from sweeper.report.drawing import save, svg
from sweeper.report.figures import best_loss_figure, learning_rate_figure, lines_figure
from tests.report import samples


def axes_of(figure):
    return figure.axes[0]


def texts(figure):
    """All words of a figure's drawing."""
    root = ElementTree.fromstring(svg(figure))
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


def one_point():
    points = [{"log2_eta": 1.5, "losses": [3.5, 3.6]}]
    return {
        "transferred_log2_eta": 1.5,
        "axes": [],
        "curves": [{"width": 32, "depth": 2, "points": points}],
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (2.5, 2.5), ("inf", math.inf), ("-inf", -math.inf), ("1e-8", 1e-8)],
)
def test_number_reads_what_json_can_hold(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize("value", ["nan", None, "", "much", [1], {}])
def test_number_of_anything_else_is_nan(value):
    assert math.isnan(number(value))


@pytest.mark.parametrize("answer", ["holds", "fails", "cannot say yet"])
def test_title_says_the_verdict(answer):
    figure = learning_rate_figure(to_json(samples.validation(answer)), "width")
    assert axes_of(figure).get_title(loc="left") == f"Transfer over width: {answer}"


def test_ladders_are_told_apart_and_ordered_by_size():
    validation = samples.validation(depth=True)
    validation["curves"].reverse()
    assert [c["width"] for c in ladder_curves(validation, "width")] == [32, 64, 128, 256]
    assert [(c["width"], c["depth"]) for c in ladder_curves(validation, "depth")] == [
        (32, 2),
        (32, 4),
        (32, 8),
    ]


def test_ladders_over_batch_size_share_the_base_s_size():
    curves = [
        {**samples.curve(width, 2, 1.5), "batch_size": batch, "steps": steps}
        for width, batch, steps in [(64, 8, 50), (32, 16, 50), (32, 8, 50), (32, 8, 99)]
    ]
    sizes = [{"size": {k: c[k] for k in ("width", "depth", "batch_size", "steps")}} for c in curves]
    axes = [{"axis": "batch_size", "sizes": [sizes[2], sizes[1]]}]
    axes += [{"axis": "steps", "sizes": [sizes[2], sizes[3]]}]
    validation = {"curves": curves, "axes": axes}
    assert ladder_curves(validation, "batch_size") == [curves[2], curves[1]]
    assert ladder_curves(validation, "steps") == [curves[2], curves[3]]
    title = axes_of(learning_rate_figure(to_json(validation), "batch_size")).get_title(loc="left")
    assert title.startswith("Transfer over batch size: ")


def test_legend_names_sizes_in_order_with_their_optima():
    words = texts(learning_rate_figure(to_json(samples.validation()), "width"))
    entries = [word for word in words if re.fullmatch(r"\d+: .*", word)]
    assert entries[0] == "32: 1.52 [1.41, 1.63]"
    assert [entry.partition(":")[0] for entry in entries] == ["32", "64", "128", "256"]
    assert "transferred: 1.50" in words


def test_a_huge_loss_does_not_squash_the_basin():
    validation = samples.validation()
    validation["curves"][0]["points"][-1]["losses"] = [900.0, 1100.0]
    figure = learning_rate_figure(to_json(validation), "width")
    bottom, top = axes_of(figure).get_ylim()
    best = [min(sum(p["losses"]) / 2 for p in c["points"]) for c in validation["curves"]]
    assert bottom < min(best)
    assert max(best) < top < 6
    assert "above the axis" in texts(figure)


def test_diverged_points_are_said_to_be_so():
    figure = learning_rate_figure(to_json(samples.validation("fails")), "width")
    assert "diverged" in texts(figure)


def test_a_size_of_diverged_runs_only_has_no_optimum():
    figure = learning_rate_figure(samples.diverged_validation(), "width")
    words = texts(figure)
    assert "no finite loss" in words
    assert "32: none" in words


def test_a_failed_seed_counts_as_diverged():
    validation = samples.validation()
    validation["curves"][3]["points"][0]["losses"] = [3.0, math.nan]
    assert "diverged" in texts(learning_rate_figure(to_json(validation), "width"))


@pytest.mark.parametrize(
    "validation",
    [{}, {"curves": []}, one_point(), samples.validation(seeds=1), samples.diverged_validation()],
    ids=["missing", "empty", "one point", "one seed", "diverged"],
)
def test_learning_rate_figure_draws_whatever_there_is(validation):
    assert svg(learning_rate_figure(to_json(validation), "width")).startswith("<svg")


@pytest.mark.parametrize(
    "changes",
    [
        {"best_loss_curve": [], "phase_ends": {}, "lines": []},
        {"best_loss_curve": [[1, "inf"], [2, "inf"]], "phase_ends": {"eta": 2}},
        {"best_loss_curve": [[1, "inf"], [2, 3.5]], "phase_ends": {}},
        {
            "lines": [
                {"name": "eta", "points_log2": [[1, "inf"]], "optimum_log2": 1, "objective": "inf"}
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
    search = samples.search(**changes)
    assert svg(best_loss_figure(search)).startswith("<svg")
    assert svg(lines_figure(search)).startswith("<svg")


def test_search_figures_of_nothing():
    assert "no finite loss" in texts(best_loss_figure({}))
    assert "no finite loss" in texts(lines_figure({}))


def test_best_loss_figure_says_the_best_and_names_the_phases():
    words = texts(best_loss_figure(samples.search()))
    assert "Best loss so far: 3.4120 nats after 60 runs" in words
    assert {"eta", "lines", "combine"} <= set(words)


def test_lines_share_a_scale_and_name_their_optimum():
    figure = lines_figure(to_json(samples.search()))
    words = texts(figure)
    assert "alpha_residual_attn_ratio" in words
    assert "optimum -0.5" in words
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_names_are_text_and_neither_markup_nor_math():
    name = "<script>$x_$y$"
    search = samples.search()
    search["lines"][0]["name"] = name
    search["phase_ends"] = {name: 60}
    assert name in texts(lines_figure(to_json(search)))
    assert name in texts(best_loss_figure(search))
    assert "<script" not in svg(lines_figure(to_json(search)))


def test_svg_is_the_same_every_time_and_fits_its_box():
    first, second = (svg(best_loss_figure(samples.search())) for _ in range(2))
    assert first == second
    tag = first[: first.index(">")]
    assert "viewBox" in tag
    assert " width=" not in tag
    assert "<style" not in first


def test_svg_ids_bear_the_name_and_are_all_defined():
    text = svg(best_loss_figure(samples.search()), "cost")
    ids = re.findall(r'\sid="([^"]*)"', text)
    used = re.findall(r'(?:href="#|url\(#)([^")]*)', text)
    assert all(found.startswith("cost-") for found in ids)
    assert len(ids) == len(set(ids))
    assert used
    assert set(used) <= set(ids)


def test_save_writes_png_and_svg_beside_each_other(tmp_path):
    png, vector = save(best_loss_figure(samples.search()), tmp_path / "w1.5-cost")
    assert (png.name, vector.name) == ("w1.5-cost.png", "w1.5-cost.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "Best loss so far" in vector.read_text()
    ElementTree.parse(vector)
    assert sorted(tmp_path.iterdir()) == [png, vector]


def test_no_global_state_is_changed():
    before = dict(mpl.rcParams)
    svg(lines_figure(samples.search()))
    assert dict(mpl.rcParams) == before
    code = "import sweeper.report.page, sys; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_optimum_without_an_interval_is_marked_and_has_none():
    record = samples.validation(seeds=1)
    for size in record["axes"][0]["sizes"]:
        size["optimum_log2"] |= {"low": "-inf", "high": "inf"}
    found = svg(learning_rate_figure(record, "width"))
    assert "inf" not in found and "nan" not in found


def test_a_best_loss_that_is_found_early_has_an_axis_that_shows_how() -> None:
    losses = [9.0, 2.5, 2.4, 2.3, *[2.25] * 9]
    search = {"best_loss_curve": [[i + 1, loss] for i, loss in enumerate(losses)]}
    low, high = best_loss_figure(search).axes[0].get_ylim()
    assert low < 2.25 and high > 2.5
