from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.driver import TINY, Run

pytest.importorskip("wandb")

from tests.study.wandb_files import read_runs


def taken(folder: Path) -> list[str]:
    return (folder / "wandb" / "logged").read_text().splitlines()


@pytest.mark.long
def test_a_study_and_its_plan_in_wandb_each_trial_once(sweeper: Run, workplace: Path) -> None:
    argv = [*TINY, "study=a", "logger=wandb"]
    folder = workplace / "runs" / "a"
    assert sweeper("search", *argv).code == 0
    assert sweeper("transfer", "--study", "a", "--to-width", "32").code == 0
    lines = (folder / "results" / "000001.jsonl").read_text().splitlines()
    keys = {json.loads(line)["key"] for line in lines}
    runs = read_runs(folder / "wandb")
    assert {run.config["key"] for run in runs if "key" in run.config} == keys
    assert [list(run.artifacts) for run in runs if run.job_type == "plan"] == [["a-w32-d1"]]
    before = [path.name for path in folder.glob("wandb/*run-*")]
    assert len(before) == len(keys) + 1 == len(taken(folder))
    # Again, nothing is logged; and what the log lacks is made up for, though nothing is trained.
    assert sweeper("search", *argv).code == 0
    assert sweeper("transfer", "--study", "a", "--to-width", "32").code == 0
    assert sorted(path.name for path in folder.glob("wandb/*run-*")) == sorted(before)
    (folder / "wandb" / "logged").write_text("\n".join(taken(folder)[1:]) + "\n")
    assert sweeper("search", *argv).code == 0
    assert len(read_runs(folder / "wandb")) == len(before) == len(set(taken(folder)))


def test_a_log_that_cannot_be_written_fails_nothing(sweeper: Run, workplace: Path) -> None:
    folder = workplace / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "wandb").write_text("a file where a folder should be")
    answer = sweeper("search", *TINY, "study=a", "logger=wandb")
    assert answer.code == 0 and answer.out.count("the log failed (FileExistsError") == 1
    assert sweeper("transfer", "--study", "a", "--to-width", "32").code == 0
