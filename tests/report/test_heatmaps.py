from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

from sweeper.records import to_json
from sweeper.report.drawing import save, svg
from sweeper.report.figures import pairs_figure
from sweeper.report.page import render
from tests.report import samples

ROWS = [[3.0, 2.0, 4.0], [2.5, 3.5, math.inf]]


def searched(losses=ROWS, names=("eta", "alpha_<attn>")):
    grid = {"names": names, "values_log2": [[-1, 0], [-2, 0, 2]], "losses": losses}
    return to_json({"pairs": [grid | {"transfer_error": 0.1234}]})


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
    for document in (searched([[math.inf] * 3] * 2), {"pairs": []}, {}):
        assert svg(pairs_figure(document)).startswith("<svg")


def test_is_drawn_without_images_and_saved_twice(tmp_path):
    root = ElementTree.fromstring(svg(pairs_figure(searched())))
    assert not list(root.iter("{http://www.w3.org/2000/svg}image"))
    png, drawing = save(pairs_figure(searched()), tmp_path / "pairs")
    assert png.read_bytes().startswith(b"\x89PNG") and drawing.stat().st_size > 1000


def test_the_page_shows_it_only_where_there_is_one(tmp_path):
    with_pairs = samples.study(tmp_path / "a", samples.search(**searched()))
    without = samples.study(tmp_path / "b", samples.search())
    assert "Pairs of hyperparameters" in render(with_pairs)
    assert "Pairs of hyperparameters" not in render(without)
