"""Runs the command line: in this process where that is enough, else in one of its own."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer

from sweeper.cli.app import app
from sweeper.files import read_json
from sweeper.records import from_json, to_json
from sweeper.study.study import StudyRecord
from sweeper.trial import Result, Trial
from tests.command_lines import parse
from tests.golden import Golden

SIZES = [
    "train.steps=4",
    "train.batch_size=2",
    "train.seq_len=16",
    "train.heldout_batches=1",
    "model.width=16",
    "model.head_size=8",
    "model.depth=1",
    "runner.batched_trials=1",
    "runner.device=cpu",
]
SEARCH = ["search=lr", "search.line={points: 3, extend: 0}", "search.fresh_seeds=0"]
SEARCH += ["transfer.widths=[16,32]"]
SEARCH += ["transfer.check=false"]  # a second for every plan; its own tests ask for it
TINY = ["data=text", "data.path=text.txt", *SIZES, *SEARCH]
"""A search of three trials that each take some milliseconds, on the text of `workplace`."""


LONG = [*TINY, "search.line.points=7", "train.steps=20"]
"""A search of seven trials, each about a tenth of a second."""

QUICK = ["transfer.widths=[16,32]", "transfer.seeds=2", "transfer.span=0.5", "transfer.extend=0"]
"""A ladder of two widths, three points a curve."""
VALIDATE = ["transfer", "--to-width", "32", "--validate", *QUICK]


@dataclass(frozen=True)
class Answer:
    """What a command left: its exit code, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def next(self) -> str:
        """The command that it says to type next; empty where it says none."""
        lines = [line for line in self.text.splitlines() if line.startswith("Next")]
        return lines[-1].partition(": ")[2] if lines else ""

    @property
    def text(self) -> str:
        """What people read, wherever it was printed."""
        return self.out + self.err

    @property
    def crashed(self) -> bool:
        """Whether it ended by an error that nobody foresaw."""
        return "Traceback" in self.err

    @property
    def document(self) -> Any:
        """The one JSON document that stdout must be."""
        return json.loads(self.out)


Run = Callable[..., Answer]
COMMANDS: Any = typer.main.get_command(app)  # made once: a tenth of a command's time


def make_workplace(folder: Path) -> Path:
    """A folder with a small text, to run commands in."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 100)
    return folder


def run_in(folder: Path, *words: str) -> None:
    """Run a command in this process with `folder` as the current one; what it prints is lost."""
    with (
        chdir(folder),
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
        patch.object(sys, "argv", ["sweeper", *words]),
        pytest.raises(SystemExit) as ended,
    ):
        COMMANDS(list(words), prog_name="sweeper")
    assert not ended.value.code


def call(capture: pytest.CaptureFixture[str], *words: str) -> Answer:
    """Run a command in this process."""
    capture.readouterr()
    # Records keep the command that made them.
    with patch.object(sys, "argv", ["sweeper", *words]), pytest.raises(SystemExit) as ended:
        COMMANDS(list(words), prog_name="sweeper")
    out, err = capture.readouterr()
    answer = Answer(int(ended.value.code or 0), out, err)
    for line in filter(None, answer.next.split(" && ")):
        if line.startswith("sweeper "):  # a target's own command is the user's
            parse(shlex.split(line)[1:])
    return answer


def results(study: Path) -> dict[str, float]:
    """When each trial of a study was finished, by its key."""
    if not study.is_dir():
        return {}
    return {result.key: result.finished_at for result in StudyRecord.read(study).results()}


def rewrite_results(study: Path, change: Callable[[list[str]], list[str]]) -> Path:
    """Make the study's record one file of the lines that `change` leaves; its path.

    What is whole is no damage: it says no sum of its text, and nothing counts its lines.
    """
    (study / "results/counts.json").unlink(missing_ok=True)
    paths = sorted((study / "results").glob("*.jsonl"))
    lines = [line for path in paths for line in path.read_text().splitlines()]
    for path in paths[1:]:
        path.unlink()
    changed = [re.sub(r', "sum": "[0-9a-f]{16}"\}$', "}", line) for line in change(lines)]
    paths[0].write_text("".join(f"{line}\n" for line in changed))
    return paths[0]


def rewrite_losses(study: Path, loss_of: Callable[[Trial, float], float | None]) -> None:
    """Put made-up losses in the place of measured ones, where there is one.

    Of a trial, and how far its eta is from the study's best in log2. All are to be below what
    training reaches, so that the study's optimum stays.
    """
    best = read_json(study / "search.json")["best_log2"]["eta"]

    def changed(line: str) -> str:
        result = from_json(Result, json.loads(line))
        loss = loss_of(result.trial, result.trial.log2_hps["eta"] - best)
        return line if loss is None else json.dumps(to_json(replace(result, objective=loss)))

    rewrite_results(study, lambda lines: [changed(line) for line in lines])


def measured(text: str) -> str:
    """What is printed without what another machine measures, and without where columns stand."""
    lines = [
        line
        for line in text.splitlines()
        if not re.match(r"Speed at |.*\d/\d+ trials(, about .* left)?$", line)
    ]
    text = re.sub(r"-?\d+\.\d+(e[+-]?\d+)?|\b[0-9a-f]{32}\b", "#", "\n".join(lines))
    text = re.sub(r"\b\d+ %", "# %", re.sub(r"\b\d+(\.\d+)? (s|ms|min|h)\b", "# s", text))
    return re.sub(r"[ ─]{2,}", "  ", text)


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_refused(answer: Answer, *said: str | Golden, code: int = 2) -> None:
    """Assert one clear message, kept whole or with what is `said`, the exit code, nothing else."""
    assert answer.code == code, answer
    assert answer.out == ""
    assert answer.err.startswith("Error: ") and answer.err.count("\n") == 1, answer.err
    assert not answer.crashed
    for argv in said:
        if isinstance(argv, Golden):
            argv.says(answer.err)
        else:
            assert argv in answer.err
