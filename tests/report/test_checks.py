"""Coordinate checks and scales as `sweeper check` leaves them in a study's folder, made up."""

import copy
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeper.check.judge import CheckRecord, CheckRule, CoordinateCheck, check_coordinates
from sweeper.check.recursion import KernelRow
from sweeper.engine.measure import ModuleMeasurement
from sweeper.engine.measurements import OperandScale, OutOfRange
from sweeper.records import to_json
from sweeper.report import checks as show
from sweeper.report.console import collapsed
from sweeper.scaling.spec import Role
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import Size
from sweeper.table import Table
from tests.golden import Golden
from tests.layout import without_drawing, without_layout
from tests.report import samples
from tests.report.test_page import Page, render

RULE = CheckRule(steps=2, seeds=2)


def sample() -> CoordinateCheck:
    runs = {}
    for width in (16, 32):
        rows = [
            ("embed", Role.EMBEDDING, width, 0.0, -0.5),
            ("layers.0.up", Role.HIDDEN, width, 0.0, 0.0),
            ("layers.1.up", Role.HIDDEN, width, 0.0, 1.0),
            ("head", Role.READOUT, 1, -0.5, 0.0),
        ]
        runs[Size(width=width, depth=2)] = [
            [
                ModuleMeasurement(
                    name=name,
                    role=role,
                    entries=entries,
                    rms=width**at,
                    changes=(width**by,) * 2,
                    direct_changes=(width**by,) * 2,
                )
                for name, role, entries, at, by in rows
            ]
        ] * 2
    return check_coordinates("width", runs, RULE, {Role.EMBEDDING: -0.5})


def scale(product: str, operand: str, step: int, rms: float) -> OperandScale:
    lost = OutOfRange(underflow=0.25 if operand == "gradient" else 0.0, overflow=0.0)
    return OperandScale(product=product, operand=operand, step=step, rms=rms, e4m3=lost, e5m2=lost)


SCALES = [
    scale(product, operand, step, 2.0**step)
    for step in (0, 3)
    for product in ("layers.1.up", "layers.0.up", "head")
    for operand in ("gradient", "input", "weight")
]


def check() -> dict[str, Any]:
    record = CheckRecord(
        measured=4,
        parameterization="mup",
        optimizer="adamw",
        base=Size(width=16, depth=2),
        spec="",
        log2_hps={"eta": -4.0},
        rule=CheckRule(steps=2, seeds=2, batch=4, share=0.25, threshold=0.25),
        axes=(sample(),),
    )
    plain: dict[str, Any] = to_json(record)
    return plain


def scales() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = to_json([asdict(each) for each in SCALES])
    return result


RECORDS = {"check/check.json": check, "check/scales.json": scales}


def add(folder: Path) -> Path:
    for name, record in RECORDS.items():
        samples.write(folder / name, record())
    return folder


def test_names_are_collapsed_whatever_their_order() -> None:
    result = dict(collapsed([(n, n) for n in ("a.10.b", "a.2.b", "c", "a.3.d", "a.2.b")]))
    assert list(result) == ["a.2-10.b", "c", "a.3.d"]
    assert result["a.2-10.b"] == ["a.10.b", "a.2.b", "a.2.b"]


def test_the_figure_has_a_panel_a_module() -> None:
    figure = show.coordinate_figure(sample())
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert [title.split("\n")[0] for title in titles] == ["embed", "layers.0-1.up", "head"]
    assert titles[1].endswith("fail: grows")


def test_tables_of_kernels_have_room_for_every_column() -> None:
    """Widths are counted by name: of columns that share one, cells were cut."""
    drawn = Estimate(value=1.0, low=0.9, high=1.1)
    row = KernelRow(block="0", kernel="tangent", pair="image", measured=drawn, theory=1.0)
    for table in show.kernel_tables([row]):
        assert isinstance(table, Table)
        names = [column.name for column in table.columns]
        assert len(names) == len({*names}) > 4


SECTIONS = ["Coordinate check over width", "Scales of the matrix products"]


def study(folder: Path) -> Path:
    return add(samples.study(folder, samples.search(), w256=samples.validation("fails")))


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
    folder, made = study(tmp_path / "demo"), check()
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
