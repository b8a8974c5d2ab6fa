"""The next command: as a value, and from what a study's folder holds; nothing is trained."""

import json
import math
import shlex
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from sweeper.config.command_line import with_user_command
from sweeper.config.compose import compose_tree, to_yaml
from sweeper.config.studies import Invocation
from sweeper.decide.documents import Documents
from sweeper.files import take_damaged
from sweeper.report.next import Next, again, next_of
from sweeper.report.output import Output
from sweeper.report.page import page
from sweeper.report.sections import Shown
from sweeper.report.study_page import study_report
from sweeper.study.lock import StudyLock
from sweeper.study.setup import write_setup
from sweeper.verbs.requests import CheckRequest, ReportRequest, SearchRequest
from tests.command_lines import parse
from tests.report import test_checks
from tests.report.samples import plan, search, validation, write
from tests.specs import spec_of

PLAIN = "sweeper transfer --study demo --to-width 256"
TYPED = f"{PLAIN} --validate --config-dir my"


def typed(words: str) -> str:
    """The line of a validation with `words`, as it is said again: its folders last."""
    return f"{PLAIN} --validate {words} --config-dir my"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(Path("runs/demo/search.json"), search())
    return Path("runs/demo")


def next_line(folder: Path) -> str:
    command = next_of(folder)
    if command is not None and command.call.verb:
        assert command.why.startswith("to ")
        parse(shlex.split(str(command))[1:])
    return str(command or "")


def recorded(line: str) -> Next:
    command = Next.recorded(line, "to go on")
    assert command is not None
    return command


def planned(folder: Path, validated: dict[str, Any] | None = None, **source: Any) -> None:
    record = plan()
    record["source"] = {"command": TYPED.replace(" --validate", ""), **source}
    write(folder / "transfer/w256-d2/plan.json", record)
    if validated is not None:
        write(folder / "transfer/w256-d2/validation.json", validated)


def test_a_search_goes_on_as_it_was_typed(folder: Path) -> None:
    (folder / "search.json").unlink()
    assert next_line(folder) == ""
    command = "sweeper search experiment=demo --config-dir 'my own' --json"
    write(folder / "search.json", search(finished=False, provenance={"command": command}))
    assert next_line(folder) == "sweeper search experiment=demo --config-dir 'my own'"
    with StudyLock(folder):
        assert next_line(folder) == "sweeper status --study demo --watch"
    (folder / "config.yaml").write_text(to_yaml(compose_tree([])))
    assert next_line(folder) == "sweeper search --study demo --config-dir 'my own'"


def test_then_the_transfer_its_validation_and_the_export(folder: Path) -> None:
    assert next_line(folder) == "sweeper transfer --study demo --to-width 128 --validate"
    planned(folder)
    assert next_line(folder) == TYPED
    planned(folder, validation())
    assert next_line(folder) == "sweeper export --study demo --to pytorch"


def test_a_plan_made_anew_keeps_the_words_of_its_validation(folder: Path) -> None:
    """A transfer without --validate trains no ladder: its own words would settle nothing."""
    doubt = validation("cannot say yet")
    doubt["axes"][0]["settle"] = ["transfer.seeds=7"]
    planned(folder, doubt | {"command": f"{TYPED} transfer.step=1 --json"})
    assert next_line(folder) == typed("transfer.step=1 transfer.seeds=7")
    planned(folder, doubt)  # of an earlier version, which kept no command
    assert next_line(folder) == typed("transfer.seeds=7")


def open_with(folder: Path, *settle: str, **source: Any) -> str:
    """What follows where the overrides `settle` would settle the verdict over width."""
    verdict = validation("cannot say yet")
    verdict["axes"][0]["settle"] = list(settle)
    planned(folder, verdict, command=TYPED, **source)
    return next_line(folder)


def test_a_doubt_is_settled_by_what_the_verdict_names(folder: Path) -> None:
    assert open_with(folder, "transfer.extend=8") == typed("transfer.extend=8")
    assert open_with(folder, "transfer.step=0.25") == typed("transfer.step=0.25")
    assert open_with(folder) == ""
    both = validation("cannot say yet")
    both["axes"][0]["settle"] = ["transfer.seeds=3"]
    both["axes"] += [{**both["axes"][0], "axis": "depth", "settle": ["transfer.seeds=9"]}]
    both["axes"] += [{"axis": "batch_size", "answer": "holds", "sizes": []}]
    planned(folder, both, command=TYPED)
    assert next_line(folder) == typed("transfer.seeds=9 'transfer.batches=[]'")


def test_noise_that_seeds_do_not_settle_takes_a_longer_study(folder: Path) -> None:
    line = "sweeper search study=demo model.width=8 train.steps=300 -- python train.py '--lr={eta}'"
    write(folder / "search.json", search(provenance={"command": line}))
    settle = "train.steps=1200", "transfer.step=0.25"
    for command in ("[train.py, '--n={steps}']", "[train.py, '{trial}']", "null"):
        (folder / "config.yaml").write_text(f"runner: {{command: {command}}}")
        anew = "sweeper search --study demo train.steps=1200 --new-setup"
        assert open_with(folder, *settle) == anew
    (folder / "config.yaml").write_text("runner: {command: [train.py, '--lr={eta}']}")
    assert open_with(folder, *settle) == typed("transfer.step=0.25")


@pytest.mark.parametrize("settle", ["transfer.correct=true", "transfer.widths=[32,64,128,256,512]"])
def test_what_holds_on_the_ladder_alone_goes_on_with_what_tells_of_the_target(
    folder: Path, settle: str
) -> None:
    limited = validation("holds")
    target = {"axis": "width", "size": 256, "answer": "cannot say yet", "sentence": "so"}
    limited["axes"][0]["target"] = target | {"settle": [settle]}
    planned(folder, limited, command=TYPED)
    assert shlex.split(next_line(folder)) == shlex.split(typed(settle))
    limited["axes"][0]["target"] = target | {"answer": "fails"}
    planned(folder, limited, command=TYPED)
    assert next_line(folder) == ""


def checked(folder: Path, answer: str, spec: str) -> None:
    command = "sweeper check --study demo transfer.widths=[16,32]"
    record = test_checks.check() | {"spec": spec, "command": command}
    record["axes"][0]["answer"] = answer
    write(folder / "check/transfer.json", record)


def test_a_check_that_failed_is_looked_at_before_anything_is_built_on_it(folder: Path) -> None:
    setup = spec_of({"model": {"width": 16, "depth": 1}})
    write_setup(folder, setup)
    planned(folder, validation("fails"))
    assert next_line(folder) == "sweeper check --study demo"
    checked(folder, "pass", setup.digest)
    assert next_line(folder) == ""
    (folder / "transfer/w256-d2/validation.json").unlink()
    check = "sweeper check --study demo 'transfer.widths=[16,32]'"
    checked(folder, "fail", setup.digest)
    assert next_line(folder) == check
    planned(folder)
    assert next_line(folder) == check
    planned(folder, validation())
    assert next_line(folder) == check
    planned(folder, validation("fails"))
    assert next_line(folder) == check
    for answer, spec in (("pass", setup.digest), ("fail", "another setup's")):
        checked(folder, answer, spec)
        planned(folder, validation())
        assert next_line(folder).startswith("sweeper export")


def test_without_a_finite_loss_nothing_follows(folder: Path) -> None:
    write(folder / "search.json", search(objective=math.inf))
    assert next_line(folder) == ""


def test_the_words_of_a_command_of_ones_own_stay_as_they_are(folder: Path) -> None:
    """Those of the same look are its own options, not sweeper's."""
    own = "-- python train.py train.steps=5 --study X study=y --new-setup --json -- --json"
    typed = f"sweeper search --study demo --json model.width=8 train.steps=4 {own}"
    write(folder / "search.json", search(finished=False, provenance={"command": typed}))
    assert next_line(folder) == typed.replace(" --json", "", 1)
    damaged = search(finished=False, provenance={"command": "sweeper search 'x"})
    write(folder / "search.json", damaged)
    assert next_line(folder) == ""
    assert str(recorded(typed).changed("train.steps=8", why="")) == (
        f"sweeper search --study demo model.width=8 train.steps=8 {own}"
    )


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(max_examples=30)
@given(st.lists(TEXT, max_size=4), TEXT, st.lists(TEXT, max_size=3))
def test_a_line_is_read_back_as_the_same_command(
    arguments: list[str], study: str, user_command: list[str]
) -> None:
    request = SearchRequest(overrides=tuple(arguments), study=study)
    command = Next(request, "to go on", tuple(user_command))
    behind = ["--", *user_command] * bool(user_command)
    line = ["sweeper", "search", "--study", study, *arguments, *behind]
    assert shlex.split(str(command)) == line
    # No setting begins so: these are flags.
    if not any(word.startswith("--") for word in (study, *arguments)):
        assert recorded(str(command)) == command


@pytest.mark.parametrize(
    "line",
    [
        "sweeper transfer --study a --to-width 8 --to-tokens 1e9 --budget 0.25h --root else",
        "sweeper transfer --to-width 8 --to-tokens 1234567890 --to-batch 3",
        "sweeper compare a b --baseline a --settle --budget 7",
        "sweeper predict runs.csv --columns params=N,loss=x --to-params 2e9 --fixed alpha=0.3",
        "sweeper explain --to-width 64 model.width=8 --config-dir 'my own'",
        "sweeper export --study a --to hf --accept x --accept y family=granite",
    ],
)
def test_every_kind_of_keyword_is_read_back(line: str) -> None:
    assert str(recorded(line)) == line
    typed = recorded(line.replace(" --to-width ", " --to-width=").replace("runs", "--json runs"))
    assert typed == recorded(line)


@pytest.mark.parametrize(
    "line",
    ["sweeper", "sweeper fly", "sweeper search --gone", "sweeper transfer --to-width x", None],
)
def test_what_no_verb_reads_is_no_next_step(line: object) -> None:
    assert Next.recorded(line, "to go on") is None


def test_the_folders_are_named_where_no_default_is() -> None:
    def line(root: str, config_dir: Path | None = None) -> str:
        invocation = Invocation(overrides=["a=1", "root=my runs"], config_dir=config_dir)
        settings: Any = SimpleNamespace(root=Path(root))
        return str(again(invocation, CheckRequest(), settings, why=""))

    assert line("runs") == "sweeper check a=1"
    assert line("my runs", Path("c d")) == "sweeper check a=1 --config-dir 'c d' --root 'my runs'"


def test_no_next_command_has_a_password_and_patterns_stay_as_they_are() -> None:
    pattern = r"metric=step (?P<step>\d+): loss (?P<loss>\S+) @ 3"
    argv = ("study.storage=mysql://me:secret@host/x", "++study.storage='me:secret@host'", pattern)
    command = Next(SearchRequest(overrides=argv), "")
    assert "secret" not in str(command) and command.call.arguments[2] == pattern


def test_a_users_command_goes_back_behind_the_dashes() -> None:
    argv = ["search", "model.width=8", "study=a", "--", "python", "train.py", "--lr={eta}"]
    overrides = with_user_command(argv)[1:]
    settings: Any = SimpleNamespace(root=Path("runs"), raw=compose_tree(overrides))
    command = again(Invocation(overrides=overrides), SearchRequest(), settings, "study=b", why="")
    assert str(command) == ("sweeper search model.width=8 study=b -- python train.py '--lr={eta}'")


def test_the_end_of_a_verb_is_three_lines_and_a_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = StringIO()
    take_damaged()  # those of other tests
    output = Output(people=Console(file=text, width=120))
    first = Next(ReportRequest(name=("a",)), "to see it")
    places = {"report": Path("a.html"), "plan": Path("b.json")}
    found = Shown(answer="Found.", document={"x": 1}, next=[first, None])
    output.end(replace(found, places=places))
    output.end(Shown(answer="Nothing written."))
    second = replace(first, request=ReportRequest(name=("b",)))
    output.end(Shown(answer="Two.", next=[first, second]))
    assert text.getvalue().splitlines() == [
        "Found.",
        "Report: a.html; plan: b.json",
        "Next, to see it: sweeper report a",
        "Nothing written.",
        "Two.",
        "Next, to see it: sweeper report a && sweeper report b",
    ]
    assert capsys.readouterr().out == ""
    replace(output, json=True).end(found)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"x": 1, "next": [{"command": "sweeper report a", "why": "to see it"}]}


@pytest.mark.parametrize(("needed", "budget"), [(150, "150"), (0, ""), (30, ""), (10**6, "")])
def test_a_ladder_that_was_to_settle_is_offered_the_budget_that_it_takes(
    folder: Path, needed: int, budget: str
) -> None:
    """Not where nobody knows it, where the runs are there, nor a thousand times as many."""
    result = validation("cannot say yet")
    runs = sum(len(seeds) for curve in result["curves"] for seeds in curve["losses"].values())
    assert 30 < runs < 150
    line = typed("--settle --budget 60")
    planned(folder, result | {"needed": needed, "command": line}, command=line)
    if budget:
        assert next_line(folder) == typed(f"--settle --budget {budget}")
    else:
        assert "--budget 60" in next_line(folder) or "--budget" not in next_line(folder)


def test_of_a_copied_study_the_next_command_is_about_the_copy(folder: Path) -> None:
    """Records keep the command, the folders and the names that they were made with."""
    copy = Path("copies/mine")

    def asserts(*words: str) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        line = shlex.split(next_line(copy))
        assert {*words, "--study", "mine", "--root", "copies"} <= {*line} and "demo" not in line
        assert not [word for word in line if word.startswith(("study=", "root="))]

    write(Path("runs/newer/config.yaml"), {})  # the last worked on, where no study is named
    searching = "sweeper search study=demo root=runs experiment=demo"
    write(folder / "search.json", search(finished=False, provenance={"command": searching}))
    asserts("search", "experiment=demo")
    write(folder / "search.json", search())
    for typed in (PLAIN, "sweeper transfer --to-width 256"):
        (folder / "transfer/w256-d2/validation.json").unlink(missing_ok=True)
        planned(folder, command=typed)
        asserts("transfer", "--validate")
        doubt = validation("cannot say yet") | {"command": typed}
        doubt["axes"][0]["settle"] = ["transfer.seeds=7"]
        planned(folder, doubt, command=typed)
        asserts("transfer", "transfer.seeds=7")
    own = [
        f"{Path.cwd()}/runs/demo/transfer/w256-d2/x",
        f"--to={Path.cwd()}/runs/demo/transfer/w25",
    ]
    record = plan() | {"parameters": [], "source": {"target_command": own}}
    write(folder / "transfer/w256-d2/validation.json", validation())
    write(folder / "transfer/w256-d2/plan.json", record)
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    assert shlex.split(next_line(copy)) == [f"{copy.absolute()}/transfer/w256-d2/x", own[1]]
    write(copy / "search.json", search(provenance={"command": searching}))
    text = page(study_report(Documents.read(copy)))
    assert "search --study mine experiment=demo --root copies" in text
    assert f"{copy.absolute()}/transfer/w256-d2/x" in text and "study=demo" not in text
    assert f"{folder.absolute()}/transfer/w256-d2/x" not in text
    setup = spec_of({"model": {"width": 16, "depth": 1}})
    write_setup(folder, setup)
    checked(folder, "fail", setup.digest)
    asserts("check")
    settling = "sweeper compare demo newer --root runs --settle --budget 60"
    record = {"job": "compare", "over": False, "command": settling}
    for root in ("runs", "copies"):
        write(Path(root, "demo/progress.json"), record)
    assert next_line(folder) == settling.replace(" --root runs", "")
    assert next_line(Path("copies/demo")) == ""  # the other study is not there
    shutil.copytree("runs/newer", "copies/newer")
    assert next_line(Path("copies/demo")) == settling.replace("--root runs ", "") + " --root copies"
