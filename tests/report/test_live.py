"""The page while a study runs: who writes it, when it ends, and what a failure costs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.files import write_json
from sweeper.report import progress_bar, study_page
from sweeper.report.progress_bar import LivePage
from sweeper.report.study_page import write_report
from sweeper.stats.ladder import LadderPoint, LadderSize, LadderSoFar
from sweeper.study.lock import StudyLock
from sweeper.sweep.progress import Snapshot
from tests.layout import without_drawing
from tests.report import samples


@pytest.fixture(scope="module", autouse=True)
def no_drawing() -> Iterator[None]:
    with without_drawing():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return samples.study(tmp_path / "demo")


def ladder() -> LadderSoFar:
    size = {"depth": 2, "batch_size": 8, "steps": 100}
    narrow, wide = (LadderSize(width=width, **size) for width in (16, 64))
    points = [LadderPoint(size=narrow, value=-4.0, runs=2, losses=(2.25, 2.75))]
    points.append(LadderPoint(size=narrow, value=-3.0, runs=2, losses=(2.25,)))
    points += [LadderPoint(size=wide, value=value, runs=2) for value in (-4.0, -3.0)]
    return LadderSoFar(hyperparameter="eta", points=tuple(points))


def is_live(folder: Path) -> bool:
    return "data-live=" in (folder / "report.html").read_text()


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress_bar, "time", made)
    return made


def test_it_is_written_seldom_and_put_right_where_its_driver_is_stopped(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, real, written = folder / "report.html", study_page.write_report, []

    def slow(*args: Any, **named: Any) -> Path:
        clock.now += 3.0
        written.append(named)
        return real(*args, **named)

    monkeypatch.setattr(study_page, "write_report", slow)
    page = LivePage(folder, pytest.fail)
    page.changed()
    page.stopped()
    assert not report.exists(), "what ends soon is written at its end"
    clock.now = progress_bar.PAGE_EVERY
    page.changed()
    assert is_live(folder) and len(written) == 1
    clock.now += 3.0 / progress_bar.WRITE_SHARE - 1
    page.changed()
    assert len(written) == 1, "one that takes long is written seldom"
    clock.now += 1.0
    page.changed()
    assert len(written) == 2
    page.stopped()
    assert not is_live(folder)


def test_a_page_that_cannot_be_written_is_told_once_and_costs_nothing_else(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(study_page, "study_report", lambda *_: 1 / 0)
    page = LivePage(folder, lines.append)
    for _ in range(3):
        clock.now += 1000.0
        page.changed()
    page.stopped()
    assert len(lines) == 1 and "ZeroDivisionError" in lines[0] and "sweeper report" in lines[0]


def test_the_ladder_is_shown_as_it_fills(folder: Path) -> None:
    write_json(
        folder / "progress.json",
        Snapshot(job="validate", phase="validate", done=3, total=8, ladder=ladder()),
    )
    text = write_report(folder, live=5.0).read_text()
    assert "Running: validate: 3 of 8 trials" in text
    assert "The ladder: 3 of 8 runs, by log2 eta" in text
    for cell in ("2.500", "1/2", ">64</th>"):
        assert cell in text
    assert "Running" not in write_report(folder).read_text()


def test_a_page_says_where_a_driver_was_stopped(folder: Path) -> None:
    progress = Snapshot(
        job="validate", done=3, total=8, left=60.0, ladder=ladder(), over=False, phase="validate"
    )
    write_json(folder / "progress.json", progress)
    said = "Stopped: validate: 3 of 8 trials."
    text = write_report(folder).read_text()
    assert said in text and "The ladder: 3 of 8 runs" in text and "data-live" not in text
    with StudyLock(folder):
        assert "Stopped" not in write_report(folder).read_text(), "a driver that lives"
        assert said in write_report(folder, is_left=True).read_text(), "one that is ending"
    write_json(folder / "progress.json", replace(progress, over=True))
    assert "Stopped" not in write_report(folder).read_text()
