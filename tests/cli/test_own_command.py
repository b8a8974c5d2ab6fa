"""The verbs on a training command of the user's own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sweeper.config.command_line import with_user_command
from sweeper.schedule import OWN
from sweeper.search.fresh import FINAL_SEED
from sweeper.study.study import StudyRecord
from sweeper.sweep import base_search
from tests.cli.driver import Answer, Run, assert_refused, measured, tree
from tests.command.commands import METRIC, SCRIPT
from tests.faults.harness import CommandProcess
from tests.golden import Golden

WORDS = ("--lr={eta}", "--width={width}", "--steps={steps}", "--seed={seed}", "--dir={dir}")
ETA = "parameterization.space.eta={low: -10, high: -4, default: -7}"
MINE = (
    *("study=a", "search=lr", "model.width=16", "train.steps=20", ETA),
    *("search.line={points: 7, extend: 0}", "search.fresh_seeds=0", f"metric={METRIC}"),
)


def searched(*argv: str, command: tuple[str, ...] = WORDS) -> list[str]:
    """The words of a search of the script in the current folder, as `main` hands them on."""
    return with_user_command(["search", *MINE, *argv, "--", sys.executable, "train.py", *command])


@pytest.fixture
def script(workplace: Path) -> Path:
    return Path(shutil.copy(SCRIPT, workplace / "train.py"))


def pids(workplace: Path) -> list[int]:
    """The processes of all commands that were started, by what the script notes of itself."""
    notes = "".join(path.read_text() for path in workplace.glob("runs/a/trials/*/starts"))
    return [int(line.split()[1]) for line in notes.splitlines()]


def starts(workplace: Path) -> int:
    return len(pids(workplace))


def running(workplace: Path) -> list[int]:
    return [pid for pid in pids(workplace) if Path(f"/proc/{pid}").exists()]


def test_search_transfer_and_verdict(sweeper: Run, workplace: Path, script: Path) -> None:
    answer = sweeper(*searched("search.fresh_seeds=3"))
    record = json.loads((workplace / "runs/a/search.json").read_text())
    assert answer.code == 0 and record["best_log2"]["eta"] == -7 and record["fresh_seeds"] == 3
    trained = StudyRecord.read(workplace / "runs/a").results()
    assert len(trained) == starts(workplace) == 7 + 3
    assert [r.trial.seed for r in trained] == [*[0] * 7, *range(FINAL_SEED, FINAL_SEED + 3)]
    again = sweeper(*searched("search.fresh_seeds=3"))
    assert again.code == 0 and starts(workplace) == 7 + 3

    ladder = ("transfer.widths=[16,32]", "transfer.step=1", "transfer.seeds=2")
    judged = sweeper("transfer", "--to-width=512", "--validate", "--json", *ladder)
    document: dict[str, Any] = judged.document
    (verdict,) = document["verdicts"]
    assert verdict["answer"] == "holds"
    command = document["plan"]["source"]["target_command"]
    folder = workplace / "runs/a/transfer/w512-d1"
    assert command[1:] == [
        *("train.py", "--lr=0.0078125", "--width=512", "--steps=20", "--seed=0", f"--dir={folder}")
    ]
    assert json.loads((folder / "plan.json").read_text())["parameterization"] == "own"
    # The command takes no {schedule}: what the script does is not known.
    assert document["plan"]["source"]["schedule"] == OWN
    assert (workplace / "runs/a/report.html").is_file()


def test_lists_of_choices_are_searched_and_reach_the_target(
    sweeper: Run, workplace: Path, script: Path
) -> None:
    def search(kinds: str) -> Answer:
        argv = ("search=independent", "search.runs=9", "search.seeds=1", "search.combine_seeds=1")
        argv += ("search.eta={points: 3, extend: 0}", "search.prune=median")
        argv += (f"+parameterization.space.kind={{choices: {kinds}}}",)
        asked = [word for word in MINE if not word.startswith("search")]
        argv = with_user_command(
            ["search", *asked, *argv, "--", sys.executable, "train.py", *WORDS, "--kind={kind}"]
        )
        return sweeper(*argv, "--json")

    record = search("[plain, bad]").document
    assert record["best"]["kind"] == record["best_log2"]["kind"] == "plain"
    before = {result.key for result in StudyRecord.read(workplace / "runs/a").results()}
    # A longer list, in another order, repeats no trial.
    record = search("[bad, good, plain], default: plain").document
    assert record["best"]["kind"] == "good" and record["space_log2"]["kind"]["default"] == "plain"
    after = StudyRecord.read(workplace / "runs/a").results()
    new = [result.trial for result in after if result.key not in before]
    assert len(after) == starts(workplace)
    assert [t.choices["kind"] for t in new if t.phase == "lines"] == ["good"]
    judged = sweeper("transfer", "--to-width=64", "--json").document
    assert "--kind=good" in judged["plan"]["source"]["target_command"]
    assert ">good<" in (workplace / "runs/a/report.html").read_text()


def test_a_dry_run_shows_the_command_and_writes_nothing(
    sweeper: Run, workplace: Path, script: Path, golden: Golden
) -> None:
    before = tree(workplace)
    answer = sweeper(*searched(), "--dry-run")
    assert answer.code == 0
    golden.says(measured(answer.out))
    assert tree(workplace) == before
    assert not answer.err
    (phase,) = sweeper(*searched(), "--dry-run", "--json").document["phases"]
    assert phase["flops"] is None


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ((), ("--lr={eta}", "--x={wdith}")),
        ((), ("--x={width}",)),
        (("+parameterization.space.width={low: 1, high: 2, default: 1}",), WORDS),
        (("data=stdlib",), WORDS),
        (("runner=engine",), WORDS),
        (("parameterization=mup",), WORDS),
        (("runner.cwd=/nowhere",), WORDS),
        (("runner.cwd=/",), WORDS),
        (("search.seeds=2",), WORDS[:3]),
    ],
)
@pytest.mark.usefixtures("script")
def test_what_cannot_work_is_refused_before_anything_runs(
    sweeper: Run, workplace: Path, argv: tuple[str, ...], command: tuple[str, ...], golden: Golden
) -> None:
    before = tree(workplace)
    assert_refused(sweeper(*searched(*argv, command=command)), golden)
    assert tree(workplace) == before


def test_a_ladder_needs_what_it_changes(
    sweeper: Run, workplace: Path, script: Path, golden: Golden
) -> None:
    command = ("--lr={eta}", "--width={16*(width//16)}", "--dir={dir}")
    answer = sweeper(*searched("search.fresh_seeds=3", command=command))
    assert answer.err.count("Note: the command takes no {seed}") == 1
    assert "(one seed, the best of 7 trials: biased low)" in answer.out and starts(workplace) == 7
    seeds = "transfer.seeds=1"
    assert_refused(sweeper("transfer", "--to-width=64", "--validate"), golden)
    deep = ("transfer.depths=[1,2]", seeds)
    assert_refused(sweeper("transfer", "--to-width=64", "--validate", *deep), golden)
    narrow = ("transfer.widths=[8,16]", seeds)
    assert_refused(sweeper("transfer", "--to-width=64", "--validate", *narrow), golden)
    assert_refused(sweeper("transfer", "--to-width=64", "--to-depth=2"), golden)
    assert_refused(sweeper("check", "--study=a"), golden)


def test_equal_failures_stop_the_search_with_one_reason(
    sweeper: Run, workplace: Path, script: Path, golden: Golden
) -> None:
    answer = sweeper(*searched("runner.failures=2", command=(*WORDS, "--how=raise")))
    assert answer.code == 1 and starts(workplace) == 2
    golden.says(measured(answer.err))
    assert answer.err.count("RuntimeError: out of luck") == 1
    again = sweeper(*searched("runner.failures=2", command=(*WORDS, "--how=raise")), "--dry-run")
    golden.says(measured(again.out))
    fixed = sweeper(*searched())
    assert fixed.code == 0


def test_an_edited_script_is_another_trial(
    sweeper: Run, workplace: Path, script: Path, golden: Golden
) -> None:
    sweeper(*searched())
    script.write_text(script.read_text() + "\n# the same, edited\n")
    refused = sweeper("transfer", "--to-width=64")
    assert_refused(refused, golden)
    assert_refused(sweeper(*searched()), golden)
    again = sweeper(*searched("--new-setup"))
    assert starts(workplace) == 14
    golden.says(measured(again.err))


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(4))
def test_drivers_and_commands_are_killed_at_random_and_every_trial_ends_once(
    workplace: Path, script: Path, seed: int
) -> None:
    chance = random.Random(seed)
    argv = [*searched(command=(*WORDS, "--how=slow")), "runner.grace=0.5", "runner.failures=99"]
    argv += ["launcher=local", "launcher.workers=2"]
    for _ in range(4):
        driver = CommandProcess(*argv, tag="")
        end = time.monotonic() + chance.uniform(4, 9)
        while time.monotonic() < end and driver.lives():
            time.sleep(chance.uniform(0.2, 1.0))
            if (alive := running(workplace)) and chance.random() < 0.5:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(alive), signal.SIGKILL)
        driver.kill()
    for _ in range(5):
        last = CommandProcess(*argv, tag="").wait(180)
        record = StudyRecord.read(workplace / "runs/a").results()
        if all(result.status != "failed" for result in record):
            break
    assert last.code == 0, last.err
    assert len({result.key for result in record}) == len(record) == 7
    assert {result.status for result in record} == {"complete", "diverged"}  # at its highest eta
    assert running(workplace) == []


def test_a_word_of_sweepers_behind_the_dashes_is_noted(
    sweeper: Run, workplace: Path, script: Path, golden: Golden
) -> None:
    answer = sweeper(*searched("--dry-run", command=(*WORDS, "--detach")))
    assert answer.code == 0 and answer.err.count("\n") == 1
    golden.says(measured(answer.err))


def test_a_first_run_shows_where_its_losses_were_read(
    sweeper: Run, workplace: Path, script: Path, golden: Golden
) -> None:
    script.write_text(
        script.read_text().replace("    main()\n", "    main()\n    print('loss 9')\n")
    )
    loose = [word if word != MINE[-1] else r"metric=loss (?P<loss>\S+)" for word in searched()]
    answer = sweeper(*loose)
    assert answer.code == 0
    facts = answer.err.index("Losses of the first run (")
    golden.says(measured(answer.err[facts:]))
    # The same log tells what another pattern would read, before anything is trained by it.
    right = sweeper(*searched("--dry-run", "--new-setup"))
    golden.says(measured(right.err))
    (metric,) = sweeper(*loose, "--dry-run", "--json").document["losses"]
    assert metric["values"] == 21 and len(metric["doubts"]) == 2


def test_a_run_that_failed_is_no_first_run(sweeper: Run, workplace: Path, script: Path) -> None:
    """It ends anywhere: a job that was cancelled at its first step has a single value."""
    once = "if not os.path.exists('o'): open('o', 'w'); print('step 0: loss 4'); sys.exit(3)"
    script.write_text(script.read_text().replace("    main()\n", f"    {once}\n    main()\n"))
    answer = sweeper(*searched())
    assert answer.code == 0 and "1 trial failed" in answer.text
    assert "20 values of metric" in answer.err and "single value" not in answer.err


def test_losses_are_shown_as_soon_as_the_first_run_has_ended(
    sweeper: Run, workplace: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    tell_losses = base_search.tell_losses

    def tell(settings: Any, watcher: Any, results: Any) -> Any:
        seen.append(len(StudyRecord.read(settings.folder).results()))
        return tell_losses(settings, watcher, results)

    monkeypatch.setattr(base_search, "tell_losses", tell)
    answer = sweeper(*searched())
    # Of a line of several points the first, whose result may still be on its way to the disk.
    assert answer.code == 0 and len(seen) == 1 and seen[0] <= 1
    assert "Losses of the first run (" in answer.err


def test_a_size_that_the_command_does_not_take_is_noted(sweeper: Run, script: Path) -> None:
    answer = sweeper(*searched("train.batch_size=64", "--dry-run"))
    text = " ".join((answer.out + answer.err).split())
    assert answer.code == 0 and "the command takes no {batch_size}: train.batch_size tells" in text
    assert "{steps}: train" not in text
    untyped = sweeper(*searched("--dry-run"))
    assert "{batch_size}" not in untyped.out + untyped.err


# A script that does not do what it is given ends its search early.


TRAIN = """
import sys, torch, sweeper
from planned_net import Net
plan = sweeper.TransferPlan.load(sys.argv[1])
model = Net(16, 1)
{use}
for step in range(10):
    tokens = torch.randint(256, (4, 8))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    {schedule}
    optimizer.step()
    print(f"step {{step}}: loss {{loss.item()}}")
"""
NET = """
from torch import nn
def Net(width, depth):
    layers = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 256)
    return nn.Sequential(nn.Embedding(256, width), *layers)
"""
USE = "plan.init_(model); optimizer = torch.optim.AdamW(plan.param_groups(model))"
FACTOR = "for group in optimizer.param_groups: group['lr'] = group['initial_lr'] * (1 - step / 20)"


@pytest.mark.parametrize(
    ("use", "schedule", "problem"),
    [
        (USE, FACTOR, ""),
        (USE, FACTOR.replace("group['initial_lr']", "1e-5"), "its highest rate is 1e-05 in all of"),
        (
            USE,
            "try:\n        optimizer.param_groups[0]['lr'] = 1; optimizer.step()\n    except: pass",
            "its rate is 1 at step 1, planned",
        ),
    ],
)
def test_a_script_that_does_not_train_by_its_plan(
    use: str,
    schedule: str,
    problem: str,
    sweeper: Run,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(workplace)
    (workplace / "planned_net.py").write_text(NET)
    (workplace / "train.py").write_text(TRAIN.format(use=use, schedule=schedule))
    asked = (
        "study=a",
        "launcher=inline",
        "search=lr",
        "search.line={points: 2, extend: 0}",
        "train.steps=10",
    )
    asked += (
        "parameterization=mup",
        "model._target_=planned_net.Net",
        "model.width=16",
        "model.depth=1",
    )
    asked += ("search.fresh_seeds=0", f"metric={METRIC}")
    argv = ["search", *asked, "--", sys.executable, "train.py", "{plan}"]
    answer = sweeper(*with_user_command(argv))
    assert answer.code == (1 if problem else 0), answer.text
    trained = StudyRecord.read(workplace / "runs/a").results()
    assert len(trained) == (1 if problem else 2) and problem in answer.err
    if problem:
        assert "the rest is not tried: the script does not train by its plan" in answer.err


def test_losses_that_do_not_depend_on_eta_end_the_search(sweeper: Run, workplace: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "command" / "script.py", workplace / "train.py")
    words = ("--lr=0.01", "--width={width}", "--steps={steps}", "--seed={seed}", "--dir={dir}")
    argv = searched("runner.uses=[eta]", "search.fresh_seeds=3", command=words)
    answer = sweeper(*argv)
    assert answer.code == 1 and "the script does not seem to train at eta" in answer.text
    assert (
        "transfer" not in answer.next and len(StudyRecord.read(workplace / "runs/a").results()) == 7
    )
    record = json.loads((workplace / "runs/a/search.json").read_text())
    assert "from 2^-10 to 2^-4" in record["untrained"]
    for verb in ("status", "report"):
        answer = sweeper(verb, "a")
        assert answer.code == 0 and "transfer" not in answer.next
        assert verb == "report" or "does not seem to train at eta" in answer.text
    page = (workplace / "runs/a/report.html").read_text()
    assert "does not seem to train at eta" in page
    refused = sweeper("transfer", "--study=a", "--to-width=64")
    assert refused.code == 1 and "does not seem to train at eta" in refused.err
