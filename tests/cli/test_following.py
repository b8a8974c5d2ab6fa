"""What to type next, from what a study's folder holds; nothing is trained."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from sweeper.cli.next import first_transfer, next_of, searched_anew, with_override
from sweeper.cli.output import Output
from sweeper.config.compose import compose_tree, to_yaml
from sweeper.study.lock import StudyLock
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


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (32, "'transfer.widths=[32,64,128]' transfer.seeds=3 transfer.step=1"),
        (256, "transfer.seeds=3 transfer.step=1"),  # above the base it would cost far more
    ],
)
def test_the_first_proof_is_cheap_unless_the_study_says_otherwise(
    folder: Path, width: int, words: str
) -> None:
    config = compose_tree([f"model.width={width}"])
    (folder / "config.yaml").write_text(to_yaml(config))
    command = f"sweeper transfer --study demo --to-width {4 * width} --validate"
    assert first_transfer(folder, width, []) == f"{command} {words}"
    for changed in ({"seeds": 5}, {"widths": [16, 32]}, {"depths": [2]}):
        ladder = config | {"transfer": config["transfer"] | changed}
        (folder / "config.yaml").write_text(to_yaml(ladder))
        assert first_transfer(folder, width, []) == command


CHEAP = ["transfer.seeds=3", "transfer.step=1"]


@pytest.mark.parametrize(
    ("width", "target", "widths"),
    [
        (32, 256, "[32,64,128]"),
        (16, 32, "[16,32]"),
        (16, 24, "[16,24]"),
        (32, 32, ""),  # there is no width to prove it by
        (96, 192, "[32,64,128]"),
        (96, 256, ""),  # the default's end at the target
    ],
)
def test_a_plan_is_proved_by_cheap_ladders_that_end_at_its_target(
    folder: Path, width: int, target: int, widths: str
) -> None:
    """The default's would be as wide as 256, whatever the target."""
    write(folder / "search.json", search())
    typed = f"sweeper transfer --study demo --to-width {target}"
    sizes = {"base": {"width": width, "depth": 2}, "target": {"width": target, "depth": 2}}
    record = plan() | sizes | {"source": {"command": typed}}
    write(folder / "transfer/w256-d2/plan.json", record)
    config = compose_tree([f"model.width={width}"])
    (folder / "config.yaml").write_text(to_yaml(config))
    words = [f"transfer.widths={widths}"] * bool(widths) + CHEAP
    assert next_of(folder) == shlex.join([*shlex.split(typed), "--validate", *words])
    for word in ("transfer.seeds=5", "transfer.sizes=[]", "transfer.depths=[2]"):
        record["source"]["command"] = shlex.join([*shlex.split(typed), word])
        write(folder / "transfer/w256-d2/plan.json", record)
        assert next_of(folder) == shlex.join([*shlex.split(typed), word, "--validate"])


def test_a_failure_is_diagnosed_once(folder: Path) -> None:
    write(folder / "search.json", search())
    planned(folder, validation("fails"))
    assert next_of(folder) == "sweeper diagnose --study demo --over width"
    write(folder / "transfer/diagnosis-width.json", {})
    assert next_of(folder) == ""
    os.utime(folder / "transfer/diagnosis-width.json", ns=(0, 0))  # of an earlier verdict
    assert next_of(folder) == "sweeper diagnose --study demo --over width"


def test_a_doubt_is_settled_by_seeds(folder: Path) -> None:
    write(folder / "search.json", search())
    open_verdict = validation("cannot say yet")
    open_verdict["axes"][0]["seed_advice"] = {"seeds": 5}
    planned(folder, open_verdict, command=f"{TYPED} transfer.seeds=2")
    assert next_of(folder) == f"{TYPED} transfer.seeds=5"


def test_a_plan_made_anew_keeps_the_words_of_its_proof(folder: Path) -> None:
    """A transfer without --validate trains no ladder: its own words would settle nothing."""
    write(folder / "search.json", search())
    doubt = validation("cannot say yet")
    doubt["axes"][0]["settle"] = ["transfer.seeds=7"]
    proof = f"{TYPED} transfer.step=1"
    planned(folder, doubt | {"command": f"{proof} --json"})
    assert next_of(folder) == f"{proof} transfer.seeds=7"
    planned(folder, doubt)  # of an earlier version, which kept no command
    plain = TYPED.replace(" --validate", "")
    assert next_of(folder) == f"{plain} --validate transfer.seeds=7"


def open_with(folder: Path, *settle: str, **source: Any) -> str:
    """What follows where the overrides `settle` would settle the verdict over width."""
    verdict = validation("cannot say yet")
    verdict["axes"][0]["settle"] = list(settle)
    planned(folder, verdict, command=TYPED, **source)
    return next_of(folder)


def test_a_doubt_is_settled_by_what_the_verdict_names(folder: Path) -> None:
    write(folder / "search.json", search())
    assert open_with(folder, "transfer.extend=8") == f"{TYPED} transfer.extend=8"
    assert open_with(folder, "transfer.step=0.25") == f"{TYPED} transfer.step=0.25"
    assert open_with(folder) == ""
    both = validation("cannot say yet")
    both["axes"][0]["settle"] = ["transfer.seeds=3"]
    both["axes"] += [{**both["axes"][0], "axis": "depth", "settle": ["transfer.seeds=9"]}]
    both["axes"] += [{"axis": "batch_size", "answer": "holds"}]
    planned(folder, both, command=TYPED)
    assert next_of(folder) == f"{TYPED} transfer.seeds=9 'transfer.batches=[]'"


def test_a_new_study_has_no_setup_before_it() -> None:
    typed = "sweeper search study=demo train.steps=20 --new-setup"
    anew = searched_anew(typed, "longer", ["train.steps=80"])
    assert anew == "sweeper search train.steps=80 --study longer"


def test_noise_that_seeds_do_not_settle_takes_a_longer_study(folder: Path) -> None:
    """A study's steps are part of its trials: it is searched anew, under another name."""
    typed = "sweeper search study=demo train.steps=300 -- python train.py '--lr={eta}'"
    write(folder / "search.json", search(provenance={"command": typed}))
    settle = "train.steps=1200", "transfer.step=0.25"
    for command in ("[train.py, '--n={steps}']", "[train.py, '{trial}']", "null"):
        (folder / "config.yaml").write_text(f"runner: {{command: {command}}}")
        assert open_with(folder, *settle) == (
            "sweeper search train.steps=1200 --study demo-1200-steps -- "
            "python train.py '--lr={eta}'"
        )
    (folder / "config.yaml").write_text("runner: {command: [train.py, '--lr={eta}']}")
    assert open_with(folder, *settle) == f"{TYPED} transfer.step=0.25"


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


def test_the_words_of_a_command_of_ones_own_stay_as_they_are(folder: Path) -> None:
    """Those of the same look are its own options, not sweeper's."""
    own = "-- python train.py train.steps=5 --study X study=y --new-setup --json -- --json"
    typed = f"sweeper search --study demo --json train.steps=4 {own}"
    write(folder / "search.json", search(finished=False, provenance={"command": typed}))
    assert next_of(folder) == typed.replace(" --json", "", 1)
    damaged = search(finished=False, provenance={"command": "sweeper search 'x"})
    write(folder / "search.json", damaged)
    assert next_of(folder) == ""
    assert with_override(typed, "train.steps=8") == (
        f"sweeper search --study demo --json train.steps=8 {own}"
    )
    assert searched_anew(typed, "b", ["train.steps=8"]) == (
        f"sweeper search --json train.steps=8 --study b {own}"
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
