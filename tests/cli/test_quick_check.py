"""A plan comes with the coordinate check: one sentence, and nothing is trained twice."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from sweeper.check.judge import CheckCode, CheckRule, CoordinateCheck, ModuleCheck, Slope
from sweeper.files import read_json
from sweeper.report.sentences import check_sentence
from sweeper.stats.estimate import Estimate
from sweeper.sweep import coordinates
from sweeper.sweep.ladders import Validated
from sweeper.sweep.planning import Unvalidated
from tests.cli.driver import TINY, Run, make_workplace, measured, run_in
from tests.golden import Golden

QUICK = ["transfer.check=true", "check.seeds=3", "check.steps=2", "transfer.widths=[16,32,64,128]"]
PLAN = ["transfer", "--to-width", "256", *QUICK]


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study under `standard`, whose hidden layers move too much."""
    folder = make_workplace(tmp_path_factory.mktemp("standard"))
    run_in(folder, "search", *TINY, "parameterization=standard", "study=a")
    return folder / "runs/a"


@pytest.fixture
def standard(searched: Path, workplace: Path) -> Path:
    return Path(shutil.copytree(searched, workplace / "runs/a"))


def test_a_failure_names_the_module_and_is_read_again(
    sweeper: Run, standard: Path, golden: Golden
) -> None:
    first = sweeper(*PLAN)
    assert first.code == 0
    (text,) = [line for line in first.out.splitlines() if line.startswith("Coordinate check")]
    # The three smallest of four widths. Under Adam a hidden layer moves as its fan-in grows.
    golden.says(measured(text))
    assert first.next.startswith("sweeper check --study a ")
    assert "width 64, depth 1, 3 runs of 2 steps" in first.err
    assert {path.name for path in (standard / "check").iterdir()} == {"transfer.json"}
    again = sweeper(*PLAN, "--json")
    assert "check:" not in again.err and text in again.err
    assert again.document["check"]["answer"] == "fail"


def test_the_command_for_all_modules_trains_nothing_anew(sweeper: Run, standard: Path) -> None:
    """It is over the widths that were checked, and over nothing else."""
    eta = sweeper(*PLAN, "transfer.depths=[1,2]", "transfer.eta=-9", "--verbose")
    assert read_json(standard / "check/transfer.json")["log2_hps"]["eta"] == -9
    text = eta.out
    (line,) = [line for line in text.splitlines() if "All modules: " in line]
    argv = shlex.split(line.partition("All modules: sweeper ")[2])
    assert argv[-2:] == ["transfer.widths=[16,32,64]", "transfer.depths=[]"]
    assert "check.eta=-9" in argv and "transfer.widths=[16,32,64,128]" not in argv
    answer = sweeper(*argv)
    assert answer.code == 0 and answer.err == ""
    assert answer.out.splitlines()[-3].startswith("Coordinate check over width 16, 32, 64: fail")


def test_a_check_of_the_same_is_read_and_one_of_another_is_not(
    sweeper: Run, standard: Path
) -> None:
    argv = ["check.seeds=1", "check.steps=1", "transfer.widths=[16,32]"]
    sweeper("check", "--study", "a", *argv)
    plan = ["transfer", "--to-width", "256", "transfer.check=true", *argv]
    answer = sweeper(*plan)
    assert "Coordinate check over width 16, 32: " in answer.out and answer.err == ""
    assert not (standard / "check/transfer.json").exists()
    assert "runs of 1 step" in sweeper(*plan, "transfer.eta=-9").err


def test_it_can_be_switched_off_and_is_left_out_at_the_base_s_width(
    sweeper: Run, standard: Path
) -> None:
    off = sweeper(*PLAN, "transfer.check=false")
    deep = sweeper("transfer", "--to-width", "16", "--to-depth", "2", *QUICK)
    for answer in (off, deep):
        assert answer.code == 0 and "Coordinate check" not in answer.out
    assert not (standard / "check").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"MAX_SECONDS": 1e-6}, "it might take 0 minutes"),
        ({"LAUNCHERS": ()}, "jobs of launcher=inline may have to wait"),
    ],
)
def test_what_would_take_minutes_is_left_to_another_command(
    sweeper: Run,
    standard: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, object],
    said: str,
) -> None:
    for name, value in changed.items():
        monkeypatch.setattr(coordinates, name, value)
    answer = sweeper(*PLAN)
    assert answer.code == 0 and (standard / "transfer/w256-d1/plan.json").is_file()
    assert f"Note: the coordinate check was not run: {said}; `sweeper check" in answer.out
    assert not (standard / "check/transfer.json").exists()


def test_what_cannot_be_run_leaves_the_plan(sweeper: Run, standard: Path) -> None:
    answer = sweeper(*PLAN, "check.batch=99999999")
    assert answer.code == 0 and "was not run: check.batch: " in answer.out


def test_strict_needs_the_check_and_every_axis_too(
    sweeper: Run, standard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sweeper.sweep.ladders.validate",
        lambda experiment, best, *_, **__: Validated(
            experiment=experiment, planned=best, verdicts=[], trend=None
        ),
    )
    axes = list[Unvalidated]()
    monkeypatch.setattr("sweeper.sweep.planning.unvalidated", lambda *_, **__: axes)
    argv = [*PLAN, "--validate"]
    unchecked = [*argv, "--strict", "transfer.check=false"]
    assert sweeper(*unchecked).code == 0
    assert sweeper(*argv).code == 0
    assert sweeper(*argv, "--strict").code == 3
    axes.append(Unvalidated(axis="depth", target=2, base=1))
    answer = sweeper(*unchecked)
    assert answer.code == 3 and "transfer.depths=[1,2,4]" in answer.out


def module(name: str, answer: CheckCode, *slopes: tuple[str, float, str]) -> ModuleCheck:
    """A module with a slope of each (quantity, value, reason)."""
    made = [
        Slope(
            quantity=quantity,  # type: ignore[arg-type]
            step=4,
            values=(0.0, value),
            slope=Estimate(value=value, low=value, high=value),
            expected=0.0,
            one_sided=False,
            answer=answer,
            reason=reason,
        )
        for quantity, value, reason in slopes
    ]
    return ModuleCheck(name=name, role=None, slopes=tuple(made), answer=answer)


def sentence(*modules: ModuleCheck, origins: tuple[str, ...] = (), sizes=(16, 32, 64)) -> str:
    answer = modules[0].answer
    check = CoordinateCheck(
        axis="width", sizes=sizes, steps=4, modules=modules, answer=answer, origins=origins
    )
    return check_sentence(check, CheckRule())


def test_the_sentence() -> None:
    """Where a failure begins counts more than where it is worst."""
    worse = ("change", 2.0, "grows")
    begins = module("a.0.w", "fail", ("direct", 0.5, "grows"), worse)
    later, odd = module("a.1.w", "fail", worse), module("b", "fail", ("output", 0, "not finite"))
    start = "Coordinate check over width 16, 32, 64: "
    assert sentence(later, begins, origins=("a.0.w",)) == (
        f"{start}fail at a.0.w: the change that its own parameters make grows as width^0.50."
    )
    assert sentence(later) == (
        f"{start}fail at a.1.w: the change of its output by step 4 grows as width^2.00."
    )
    assert sentence(odd) == f"{start}fail at b: its output at initialization is not finite."
    assert sentence(module("c", "pass", ("output", 0, ""))) == f"{start}pass."
    # Two points lie on any power: whether a change goes on so, a third size tells.
    assert "transfer.widths=[16,32,64] would" in sentence(later, sizes=(16, 32))


def test_the_sentence_counts_the_modules_that_it_does_not_name() -> None:
    a, b, c = (module(name, "cannot say", ("change", 0.3, "few seeds")) for name in "abc")
    assert "for a (few seeds); " in sentence(a)
    assert "for a and 1 more module (few" in sentence(a, b)
    assert "for a and 2 more modules (few" in sentence(a, b, c)
