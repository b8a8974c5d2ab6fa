import json
import os
import shlex
import shutil
import time
from pathlib import Path

import pytest

from sweeper.study.lock import StudyLock
from tests.cli.driver import TINY, Run, assert_refused, measured, tree
from tests.faults.harness import CommandProcess
from tests.golden import Golden
from tests.verbs.test_status import progress
from tests.waiting import until


def jobs_of(sweeper: Run) -> list[dict[str, object]]:
    """What `sweeper status` says of the study's jobs; asked in a loop, it costs little."""
    time.sleep(0.2)
    if not (Path("runs/a/progress.json")).exists():
        return []
    jobs: list[dict[str, object]] = sweeper("status", "a", "--json").document["jobs"]
    return jobs


class TestCancel:
    def test_a_search_ends_and_the_same_command_goes_on(
        self, sweeper: Run, workplace: Path
    ) -> None:
        driver = CommandProcess("search", *TINY, "study=a", "train.steps=4000", tag="")
        until(lambda: [job for job in jobs_of(sweeper) if job["state"] == "running"], 60)
        answer = sweeper("cancel", "a", "--json")
        assert answer.document["cancelled"] == 1
        ended = driver.wait(60)
        assert ended.code == 1 and not ended.crashed
        assert ended.err.splitlines()[-1].startswith("Error: the study was cancelled; run the same")
        assert len(list((workplace / "runs/a/checkpoints").iterdir())) == 1
        assert sweeper("search", *TINY, "study=a").code == 0

    def test_without_a_driver_there_is_nothing_to_end(self, sweeper: Run, study: Path) -> None:
        before = tree(study)
        assert sweeper("cancel", "a", "--json").document["cancelled"] == 0
        assert tree(study) == before


@pytest.mark.parametrize("verb", ["status", "report", "cancel"])
def test_a_study_is_named_as_transfer_names_it(verb: str, sweeper: Run, study: Path) -> None:
    for argv in (["--study", "a"], ["--study=a", "root=runs"], ["study=a"]):
        assert sweeper(verb, *argv, "--json").document["study"] == "a"
    os.rename("runs", "else")
    for root in (["--root", "else"], ["root=else"]):
        assert sweeper(verb, "a", *root, "--json").document["study"] == "a"


class TestStatus:
    def test_json(self, sweeper: Run, study: Path) -> None:
        document = sweeper("status", "a", "--json").document
        assert document["study"] == "a" and document["trials"] == {"complete": 3}
        assert document["search_finished"] and document["driver"] is None
        assert document["best"] == json.loads((study / "search.json").read_text())["objective"]

    def test_of_a_running_search(self, sweeper: Run, study: Path) -> None:
        with StudyLock(study):
            assert ": starting" in sweeper("status").out, "the progress is an earlier driver's"
            progress(study)
            out = sweeper("status").out
            assert f"Running (process {os.getpid()} on " in out
            assert "): search: eta: 2/9 trials, about 1 min 15 s left" in out
            progress(study, job="validate", phase="validate", left=None)
            answer = sweeper("status")
            *_, running, _, _ = answer.out.splitlines()
            assert running.endswith("): validate: 2/9 trials")
            assert answer.next == "sweeper status --study a --watch"

    def test_the_latest_study_and_the_others(
        self, sweeper: Run, study: Path, golden: Golden
    ) -> None:
        shutil.copytree(study, study.with_name("b"), copy_function=shutil.copy)
        assert sweeper("status").out.startswith("Study b: ")
        golden.says(measured(sweeper("status").out))
        golden.says(measured(sweeper("status", "a").out))
        assert "did you mean b?" in sweeper("status", "bb").err

    @pytest.mark.parametrize("name", ["nope", "../runs/a", ""])
    def test_no_such_study(self, sweeper: Run, study: Path, name: str) -> None:
        before = tree(study)
        assert_refused(sweeper("status", name))
        assert tree(study) == before


class TestReport:
    def test_writes_the_page(self, sweeper: Run, study: Path, golden: Golden) -> None:
        (study / "report.html").unlink()
        answer = sweeper("report")
        assert answer.code == 0
        golden.says(answer.out)
        assert "<html" in (study / "report.html").read_text()

    def test_a_full_disk(
        self, sweeper: Run, study: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("sweeper.report.study_page.write_atomically", full)
        assert_refused(sweeper("report"), golden, code=1)


def test_a_key_that_is_no_more_is_refused_with_the_command_that_writes_it_anew(
    sweeper: Run, study: Path
) -> None:
    path = study / "config.yaml"
    _, _, text = path.read_text().partition("\n")  # without its sum
    path.write_text(text.replace("  seq_len: 16\n", "  seq_len: 16\n  gone: 1\n"))
    shutil.copytree(study, "others/b")
    for place in (["--study", "a"], ["--study", "b", "--root", "others"]):  # of a copy the copy's
        refused = sweeper("transfer", *place, "--to-width", "32", "transfer.seeds=2")
        command = f"`{shlex.join(['sweeper', 'search', *TINY, *place])}` writes it anew"
        assert_refused(refused, "/config.yaml: ", "gone=1", command)
    assert sweeper("search", *TINY, "study=a").code == 0
    assert sweeper("transfer", "--to-width", "32", "transfer.seeds=2").code == 0
