"""Sentences that several commands say of their trials."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.report.output import Output
from sweeper.report.sentences import diverged, failure_notes
from sweeper.report.warned import WARNED, keep_warnings
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import failures_of
from tests.study.test_setup import BASE, result


def test_what_diverged_is_told_with_its_lowest_eta() -> None:
    fine = result(BASE, eta=-8.0)
    wild = [
        replace(result(BASE, eta=eta), status="diverged", objective=math.inf)
        for eta in (-4.0, -5.0)
    ]
    assert diverged([fine]) == []
    assert diverged([fine, wild[0]]) == [
        "1 trial diverged, the lowest at eta 2^-4; such a loss is infinite"
    ]
    (sentence,) = diverged([fine, *wild])
    assert sentence.startswith("2 trials diverged, the lowest at eta 2^-5")


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
    output.within(tmp_path)
    output.flush()
    assert len(StudyFolder(tmp_path).warnings.read_text().splitlines()) == 3
    WARNED.clear()
