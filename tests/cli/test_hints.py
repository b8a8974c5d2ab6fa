"""Every next command that a verb prints is typed, as it is printed, after every ending.

What trains for long is typed with --dry-run; the rest really.
"""

from __future__ import annotations

import math
import shlex
import sys
import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from rich.console import Console

from sweeper.cli.verb import stopped_to_go_on
from sweeper.engine.runner import Engine
from sweeper.files import read_json, write_json
from sweeper.report.next import ladder_words, stopped_by, validated_by
from sweeper.report.output import Output
from sweeper.report.sentences import failure_notes
from sweeper.report.warned import WARNED, keep_warnings
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import failures_of
from tests.cli.driver import LONG, QUICK, TINY, VALIDATE, Answer, Run
from tests.study.test_setup import BASE, result


def type_next(sweeper: Run, answer: Answer) -> list[Answer]:
    """The answers to the next commands, which must be some, and all be taken."""
    assert answer.next, f"no command is next: {answer.text}"
    return [type_line(sweeper, line) for line in answer.next.split(" && ")]


def type_line(sweeper: Run, line: str) -> Answer:
    program, verb, *argv = shlex.split(line)
    assert program == "sweeper"
    trains = verb == "search" or {"--validate", "--horizons"} & {*argv}
    if trains and "--dry-run" not in argv:
        argv.insert(argv.index("--") if "--" in argv else len(argv), "--dry-run")
    answer = sweeper(verb, *argv)
    assert answer.code == 0, (line, answer.err)
    if verb in ("search", "transfer") and trains:
        assert "nothing was written" in answer.out, (line, answer.out)
    return answer


def judged(study: Path, answer: str, **changes: Any) -> None:
    path = study / "transfer/w32-d1/validation.json"
    record = read_json(path)
    axis = {**record["axes"][0], "answer": answer, "target": None, "settle": [], **changes}
    write_json(path, {**record, "axes": [axis]})


def test_after_a_search_and_its_dry_run(study: Path, sweeper: Run) -> None:
    done = sweeper("search", *TINY, "study=a")
    [validation] = type_next(sweeper, done)
    assert "transfer --study a --to-width 64 --validate" in done.next
    again = sweeper("search", *TINY, "study=a", "--dry-run")
    for dry in (validation, again):
        assert "Next, to train them: the same without --dry-run." in dry.out


@pytest.mark.parametrize(
    ("words", "of"),
    [
        (["search", *LONG, "study=b", "--json"], "sweeper.sweep.base_search.run_search"),
        ([*VALIDATE, "--strict"], "sweeper.sweep.ladders.validate"),
        (["transfer", "--to-width=32", "--horizons", *QUICK], "sweeper.sweep.sweep.Sweep.runs"),
    ],
    ids=["search", "transfer", "predict"],
)
def test_after_ctrl_c_the_command_to_go_on_is_printed(
    study: Path, sweeper: Run, words: list[str], of: str
) -> None:
    """Whatever trains: as it was typed, but for --json, whose document nobody has read."""
    with patch(of, side_effect=KeyboardInterrupt):
        stopped = sweeper(*words)
    assert (stopped.code, stopped.out) == (130, "")
    typed = shlex.join(["sweeper", *(word for word in words if word != "--json")])
    assert stopped.err.splitlines()[-2:] == [
        "Stopped; what had finished is kept.",
        f"Next, to go on: {typed}",
    ]
    type_next(sweeper, stopped)


@pytest.mark.parametrize(
    ("words", "of", "where", "goes_on"),
    [
        (
            ["search", *LONG, "study=b", "--json"],
            "base_search.Sweep.search",
            "search",
            ["--study", "b"],
        ),
        (VALIDATE, "ladders.Sweep.ladder", "validate", ["--to-width", "--validate", "32"]),
    ],
)
def test_status_gives_the_command_that_goes_on_with_what_was_stopped(
    ladder_study: Path, sweeper: Run, words: list[str], of: str, where: str, goes_on: list[str]
) -> None:
    """The study keeps the settings of both."""
    with patch(f"sweeper.sweep.{of}", side_effect=KeyboardInterrupt):
        assert sweeper(*words).code == 130
    name = "b" if words[0] == "search" else "a"
    status = sweeper("status", "--study", name)
    assert f"No driver is running; {where} was stopped at 0/" in status.out
    verb, *typed = shlex.split(status.next)[1:]
    assert (verb, sorted(typed)) == (words[0], goes_on)
    if name == "b":  # as what is said where it is stopped, if the whole line is long
        assert stopped_by(shlex.join(["sweeper", *words])) == status.next
    if name == "a":  # whatever comes to its end takes it back
        assert sweeper(*words).code == 0
        assert "was stopped" not in sweeper("status", "--study", "a").out


def test_a_check_that_was_stopped_begins_anew(study: Path, sweeper: Run) -> None:
    """It trains too, and keeps nothing of what it has not finished."""
    with patch("sweeper.verbs.check.measured", side_effect=KeyboardInterrupt):
        stopped = sweeper("check", "--study", "a", "--scales")
    assert stopped.code == 130
    hint = "Next, to begin anew: sweeper check --study a --scales"
    assert stopped.err.splitlines()[-2:] == ["Stopped; nothing is kept.", hint]


def test_a_command_with_words_of_its_own_goes_on_as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ["--", "python", "train.py", "--lr={eta}", "--json"]
    typed = ["sweeper", "search", "study=b", "study.storage=mysql://me:secret@host/x", "--json"]
    monkeypatch.setattr("sys.argv", [*typed, *script])
    line = stopped_to_go_on().splitlines()[-1]
    assert line.endswith("-- python train.py '--lr={eta}' --json")
    assert "--json --" not in line and "secret" not in line


def test_after_a_verdict_that_holds(ladder_study: Path, sweeper: Run) -> None:
    judged(ladder_study, "holds")
    [typed] = type_next(sweeper, sweeper("status", "--study", "a"))
    assert "It leaves to you" in typed.out
    assert (ladder_study / "transfer/w32-d1/export/pytorch/plan_pytorch.py").exists()


def test_a_target_s_command_whose_eta_is_in_doubt_says_so(
    ladder_study: Path, sweeper: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "argv", lambda *_, **__: ["python", "train.py", "--lr=0.1"])
    words = ["transfer", "--to-width", "32", "--study", "a", *QUICK]
    judged(ladder_study, "cannot say yet")
    doubt = "python train.py --lr=0.1\nIts eta is in doubt: over width: cannot say yet. plan.init_"
    assert doubt in sweeper(*words).out
    judged(ladder_study, "holds")
    answer = sweeper(*words)
    assert "in doubt" not in answer.out and "--lr=0.1" in answer.out


def test_the_command_of_a_verdict_is_found_by_its_axis(ladder_study: Path) -> None:
    command = validated_by(ladder_study, "width")
    assert command is not None and ladder_words(command.request.overrides) == QUICK
    assert validated_by(ladder_study, "depth") is None


# Sentences that several commands say of their trials.


def test_failures_that_differ_in_numbers_and_folders_alone_are_told_once() -> None:
    errors = [
        f"it ended with exit code 1:\nlr {lr}\nstep 3\n(all of it: /runs/{key}/log.txt)"
        for lr, key in ((0.25, "0adb3415223b"), (1e-05, "4936a662f015"))
    ]
    errors.append("it said nothing for 9 s and was ended")
    failed = [
        replace(result(BASE, eta=eta), status="failed", objective=math.nan, error=error)
        for eta, error in zip((-4.0, -5.0, -6.0), errors, strict=True)
    ]
    first, second = failure_notes(failures_of(failed, BASE.runner))
    assert first.startswith("2 trials failed and will be tried again next time: it ended with exit")
    assert "lr 1e-05" in first and second.startswith("1 trial failed") and "9 s" in second
    assert failures_of(failed, {"name": "another"}) == []


def test_warnings_of_libraries_go_to_the_studys_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "warnoptions", [])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    WARNED.clear()
    keep_warnings()
    theirs = "/env/site-packages/torch/nn.py"
    warnings.showwarning(FutureWarning("torch.old is deprecated"), FutureWarning, theirs, 3)
    warnings.showwarning(FutureWarning("so is yours"), FutureWarning, "model.py", 4)
    warnings.showwarning(UserWarning("mind the step"), UserWarning, "model.py", 5)
    assert capsys.readouterr().err == "Warning: mind the step (model.py:5)\n"
    output = Output(people=Console(file=StringIO()))
    output.flush(folder=tmp_path)
    assert len(StudyFolder(tmp_path).warnings.read_text().splitlines()) == 3
    WARNED.clear()
