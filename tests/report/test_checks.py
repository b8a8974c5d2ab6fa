"""Coordinate checks and scales as `sweeper check` leaves them in a study's folder, made up."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from tests.report import samples

RULE = CheckRule(steps=2, seeds=2)


def sample() -> CoordinateCheck:
    """Two layers, of which the second grows, and a head that begins small."""
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
