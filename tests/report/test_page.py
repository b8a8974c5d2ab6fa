import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sweeper.decide.documents import Documents
from sweeper.report.page import facts, page
from sweeper.report.study_page import study_report, write_report
from tests.layout import without_drawing, without_layout
from tests.report import samples

LINES = {"h1", "h2", "h3", "p", "li", "tr", "dt", "div", "pre", "summary", "title", "caption"}
VOID = {"meta", "br", "link", "img", "hr", "input"}


def render(folder: Path) -> str:
    return page(study_report(Documents.read(folder)))


class Page(HTMLParser):
    """Checks that tags are balanced; collects headings, ids, and addresses that would be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.headings: list[str] = []
        self.words: list[str] = []
        self.shown: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag in LINES:
            self.shown.append("\n")
        self._look(attrs)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self._look(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if not {"style", "script", "svg"} & set(self.open):
            self.shown.append(" ".join(data.split()))
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data.strip())

    def _look(self, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            elif name in ("src", "href", "xlink:href", "data", "action", "poster"):
                self.loads.append(value)
            assert not name.startswith("on")

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def prose(self) -> str:
        lines = (" ".join(line.split()) for line in " ".join(self.shown).split("\n"))
        return "\n".join(filter(None, lines))

    def section(self, heading: str) -> str:
        _, _, below = self.prose.partition(f"\n{heading}\n")
        following = (f"\n{other}\n" for other in self.headings if other != heading)
        ends = [end for other in following if (end := below.find(other)) >= 0]
        return below[: min(ends, default=len(below))]


def three_targets(folder):
    return samples.study(
        folder / "demo",
        samples.search(),
        w256=samples.validation(depth=True),
        w1024=samples.validation("fails"),
        w64=None,
    )


@pytest.fixture
def no_layout():
    with without_layout():
        yield


@pytest.fixture
def no_drawing():
    with without_drawing():
        yield


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    with without_layout():
        return render(three_targets(tmp_path_factory.mktemp("runs")))


def test_the_page_is_whole_and_needs_nothing_else(full):
    page = Page(full)
    assert full.startswith("<!DOCTYPE html>")
    assert all(address.startswith("#") for address in page.loads)
    assert not {"link", "img", "iframe", "base"} & set(page.tags)
    assert page.tags.count("svg") == 3 and page.tags.count("script") == 1
    assert "fetch(" not in full
    assert not re.search(r"url\((?!#)|@import", full)
    addresses = set(re.findall(r'(\S+?)="https?://', full))
    assert addresses <= {"xmlns", "xmlns:xlink"}


def test_the_page_reads_as_kept(full, golden):
    """Answers first, then intervals, what the search found, plans, costs and where it is from."""
    page = Page(full)
    assert "None" not in page.text
    golden.says(page.prose)


def test_where_numbers_come_from_is_text_and_no_json():
    record = {
        "eta_from": "the study",
        "correction": None,
        "objective": 2.30000000004,
        "data": {"name": "own", "classes": 256, "held": {"out": 0.1}, "none": None},
        "betas": [0.9, 0.95],
        "exact": True,
    }
    assert facts(record) == {
        "eta from": "the study",
        "objective": "2.3",
        "data": "name own, classes 256, held (out 0.1)",
        "betas": "0.9, 0.95",
        "exact": "yes",
    }


def test_a_command_that_takes_no_depth_is_told_none(tmp_path, no_drawing):
    folder = samples.study(tmp_path / "demo", samples.search(), w256=None)
    assert "depth 2" in Page(render(folder)).text
    (folder / "config.yaml").write_text("runner: {command: [train.py, '--n={width}']}")
    text = Page(render(folder)).text
    assert "at width 32." in text and "width 256" in text and "depth" not in text
    for word in ("'--d={depth}'", "'--p={plan}'", "'{max(1,depth)}'"):
        (folder / "config.yaml").write_text(f"runner: {{command: [train.py, {word}]}}")
        assert "depth 2" in Page(render(folder)).text


def test_the_same_documents_give_the_same_bytes(tmp_path, no_layout):
    folder = samples.study(tmp_path / "demo", samples.search(), w256=samples.validation())
    first = write_report(folder)
    assert first == folder / "report.html"
    content = first.read_bytes()
    assert write_report(folder).read_bytes() == content


def test_a_doubt_says_what_would_settle_it(tmp_path, no_drawing, golden):
    validation = samples.validation("cannot say yet")
    page = Page(render(samples.study(tmp_path / "demo", samples.search(), w256=validation)))
    assert page.headings[1] == "Cannot say yet whether the transfer of eta holds"
    golden.says(page.section(page.headings[1]))


def test_all_runs_diverged(tmp_path, no_layout, golden):
    search = samples.search(objective=float("inf"), lines=[], combination=None)
    folder = samples.study(tmp_path / "demo", search, w64=samples.diverged_validation())
    page = Page(render(folder))
    golden.says(page.prose)
    assert not re.search(r"\b(nan|inf)\b", page.text)


def test_with_nothing_but_a_configuration(tmp_path, golden):
    (tmp_path / "config.yaml").write_text("a: 1\n")
    page = Page(render(tmp_path))
    assert page.headings[:2] == [tmp_path.name, "The transfer has not been validated yet"]
    golden.says(page.prose)


def test_with_nothing_at_all(tmp_path):
    assert "Not recorded yet." in Page(render(tmp_path)).text


def test_an_unfinished_search_says_so(tmp_path, no_drawing, golden):
    search = samples.search(finished=False, runs=21, combination=None)
    page = Page(render(samples.study(tmp_path / "demo", search)))
    assert page.headings[1] != "Search"
    golden.says(page.section("Search"))


def test_validation_without_a_plan(tmp_path, no_drawing):
    folder = samples.study(tmp_path / "demo", samples.search(), w256=samples.validation())
    (folder / "transfer" / "w256-d2" / "plan.json").unlink()
    page = Page(render(folder))
    assert "✓ To w256-d2, over width: holds" in page.text
    assert "Plan for" not in page.text


def test_everything_from_files_is_escaped(tmp_path, no_layout):
    evil, hidden = "<script>alert('&')</script>", "\x1b]0;\x07\x9b\u202e\U000e0041"
    search = samples.search(study=evil, notes=[evil], provenance={evil: evil, "command": evil})
    search["notes"].append(hidden)
    search["lines"][0]["name"] = evil
    validation = samples.validation()
    validation["axes"][0] |= {"todo": evil}
    validation["axes"][0]["sizes"][0] |= {"reason": evil, "answer": "fails"}
    folder = samples.study(tmp_path / "a <b>", search, w256=validation)
    (folder / "config.yaml").write_text(f"note: {evil}\n")
    text = render(folder)
    page = Page(text)
    assert not set(hidden) - set("]0;") & set(text)
    assert page.tags.count("script") == 1  # the page's own, which its policy names by its digest
    assert page.headings[0] == folder.name
    assert page.text.count(evil) >= 7


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("search.json", lambda found: found | {"lines": 1.5}),
        ("transfer/w256-d2/plan.json", lambda found: found | {"target": {"depth": 2}}),
        ("transfer/w256-d2/validation.json", lambda found: found | {"axes": [{"axis": 1}]}),
        ("transfer/w256-d2/validation.json", lambda found: []),
        ("search.json", None),
    ],
)
def test_a_damaged_document_is_named_and_stops_no_page(tmp_path, no_drawing, name, wrong):
    validation = samples.validation(depth=True)
    folder = samples.study(tmp_path / "demo", samples.search(), w256=validation, w64=None)
    path = folder / name
    path.write_text(json.dumps(wrong(json.loads(path.read_text()))) if wrong else "\x00\xff")
    (folder / "transfer/w8-d2").write_text("a file")
    text = Page(write_report(folder).read_text()).text
    assert f"Damaged, and not shown: {name}." in text
    assert "Provenance" in text and "To width 64, depth 2: a plan" in text
    assert "w8-d2" not in text
    searched = name != "search.json"
    assert ("Training loss of this configuration" in text) == searched
