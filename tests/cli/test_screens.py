"""How verbs end where they have much to say: `tests/cli/screens.py` counts it, as in every test.

At 80 and 100 columns: no broken row, nothing cut.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sweeper.launch.slurm import Slurm
from sweeper.study.lock import StudyLock
from tests.cli.driver import TINY, Answer, Run
from tests.cli.screens import WIDTHS, faults
from tests.cli.test_own_command import WORDS, searched
from tests.command.commands import SCRIPT
from tests.verbs.test_status import progress

Screens = dict[int, str]
MANY = ["transfer.widths=[16,24,32,48,64,96,128,192,256,384,512]", "transfer.seeds=2"]
JOB = {"trials": 4, "state": "running", "stage": "running", "fraction": 0.5}


@pytest.fixture
def ends(sweeper: Run, screen: Screens) -> Run:
    def run(*words: str) -> Answer:
        screen.clear()
        answer = sweeper(*words)
        assert answer.code in (0, 3), answer.err
        assert set(screen) == {*WIDTHS}, f"not counted: {words}"
        return answer

    return run


def test_what_is_a_fault() -> None:
    assert faults("a word\n" * 60, 80) == []
    (broken,) = faults("a word " * 20, 80)
    assert broken.startswith("a broken line")
    assert faults("Report: " + "/a/path" * 20, 80) == []
    assert faults("a na…", 80) == ["a cut line: 'a na…'"]


def test_status_of_many_studies_and_jobs(
    study: Path, ends: Run, sweeper: Run, screen: Screens
) -> None:
    names = [f"gpt2-owt-lr-search-number-{i}" for i in range(60)]
    for name in names:
        shutil.copytree(study, study.with_name(name))
    assert " more\n" in ends("status").out
    assert sum(name in screen[80] for name in names) <= 6
    jobs = [{**JOB, "id": str(i), "node": f"node{i}.cluster", "since": "12:00"} for i in range(90)]
    with StudyLock(study):
        progress(study, jobs=jobs)
        assert "Jobs: 90" in ends("status", "a").out
        ends("cancel", "a")


def test_a_long_command_and_its_long_ladder(workplace: Path, ends: Run, screen: Screens) -> None:
    """What a trial's command is, is told as far as there is room; what to type next always."""
    shutil.copy(SCRIPT, workplace / "train.py")
    argv = searched("search.line={points: 3, extend: 0}", command=(*WORDS, "--how=fine"))
    ends(*argv, "--dry-run")
    assert "The command of a trial, at the defaults:" in screen[80]
    assert "Its losses: lines of its output" in screen[80]
    ends(*argv)
    ends("transfer", "--to-width", "512", "--validate", "--dry-run", *MANY)
    ends("transfer", "--to-width", "512", "--horizons", "--dry-run", *MANY)
    ends("transfer", "--to-width", "512", "--validate", "--settle", "--dry-run", *MANY)
    ends("transfer", "--to-width", "512", *MANY)
    assert "The target's command:" in screen[80]


def test_the_dry_run_of_jobs_has_the_batch_script_where_all_is_asked_for(
    workplace: Path, ends: Run, sweeper: Run, screen: Screens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slurm, "check", lambda *_: None)
    monkeypatch.setattr(Slurm, "script", lambda *_: "#SBATCH --a-line\n" * 30)
    argv = ["search", "launcher=slurm", "launcher.time=60", *TINY, "--dry-run"]
    ends(*argv)
    assert "#SBATCH" not in screen[80] and "the batch script" in screen[80]
    assert "#SBATCH" in sweeper(*argv, "--verbose").out
