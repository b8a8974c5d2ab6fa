"""A plan comes with the coordinate check: one sentence, and nothing is trained twice."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from sweeper.check.judge import CheckCode, CheckRule, CoordinateCheck, ModuleCheck, Slope
from sweeper.report.sentences import check_sentence
from sweeper.stats.estimate import Estimate
from sweeper.sweep import coordinates
from sweeper.sweep.ladders import Validated
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
    assert text.startswith("Coordinate check over width 16, 32, 64: fail at layers.0.attention.qkv")
    golden.says(measured(text))
    assert first.next.startswith("sweeper check --study a ")
    assert "width 64, depth 1, 3 runs of 2 steps" in first.err
    assert {path.name for path in (standard / "check").iterdir()} == {"transfer.json"}
    again = sweeper(*PLAN, "--json")
    assert "check:" not in again.err and text in again.err
    assert again.document["check"]["answer"] == "fail"
    assert "layers.0.attention.qkv" in again.document["check"]["origins"]


def test_the_command_for_all_modules_trains_nothing_anew(sweeper: Run, standard: Path) -> None:
    """It is over the widths that were checked, and over nothing else."""
    text = sweeper(*PLAN, "transfer.depths=[1,2]", "transfer.eta=-9", "--verbose").out
    (line,) = [line for line in text.splitlines() if "All modules: " in line]
    argv = shlex.split(line.partition("All modules: sweeper ")[2])
    assert argv[-2:] == ["transfer.widths=[16,32,64]", "transfer.depths=[]"]
    assert "check.eta=-9" in argv and "transfer.widths=[16,32,64,128]" not in argv
    answer = sweeper(*argv)
    assert answer.code == 0 and answer.err == ""
    assert answer.out.splitlines()[-3].startswith("Coordinate check over width 16, 32, 64: fail")
    wider = sweeper(*argv, "transfer.widths=[16,32]")
    assert "width 32, depth 1, 3 runs of 2 steps" in wider.err


def test_a_check_of_the_same_is_read_and_one_of_another_is_not(
    sweeper: Run, standard: Path
) -> None:
    argv = [word for word in QUICK if word != "transfer.check=true"]
    sweeper("check", "--study", "a", *argv)
    answer = sweeper(*PLAN)
    assert "over width 16, 32, 64, 128: fail" in answer.out and answer.err == ""
    assert not (standard / "check/transfer.json").exists()
    eta = sweeper(*PLAN, "transfer.eta=-9")
    assert "runs of 2 steps" in eta.err and "check.eta=-9" in eta.out
    record = json.loads((standard / "check/transfer.json").read_text())
    assert record["log2_hps"]["eta"] == -9
    (standard / "check/check.json").write_text("{")
    assert "runs of 2 steps" in sweeper(*PLAN).err


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


def test_strict_needs_the_check_too(
    sweeper: Run, standard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sweeper.sweep.ladders.validate",
        lambda experiment, best, *_, **__: Validated(
            experiment=experiment, planned=best, verdicts=[], trend=None
        ),
    )
    monkeypatch.setattr("sweeper.sweep.planning.unvalidated", lambda *_, **__: [])
    argv = [*PLAN, "--validate"]
    assert sweeper(*argv, "--strict", "transfer.check=false").code == 0
    assert sweeper(*argv).code == 0
    assert sweeper(*argv, "--strict").code == 3


def slope(answer: CheckCode, quantity: str, value: float, reason: str) -> Slope:
    return Slope(
        quantity=quantity,  # type: ignore[arg-type]
        step=4,
        values=(0.0, value),
        slope=Estimate(value=value, low=value, high=value),
        expected=0.0,
        one_sided=False,
        answer=answer,
        reason=reason,
    )


def checked(
    *modules: ModuleCheck,
    answer: CheckCode,
    origins: tuple[str, ...],
    sizes: tuple[int, ...] = (16, 32, 64),
) -> str:
    return check_sentence(
        CoordinateCheck(
            axis="width", sizes=sizes, steps=4, modules=modules, answer=answer, origins=origins
        ),
        CheckRule(),
    )


def test_the_sentence() -> None:
    """Where a failure begins counts more than where it is worst."""
    grows, worse = slope("fail", "direct", 0.5, "grows"), slope("fail", "change", 2.0, "grows")
    begins = ModuleCheck(name="a.0.w", role=None, slopes=(grows, worse), answer="fail")
    later = ModuleCheck(name="a.1.w", role=None, slopes=(worse,), answer="fail")
    start = "Coordinate check over width 16, 32, 64: "
    assert checked(later, begins, answer="fail", origins=("a.0.w",)) == (
        f"{start}fail at a.0.w: the change that its own parameters make grows as width^0.50."
    )
    assert checked(later, answer="fail", origins=()) == (
        f"{start}fail at a.1.w: the change of its output by step 4 grows as width^2.00."
    )
    odd = ModuleCheck(
        name="b", role=None, slopes=(slope("fail", "output", 0, "not finite"),), answer="fail"
    )
    assert checked(odd, answer="fail", origins=()) == (
        f"{start}fail at b: its output at initialization is not finite."
    )
    fine = ModuleCheck(name="c", role=None, slopes=(slope("pass", "output", 0, ""),), answer="pass")
    assert checked(fine, answer="pass", origins=()) == f"{start}pass."


def test_two_sizes_ask_for_a_third() -> None:
    """Two points lie on any power: whether a change goes on so, a third size tells."""
    grows, open_slope = (
        ModuleCheck(
            name="a", role=None, slopes=(slope(answer, "change", 0.5, reason),), answer=answer
        )
        for answer, reason in (("fail", "grows"), ("cannot say", "interval too wide"))
    )
    third = "transfer.widths=[16,32,64]"
    assert third in checked(grows, answer="fail", origins=(), sizes=(16, 32))
    assert third in checked(open_slope, answer="cannot say", origins=(), sizes=(16, 32))
    for module in (grows, open_slope):
        assert third not in checked(module, answer=module.answer, origins=())


def test_the_sentence_counts_the_modules_that_it_does_not_name(golden: Golden) -> None:
    open_slope = slope("cannot say", "change", 0.3, "few seeds")
    a, b, c = (
        ModuleCheck(name=name, role=None, slopes=(open_slope,), answer="cannot say")
        for name in "abc"
    )
    assert "for a (few seeds); " in checked(a, answer="cannot say", origins=())
    assert "for a and 1 more module (few" in checked(a, b, answer="cannot say", origins=())
    assert "for a and 2 more modules (few" in checked(a, b, c, answer="cannot say", origins=())
