"""What to type next, from what a study's folder holds; nothing is trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from sweeper.commands.following import next_of, searched_anew, with_override
from sweeper.commands.output import Output
from sweeper.lock import StudyLock
from tests.report.samples import plan, search, validation, write

TYPED = "sweeper transfer --study demo --to-width 256 --validate --config-dir my"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study's folder below the root that no flag names."""
    monkeypatch.chdir(tmp_path)
    Path("runs/demo").mkdir(parents=True)
    return Path("runs/demo")


def planned(folder: Path, validated: dict[str, Any] | None = None, **source: Any) -> None:
    record = plan()
    record["source"] = {"command": TYPED.replace(" --validate", ""), **source}
    write(folder / "transfer/w256-d2/plan.json", record)
    if validated is not None:
        write(folder / "transfer/w256-d2/validation.json", validated)


def test_a_search_goes_on_as_it_was_typed(folder: Path) -> None:
    assert next_of(folder) == ""
    command = "sweeper search experiment=demo --config-dir 'my own' --json"
    write(folder / "search.json", search(finished=False, provenance={"command": command}))
    assert next_of(folder) == "sweeper search experiment=demo --config-dir 'my own'"
    with StudyLock(folder):
        assert next_of(folder) == "sweeper status --study demo --watch"


def test_then_the_transfer_its_proof_and_the_export(folder: Path) -> None:
    write(folder / "search.json", search())
    assert next_of(folder) == "sweeper transfer --study demo --to-width 128 --validate"
    planned(folder)
    assert next_of(folder) == TYPED.replace(" --validate", "") + " --validate"
    planned(folder, validation())
    wanted = "sweeper export --study demo --to pytorch --to-width 256 --to-depth 2"
    assert next_of(folder) == wanted


def test_a_failure_is_diagnosed_once(folder: Path) -> None:
    write(folder / "search.json", search())
    planned(folder, validation("fails"))
    assert next_of(folder) == "sweeper diagnose --study demo --over width"
    write(folder / "transfer/diagnosis-width.json", {})
    assert next_of(folder) == ""


def test_a_doubt_is_settled_by_seeds(folder: Path) -> None:
    write(folder / "search.json", search())
    open_verdict = validation("cannot say yet")
    open_verdict["axes"][0]["seed_advice"] = {"seeds": 5}
    planned(folder, open_verdict, command=f"{TYPED} transfer.seeds=2")
    assert next_of(folder) == f"{TYPED} transfer.seeds=5"


def test_what_holds_up_to_the_ladder_alone_goes_on_with_the_trend(folder: Path) -> None:
    write(folder / "search.json", search())
    limited = validation("holds")
    limited["axes"][0]["up_to"] = "width 256"
    planned(folder, limited, command=TYPED)
    assert next_of(folder) == f"{TYPED} transfer.correct=true"


def test_another_root_is_named(folder: Path) -> None:
    other = Path("else") / "demo"
    write(other / "search.json", search())
    wanted = "sweeper transfer --study demo --to-width 128 --validate --root else"
    assert next_of(other) == wanted


def test_without_a_finite_loss_nothing_follows(folder: Path) -> None:
    write(folder / "search.json", search(objective=math.inf))
    assert next_of(folder) == ""


def test_overrides_stay_before_a_command_of_ones_own() -> None:
    typed = "sweeper search study=a train.steps=4 -- python train.py --lr={eta}"
    assert with_override(typed, "train.steps=8") == (
        "sweeper search study=a train.steps=8 -- python train.py '--lr={eta}'"
    )
    assert searched_anew(typed, "b", ["train.steps=8"]) == (
        "sweeper search train.steps=8 --study b -- python train.py '--lr={eta}'"
    )
    assert searched_anew("sweeper search --study a x=1 +y=1", "b", ["+y=2"]) == (
        "sweeper search x=1 +y=2 --study b"
    )


def test_the_end_of_a_command_is_three_lines(paper_output: tuple[Output, list[str]]) -> None:
    output, said = paper_output
    output.end("Found.", {"report": Path("a.html"), "plan": Path("b.json")}, "sweeper x")
    output.end("Nothing written.", {}, "")
    assert said == [
        "Found.",
        "Report: a.html; plan: b.json",
        "Next: sweeper x",
        "Nothing written.",
    ]


@pytest.fixture
def paper_output(monkeypatch: pytest.MonkeyPatch) -> tuple[Output, list[str]]:
    """An output, and what it says."""
    said: list[str] = []
    monkeypatch.setattr(Output, "say", lambda _, text: said.append(text))
    from rich.console import Console

    return Output(people=Console()), said
