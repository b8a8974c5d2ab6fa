"""The list of a root's studies: where each stands, whatever its records are."""

from __future__ import annotations

from pathlib import Path

from sweeper.report.pages import write_index
from tests.report import samples
from tests.report.test_page import Page


def test_studies_are_listed_with_their_answers_and_pages(tmp_path: Path) -> None:
    samples.study(tmp_path / "whole", samples.search(), w256=samples.validation("fails"))
    (tmp_path / "whole/report.html").write_text("")
    samples.study(tmp_path / "begun", samples.search(finished=False))
    broken = samples.study(tmp_path / "<b>", samples.search())
    (broken / "search.json").write_text("[")
    page = Page(write_index(tmp_path).read_text())
    assert "whole finished 3.4120 ✗ fails" in page.text
    assert "begun not finished 3.4120 -" in page.text and "<b>" in page.text
    assert page.loads == ["whole/report.html"]


def test_a_root_without_studies_has_a_list_too(tmp_path: Path) -> None:
    assert "There is no study yet." in write_index(tmp_path).read_text()
