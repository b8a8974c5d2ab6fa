import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.records import to_json
from sweeper.study.logs.log import notice_of
from sweeper.study.logs.wandb import FAILURES, WandB
from tests.refusals import raises_config_error
from tests.report import samples
from tests.study.study_files import logged as result
from tests.study.wandb_files import Run, read_runs

OF_THE_USER = ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT")


def by_key(folder: Path) -> dict[str, Run]:
    runs = read_runs(folder / "wandb")
    assert len({run.id for run in runs}) == len(runs)
    return {run.config["key"]: run for run in runs if "key" in run.config}


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_THE_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return samples.study(tmp_path / "mine", w256=samples.validation())


def test_trials_in_one_process_are_as_many_whole_runs(folder: Path) -> None:
    logger, results = WandB(), [result(number, heldout=2.75) for number in range(3)]
    for each in results:
        assert logger.log(folder, each) is None
    runs = by_key(folder)
    assert len(runs) == 3
    for each in results:
        run = runs[each.key]
        assert (run.group, run.project, run.exit_code) == ("mine", "sweeper", 0)
        assert run.job_type == each.trial.phase
        # Ten steps in four stretches: 3, 3, 2 and 2 of them, as numpy's array_split has it.
        points = [(row["_step"], row["loss"]) for row in run.history]
        assert points == list(zip([3, 6, 8, 10], each.curve, strict=True))
        summary = {"objective": 2.5, "heldout": 2.75, "status": "complete", "seconds": 1.5}
        assert summary.items() <= run.summary.items()
        assert run.config["hps"] == {"eta": 2.0 ** each.trial.log2_hps["eta"]}
        assert run.config["log2_hps"] == each.trial.log2_hps
        assert run.config["spec"] == to_json(each.trial.spec)
        assert (run.config["width"], run.config["depth"], run.config["seed"]) == (8, 2, 1)


def test_another_outcome_of_a_trial_takes_the_run_s_place(folder: Path) -> None:
    failed = result(0, status="failed", objective=math.nan, curve=(), steps=0, error="no memory")
    WandB().log(folder, failed)
    first = by_key(folder)[failed.key]
    assert first.summary["error"] == "no memory" and first.history == []
    # W&B names an offline run's folder by the second.
    (run,) = (folder / "wandb").glob("offline-run-*")
    run.rename(run.with_name("offline-run-20010101_000000-" + run.name.rpartition("-")[2]))
    diverged = {"status": "diverged", "objective": math.inf, "curve": (3.0, math.inf)}
    WandB().log(folder, result(0, finished_at=8.0, **diverged))
    second = by_key(folder)[failed.key]
    assert second.id == first.id and second.summary["objective"] == math.inf
    assert [row["loss"] for row in second.history] == [3.0, math.inf]


def test_what_a_kill_left_of_a_run_gives_way_to_the_whole(folder: Path) -> None:
    WandB().log(folder, result(0))
    (run,) = (folder / "wandb").glob("offline-run-*")
    file = next(run.glob("*.wandb"))
    file.write_bytes(file.read_bytes()[:200])
    older = run.with_name("offline-run-20010101_000000-" + run.name.rpartition("-")[2])
    shutil.copytree(run, older)
    (folder / "wandb" / "logged").unlink()
    WandB().log(folder, result(0))
    assert len(by_key(folder)) == 1 and not older.exists()


def test_without_a_key_and_a_terminal_it_goes_on_offline_and_says_so_once(folder: Path) -> None:
    body = f"""
logger = WandB(mode="online")
said = [logger.log(Path({str(folder)!r}), result(n)) for n in range(2)]
print([bool(sentence) for sentence in said], said[0])
"""
    body = f"from pathlib import Path\nfrom tests.study.test_wandb import *\n{body}"
    root = str(Path(__file__).parents[2])
    # Without WANDB_SERVICE, by which it would take this process's service for its own.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    command, none = [sys.executable, "-c", body], subprocess.DEVNULL
    options: Any = {"env": {**ours, "PYTHONPATH": root}, "cwd": root, "stdin": none}
    out = subprocess.run(command, **options, capture_output=True, text=True, timeout=120).stdout
    assert out.startswith("[True, False] W&B cannot be reached (No API key")
    assert "logging offline from here on" in out
    assert len(by_key(folder)) == 2


def test_what_could_not_be_sent_is_sent_by_a_later_driver(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WandB().log(folder, result(0))
    sent: list[str] = []
    monkeypatch.setattr(WandB, "_run", lambda self, mode, *rest: sent.append(mode))
    for _ in range(2):
        WandB(mode="online").log(folder, result(0))
        WandB(mode="offline").log(folder, result(0))
    WandB(mode="online", entity="team").log(folder, result(0))
    assert sent == ["online", "online"]


def test_a_failure_is_a_sentence_and_not_asked_for_a_fourth_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    asked: list[object] = []

    def init(**options: object) -> None:
        asked.append(options)
        raise RuntimeError("no service")

    monkeypatch.setattr(wandb, "init", init)
    logger = WandB()
    sentences = {notice_of(lambda: logger.log(folder, result(n))) for n in range(5)}  # noqa: B023
    assert sentences == {"the log failed (RuntimeError: no service); no result is lost"}
    assert len(asked) == FAILURES
    monkeypatch.undo()
    WandB().log(folder, result(0))
    assert len(by_key(folder)) == 1


def test_the_plan_is_an_artifact_once(folder: Path) -> None:
    target = folder / "transfer" / "w256-d2"
    for _ in range(2):
        assert WandB().plan(folder, target) is None
    (run,) = read_runs(folder / "wandb")
    assert (run.group, run.job_type, run.name) == ("mine", "plan", "w256-d2")
    assert run.artifacts == {"mine-w256-d2": ["plan.json", "validation.json"]}
    assert run.summary["transfer over width"] == "holds"
    samples.write(target / "validation.json", samples.validation("fails"))
    WandB().plan(folder, target)
    (run,) = read_runs(folder / "wandb")
    assert run.summary["transfer over width"] == "fails"


def test_disabled_does_nothing_and_the_package_is_read_late(folder: Path) -> None:
    code = "import sys, sweeper.study.logs.wandb as w, pathlib\n"
    code += "w.WandB(mode='disabled').plan(pathlib.Path('x'), pathlib.Path('y'))\n"
    code += "w.WandB()\nprint('wandb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    WandB(mode="disabled").log(folder, result(0))
    assert not (folder / "wandb").exists()


def test_what_cannot_be_is_refused() -> None:
    with raises_config_error("timeout", 0.0):
        WandB(timeout=0.0)
    with raises_config_error("project", "a/b"):
        WandB(project="a/b")
