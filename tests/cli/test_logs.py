from __future__ import annotations

from pathlib import Path

from tests.cli.driver import TINY, Run


def test_a_log_that_cannot_be_written_fails_nothing(sweeper: Run, workplace: Path) -> None:
    folder = workplace / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "wandb").write_text("a file where a folder should be")
    answer = sweeper("search", *TINY, "study=a", "logger=wandb")
    assert answer.code == 0 and answer.out.count("the log failed (FileExistsError") == 1
    planned = sweeper("transfer", "--study", "a", "--to-width", "32")
    assert planned.code == 0 and "the log failed (FileExistsError" in planned.text
