"""Several studies' curves side by side."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from sweeper.report.drawing import svg
from sweeper.report.figures import DARK, LIGHT, Panel, ladders_figure, write_picture
from tests.layout import without_layout
from tests.report import samples

STAYS = Panel(title="stays", validation=samples.validation())
DRIFTS = Panel(title="drifts", validation=samples.validation("fails"))


def test_panels_share_the_loss_and_as_many_octaves() -> None:
    longer = samples.validation()
    longer["curves"][0] = samples.curve(32, 2, 1.52, longer=3)
    with without_layout():
        figure = ladders_figure([STAYS, Panel(title="longer", validation=longer)])
    first, second = figure.axes
    assert first.get_ylim() == second.get_ylim()
    spans = [high - low for low, high in (ax.get_xlim() for ax in figure.axes)]
    assert spans[0] == spans[1] > 5.5
    assert first.get_title(loc="left") == "stays: holds"


def test_the_optima_are_marked_and_joined() -> None:
    with without_layout():
        ax, _ = ladders_figure([DRIFTS, STAYS]).axes
    stars = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "*"]
    assert stars == [1.52, 1.61, 1.38, 0.1]
    joined = [line for line in ax.lines if list(line.get_xdata()) == stars]
    assert len(joined) == 1
    assert "best η moves by 1.5 octaves" in {text.get_text() for text in ax.texts}


def test_points_say_their_numbers_and_long_names_are_cut() -> None:
    name = "a-study-with-quite-a-long-name-of-its-own"
    with without_layout():
        figure = ladders_figure([Panel(title=name, validation=samples.validation())])
        text = svg(figure)
    assert f"{name}, width 32, log2 η 1.5: " in text
    assert figure.axes[0].get_title(loc="left") == "a-study-with-quite-a-long-nam…"
    assert {one.get_text() for one in figure.axes[0].texts} == {
        "holds; best η moves by 0.2 octaves"
    }


def test_more_studies_than_columns_get_another_row() -> None:
    panels = [Panel(title=str(i), validation=samples.validation()) for i in range(4)]
    with without_layout():
        figure = ladders_figure(panels)
    assert len(figure.axes) == 4


def test_the_picture_stands_alone_and_has_a_dark_one_beside_it(tmp_path: Path) -> None:
    with without_layout():
        light, dark = write_picture([STAYS, DRIFTS], tmp_path / "a.svg")
    assert [path.name for path in (light, dark)] == ["a.svg", "a-dark.svg"]
    texts = [path.read_text() for path in (light, dark)]
    for text, theme in zip(texts, (LIGHT, DARK), strict=True):
        ElementTree.fromstring(text)
        assert theme.ink in text and len(text) < 150_000
        assert "<text" not in text and "tip " not in text, "letters are shapes"
        assert not re.search(r'(?:href|src)="https?:', text)
        assert 'style="fill: #ffffff"' not in text, "it has no background"
    assert DARK.ink not in texts[0] and LIGHT.ink not in texts[1]
