"""What the page shows of coordinate checks and scales, damaged ones too."""

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeper.records import to_json
from tests.golden import Golden
from tests.layout import without_drawing, without_layout
from tests.report import samples, test_checks
from tests.report.test_checks import RECORDS
from tests.report.test_page import Page, render

SECTIONS = ["Coordinate check over width", "Scales of the matrix products"]


def study(folder: Path) -> Path:
    return test_checks.add(
        samples.study(folder, samples.search(), w256=samples.validation("fails"))
    )


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    with without_layout():
        return render(study(tmp_path_factory.mktemp("runs") / "demo"))


def test_a_check_that_fails_stands_at_the_head(full: str) -> None:
    """Beside the verdict, before any section: two widths do not tell where it leads."""
    head = full[: full.index("</section>")]
    text = "Coordinate check over width 16, 32: fail at layers.1.up"
    assert text in head and "transfer.widths=[16,32,64] would" in head


def test_a_check_that_passes_is_no_news(tmp_path: Path) -> None:
    folder, made = study(tmp_path / "demo"), test_checks.check()
    made["axes"][0]["answer"] = "pass"
    samples.write(folder / "check/check.json", made)
    with without_drawing():
        text = render(folder)
    assert "Coordinate check" not in text[: text.index("</section>")]


def test_the_check_has_a_row_for_layers_that_are_alike(full: str, golden: Golden) -> None:
    page = Page(full)
    assert page.text.count("Coordinate check over width: fail") == 1, "the figure's title"
    golden.says(page.section("Coordinate check over width"))


def test_the_scales_are_listed(full: str, golden: Golden) -> None:
    scales = Page(full).section("Scales of the matrix products")
    assert "gradient" in scales
    golden.says(scales)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within a record."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


GONE = object()
WRONG = st.sampled_from([GONE, None, "", "x", "nan", [], {}, [1], -1, 1.5, True, 10**30])
WHOLE = {name: to_json(record()) for name, record in RECORDS.items()}
PLACES = {name: list(places(record)) for name, record in WHOLE.items()}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), name=st.sampled_from(sorted(RECORDS)), wrong=WRONG)
def test_a_damaged_record_never_stops_the_page(data: Any, name: str, wrong: Any) -> None:
    """Anything in the place of any value: the section is there or it is not."""
    record = copy.deepcopy(WHOLE[name])
    *path, last = data.draw(st.sampled_from(PLACES[name]))
    inner: Any = record
    for key in path:
        inner = inner[key]
    if wrong is GONE:
        del inner[last]
    else:
        inner[last] = wrong
    with tempfile.TemporaryDirectory() as temporary, without_layout():
        folder = Path(temporary)
        samples.write(folder / name, record)
        page = Page(render(folder))
    assert len(set(page.headings) & set(SECTIONS)) <= 1
