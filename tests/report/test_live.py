"""The page while a study runs: who writes it, when it ends, and what a failure costs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.files import write_json
from sweeper.report import live, study_page
from sweeper.report.live import LivePage, is_live, keep_written
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
    """A study that has results, and no conclusion yet."""
    return samples.study(tmp_path / "demo")


def ladder() -> LadderSoFar:
    """Two widths: one is measured but for a seed, one has not begun."""
    size = {"depth": 2, "batch_size": 8, "steps": 100}
    narrow, wide = (LadderSize(width=width, **size) for width in (16, 64))
    points = [LadderPoint(size=narrow, value=-4.0, runs=2, losses=(2.25, 2.75))]
    points.append(LadderPoint(size=narrow, value=-3.0, runs=2, losses=(2.25,)))
    points += [LadderPoint(size=wide, value=value, runs=2) for value in (-4.0, -3.0)]
    return LadderSoFar(hyperparameter="eta", points=tuple(points))


def test_it_is_written_as_results_come_and_says_at_the_end_that_nothing_runs(folder: Path) -> None:
    report, times, seen = folder / "report.html", [], []

    def wait(seconds: float) -> str:
        times.append(seconds)
        seen.append(report.stat().st_mtime_ns if report.exists() else 0)
        if len(seen) == 2:
            assert is_live(report)
        if len(seen) == 3:  # nothing had changed: it was not written anew
            assert seen[1] == seen[2]
            with (folder / "results/000001.jsonl").open("a") as file:
                file.write("\n")
        if len(seen) == 4:
            assert seen[3] > seen[2]
        return "" if len(seen) < 4 else "gone"

    keep_written(folder, wait)
    assert times[0] == live.START_AFTER and min(times[1:]) >= live.EVERY
    assert not is_live(report)


def test_a_page_that_takes_long_is_written_seldom(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 9.0])
    monkeypatch.setattr(live.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(live, "_write", lambda folder, every: None)
    times: list[float] = []
    keep_written(folder, lambda seconds: times.append(seconds) or "gone" * (len(times) > 1))
    assert times[1] == 9.0 / live.SHARE


@pytest.mark.parametrize("is_last", [False, True])
def test_a_process_that_dies_just_before_the_end_costs_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """Nobody asked since: its pipes are closed by the thread that waits for it."""
    monkeypatch.setattr(live, "ENABLED", True)
    monkeypatch.setattr(live.sys, "executable", "/bin/false")
    shown = LivePage(folder, pytest.fail, "sweeper report demo")
    shown.changed()
    for thread in threading.enumerate():
        if thread.name == "live-page":
            thread.join()
    shown.close(is_last=is_last)


@pytest.mark.parametrize("is_left", [False, True])
def test_the_last_page_is_the_drivers_own_unless_it_ends_without_one(
    folder: Path, is_left: bool
) -> None:
    report, states = folder / "report.html", iter(["", "stop", "", "gone"])

    def wait(seconds: float) -> str:
        state = next(states)
        if state == "" and is_live(report) and not is_left:
            report.write_text("the driver's")
        return state

    keep_written(folder, wait)
    assert not is_live(report)
    assert (report.read_text() == "the driver's") != is_left


def test_a_process_that_dies_is_told_once_and_costs_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(live, "ENABLED", True)
    monkeypatch.setattr(live.sys, "executable", "/bin/false")
    shown = LivePage(folder, told.append, "sweeper report demo")
    shown.changed()
    for thread in threading.enumerate():
        if thread.name == "live-page":
            thread.join()
    shown.changed()
    shown.changed()
    shown.close(is_last=True)
    assert len(told) == 1 and "report.html" in told[0] and "sweeper report demo" in told[0]


def test_it_says_why_it_cannot_be_drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live.os, "nice", lambda by: 0)
    monkeypatch.setattr(live, "_wait", lambda seconds: "")
    left = write_report(folder, live=5.0)
    before = left.read_bytes()
    monkeypatch.setattr(study_page, "render", lambda *_: 1 / 0)
    with pytest.raises(SystemExit):
        live.main(folder)
    assert capfd.readouterr().out == "ZeroDivisionError: division by zero\n"
    # The page before it is no live one any more, and else the same.
    assert not is_live(left) and left.read_bytes() == before.replace(b"data-live=", b"data-left=")


def test_a_process_without_a_first_page_ends_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ENABLED", True)
    assert Path(sys.executable).exists()
    shown = LivePage(folder, pytest.fail, "sweeper report demo")
    shown.changed()
    shown.close(is_last=False)
    for thread in threading.enumerate():
        if thread.name == "live-page":
            thread.join()
    assert not (folder / "report.html").exists()


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
        keep_written(folder, lambda seconds: "gone")
        assert said in (folder / "report.html").read_text(), "one that is ending"
    write_json(folder / "progress.json", replace(progress, over=True))
    assert "Stopped" not in write_report(folder).read_text()


def test_files_of_the_folder_worked_in_are_no_modules(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's script beside the study may be called as one of Python's own modules."""
    (tmp_path / "statistics.py").write_text("raise RuntimeError('mine')")
    monkeypatch.chdir(tmp_path)
    started = subprocess.run(
        live.program(folder),
        input=b"",
        capture_output=True,
        timeout=120,
    )
    assert started.returncode == 0, started.stdout
    assert (folder / "report.html").is_file()
