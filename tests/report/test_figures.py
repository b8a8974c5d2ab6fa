"""Figures: what is drawn, what it says, and that it draws whatever there is."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from sweeper.report.drawing import learning_rate_figure, save, svg
from tests.layout import without_layout
from tests.report import samples


def axes_of(figure):
    return figure.axes[0]


def texts(figure):
    with without_layout():
        root = ElementTree.fromstring(svg(figure))
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


def validation_figure(record, axis="width"):
    validation = samples.validated(record)
    return learning_rate_figure(validation, validation.over(axis))


def name_axis(name):
    validation = replace(samples.validated(samples.validation()), hyperparameter=name)
    return learning_rate_figure(validation, validation.over("width"))


def sizes_of(record, axis):
    return [curve.size for curve in samples.validated(record).ladder(axis)]


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
    assert title == "Transfer over batch size: holds"


def test_legend_names_sizes_in_order_with_their_optima():
    argv = texts(validation_figure(samples.validation()))
    entries = [word for word in argv if re.fullmatch(r"\d+: .*", word)]
    assert entries[0] == "32: 2.87 [2.66, 3.1]"
    assert [entry.partition(":")[0] for entry in entries] == ["32", "64", "128", "256"]
    assert "transferred: 2.83" in argv


def test_a_huge_loss_does_not_squash_the_optima():
    validation = samples.validation()
    validation["curves"][0]["losses"]["3.5"] = [900.0, 1100.0]
    figure = validation_figure(validation)
    bottom, top = axes_of(figure).get_ylim()
    best = [min(sum(p) / 2 for p in c["losses"].values()) for c in validation["curves"]]
    assert bottom < min(best)
    assert max(best) < top < 6
    assert "above the axis" in texts(figure)


def test_a_size_of_diverged_runs_only_has_no_optimum():
    figure = validation_figure(samples.diverged_validation())
    argv = texts(figure)
    assert "no finite loss" in argv
    assert "32: none" in argv


def test_a_failed_seed_counts_as_diverged():
    validation = samples.validation()
    validation["curves"][3]["losses"]["-0.5"] = [3.0, math.nan]
    assert "diverged" in texts(validation_figure(validation))


@pytest.mark.parametrize(
    "validation",
    [
        samples.validation() | {"curves": []},
        samples.validation() | {"curves": [samples.curve(32, 2, 1.5) | {"losses": {"1.5": [3.5]}}]},
    ],
    ids=["empty", "one point"],
)
def test_learning_rate_figure_draws_whatever_there_is(validation):
    assert svg(validation_figure(validation)).startswith("<svg")


def test_svg_fits_its_box_and_its_ids_bear_the_name_and_are_all_defined():
    text = svg(validation_figure(samples.validation()), "cost")
    tag = text[: text.index(">")]
    assert "viewBox" in tag and " width=" not in tag and "<style" not in text
    ids = re.findall(r'\sid="([^"]*)"', text)
    used = re.findall(r'(?:href="#|url\(#)([^")]*)', text)
    assert all(result.startswith("cost-") for result in ids)
    assert len(ids) == len(set(ids))
    assert used
    assert set(used) <= set(ids)


def test_save_writes_png_and_svg_beside_each_other(tmp_path):
    png, vector = save(validation_figure(samples.validation()), tmp_path / "w1.5-cost")
    assert (png.name, vector.name) == ("w1.5-cost.png", "w1.5-cost.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "Transfer over width" in vector.read_text()
    ElementTree.parse(vector)
    assert sorted(tmp_path.iterdir()) == [png, vector]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_are_text_neither_markup_nor_math_and_leave_whole_xml(tmp_path):
    figure = name_axis("<script>$x_$y$")
    assert any("<script>$x_$y$" in text for text in texts(figure))
    assert "<script" not in svg(figure)
    figure = name_axis("\x1b[31m\x00\x0c")
    _, vector = save(figure, tmp_path / "cost")
    for root in (ElementTree.parse(vector).getroot(), ElementTree.fromstring(svg(figure))):
        assert root.tag.endswith("svg")


def test_the_page_loads_no_pyplot():
    code = "import sweeper.report.study_page, sys; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_optimum_without_an_interval_is_marked_and_has_none():
    record = samples.validation(seeds=1)
    for size in record["axes"][0]["sizes"]:
        size["optimum_log2"] |= {"low": "-inf", "high": "inf"}
    result = svg(validation_figure(record))
    assert "inf" not in result and "nan" not in result
