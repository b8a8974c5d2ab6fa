"""How commands end, and that nothing of them is left."""

import json
import math
import os
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.command import process
from sweeper.command.command_runner import Command
from sweeper.command.process import end_marked
from sweeper.command.reading import CHUNK, LAST_LINES
from sweeper.command.supervise import FILES, last_lines, make_folder
from sweeper.errors import SweeperError
from sweeper.launch.job import Control, Job, JobOutcome, Leave
from sweeper.records import from_json, to_json
from sweeper.search.prune import Pruner
from sweeper.trial import Result
from tests.command.commands import METRIC, command, run, runner, trial
from tests.golden import Golden
from tests.refusals import raises_config_error, refused
from tests.waiting import alive, until

RESUMED = {"resume_if": "state", "resume": ("--resume",)}


def only(outcome: JobOutcome) -> Result:
    assert outcome.failure is None, outcome.failure
    (result,) = outcome.results
    return result


def test_a_run_to_its_end(tmp_path: Path) -> None:
    notices: list[float] = []
    outcome, folder = run(command(), tmp_path, control=Control(progress=notices.append))
    result = only(outcome)
    assert (result.status, result.steps, len(result.curve)) == ("complete", 20, 20)
    assert result.objective == pytest.approx(result.curve[-1], rel=0.1)
    assert result.curve[0] == pytest.approx(3.96) and math.isnan(result.heldout)
    assert notices[-1] == 1.0
    record = json.loads((folder / "trial.json").read_text())
    assert record["hyperparameters"] == {"eta": 2.0**-7} and record["width"] == 16
    assert json.loads((folder / "result.json").read_text())["status"] == "complete"


def test_a_loss_that_is_no_number_is_a_divergence_whatever_the_exit_code(tmp_path: Path) -> None:
    for how in ("", "raise"):
        result = only(run(command(how), tmp_path, eta=-4)[0])
        assert (result.status, result.objective) == ("diverged", math.inf)


@pytest.mark.parametrize(
    ("how", "texts"),
    [
        ("raise", ["exit code 1", "RuntimeError: out of luck", "log.txt"]),
        ("killed", ["signal 9"]),
        ("exit0", ["ended at step 9 of 20"]),
    ],
)
def test_a_failure_says_why_with_the_log_s_last_lines(
    tmp_path: Path, how: str, texts: list[str]
) -> None:
    outcome, folder = run(command(how), tmp_path)
    assert not outcome.results and outcome.failure is not None and not outcome.failure.retry
    assert all(text in str(outcome.failure) for text in texts), outcome.failure
    assert json.loads((folder / "result.json").read_text())["status"] == "failed"


def test_an_exit_code_that_a_shell_script_eats_hides_no_error(tmp_path: Path) -> None:
    """A loss without steps tells nothing of how far the run has come."""
    for how, counted, status in (("raise", True, "failed"), ("raise", False, "failed"),
                                 ("killed", True, "failed"), ("found_nan", True, "diverged"),
                                 ("", True, "complete")):  # fmt: skip
        metric = r"loss (?P<loss>\S+)" if counted else METRIC
        ours = command(how, metric=metric).command
        line = f"{shlex.join(ours)}; echo finished"
        settings = Command(command=("bash", "-c", line), metric=metric)
        outcome, _ = run(settings, tmp_path / f"{how}{counted}")
        (result,) = outcome.results or (None,)
        assert (result.status if result else "failed") == status, (how, outcome)
        if status == "failed":
            assert "exit code 0, and its log in an error" in str(outcome.failure)


@pytest.mark.parametrize(
    ("before", "after", "fails"),
    [
        ("", "", True),
        ("", "loss 1.9", False),
        ("Exception ignored in: <function f>", "", False),
        ("Exception in thread Thread-1:", "", False),
    ],
)
def test_an_error_that_ends_nothing_is_none(
    tmp_path: Path, before: str, after: str, fails: bool
) -> None:
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 1', "TypeError: x"]
    lines = ["loss 3", "loss 2", *filter(None, [before]), *traceback, after]
    text = shlex.quote("\n".join(lines))
    metric = r"loss (?P<loss>\S+)"
    settings = Command(command=("bash", "-c", f"echo {text}"), metric=metric)
    assert (run(settings, tmp_path)[0].failure is not None) == fails
    # A loss for each of the 20 steps says that the run had ended before.
    text = shlex.quote("\n".join([*(f"loss {3 - 0.1 * n:.1f}" for n in range(20)), *lines[2:]]))
    settings = Command(command=("bash", "-c", f"echo {text}"), metric=metric)
    assert run(settings, tmp_path / "whole")[0].failure is None


def test_a_metric_that_never_appears_is_named_with_what_was_printed(
    tmp_path: Path, golden: Golden
) -> None:
    outcome, _ = run(command(metric="accuracy (?P<loss>.*)"), tmp_path)
    assert outcome.failure is not None
    golden.says(str(outcome.failure))
    golden.says(str(run(command(metric=None), tmp_path)[0].failure))


def test_a_command_that_is_preempted_runs_again_in_the_same_folder(
    tmp_path: Path, golden: Golden
) -> None:
    notices: list[str] = []
    settings = command("preempt", **RESUMED)
    outcome, folder = run(settings, tmp_path, control=Control(notify=notices.append))
    assert only(outcome).steps == 20
    starts = [line.split()[0] for line in (folder / "starts").read_text().splitlines()]
    assert starts == ["0", "10"]
    golden.says(notices[0])


def test_one_that_is_preempted_with_its_job_is_not_run_again_there(tmp_path: Path) -> None:
    def leave() -> bool:
        return any(tmp_path.glob("trials/*/once"))

    with pytest.raises(Leave):
        run(command("preempt", **RESUMED), tmp_path, control=Control(should_leave=leave))
    (starts,) = tmp_path.glob("trials/*/starts")
    assert len(starts.read_text().splitlines()) == 1


def test_one_that_is_preempted_at_the_same_step_for_ever_fails(
    tmp_path: Path, golden: Golden
) -> None:
    outcome, folder = run(command("preempt_always", **RESUMED), tmp_path)
    assert len((folder / "starts").read_text().splitlines()) == 4
    golden.says(str(outcome.failure))


def test_one_that_is_preempted_here_and_there_does_not_go_on_for_ever(tmp_path: Path) -> None:
    outcome, folder = run(command("preempt_jumping"), tmp_path)
    assert "preempted 3 times without coming further" in str(outcome.failure)
    assert len((folder / "starts").read_text().splitlines()) <= 5


def test_what_an_earlier_attempt_wrote_is_not_this_one_s(tmp_path: Path) -> None:
    """A file of the script's own, to which it appends: the first attempt told a spike and left."""
    outcome, folder = run(command("stale", metric="jsonl:own.jsonl:loss"), tmp_path)
    result = only(outcome)
    assert result.status == "complete" and max(result.curve) < 5
    assert len((folder / "own.jsonl").read_text().splitlines()) == 30


def test_steps_far_beyond_the_run_are_no_result(tmp_path: Path, golden: Golden) -> None:
    outcome, _ = run(command("", words=("--steps=60",)), tmp_path)
    assert outcome.failure is not None
    golden.says(str(outcome.failure))


def test_a_held_out_loss_that_nothing_reports_is_no_result(tmp_path: Path) -> None:
    settings = command()
    plain = trial(settings)
    train = replace(plain.spec.train, objective="heldout")
    asked = replace(plain, spec=replace(plain.spec, train=train))
    outcome = runner(settings, tmp_path).job((asked,), None).task.run(Control())
    assert "it reported no held-out loss" in str(outcome.failure)


def test_a_child_that_prints_for_ever_is_not_waited_for(tmp_path: Path) -> None:
    start = time.monotonic()
    assert only(run(command("chatty"), tmp_path)[0]).status == "complete"
    assert time.monotonic() - start < 60


def test_a_hang_is_ended(tmp_path: Path) -> None:
    outcome, folder = run(command("hang", hang=0.6), tmp_path)
    assert "said nothing for 0.6 s" in str(outcome.failure)
    assert not alive(int((folder / "starts").read_text().split()[1]))


@pytest.fixture(params=["in a control group", "adopted"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How processes are found that left their group and dropped their environment."""
    if request.param == "adopted":
        monkeypatch.setattr(process, "_control_group", lambda mark: None)
    elif (group := process._control_group(f"/none/{os.getpid()}")) is None:
        pytest.skip("this user may make no control group")
    else:
        group.rmdir()
        monkeypatch.setattr(process, "_children", set)
    return str(request.param)


@pytest.mark.usefixtures("ways")
def test_no_child_is_left_behind_wherever_it_went(tmp_path: Path) -> None:
    outcome, folder = run(command("children"), tmp_path)
    assert only(outcome).status == "complete"
    children = (folder / "children").read_text().split()
    assert len(children) == 4  # a signal is sent before it is obeyed
    until(lambda: not any(alive(int(pid)) for pid in children), 10)


@pytest.mark.usefixtures("ways")
def test_a_child_that_forks_and_ends_again_and_again_is_ended(tmp_path: Path) -> None:
    outcome, folder = run(command("forks"), tmp_path)
    assert only(outcome).status == "complete"
    last = (folder / "children").read_text()
    time.sleep(0.5)
    assert (folder / "children").read_text() == last


@pytest.mark.parametrize(
    ("how", "texts"),
    [
        *((how, "log.txt and result.json in {dir}") for how in ("folder", "file", "result")),
        *((how, "log.txt is gone") for how in ("log", "pipe")),
    ],
)
def test_what_a_command_does_to_its_folder_fails_its_trial_alone(
    tmp_path: Path, how: str, texts: str
) -> None:
    # A metric that none of its lines have: what was read before the log went is left to chance.
    metric = METRIC if how == "result" else r"nothing (?P<loss>\S+)"
    outcome, folder = run(command(how, metric=metric), tmp_path)
    assert texts in str(outcome.failure)
    make_folder(folder)  # as the next run of the trial does
    assert folder.is_dir() and not any((folder / name).is_dir() for name in FILES)
    assert not (folder / "log.txt").is_fifo()


def test_output_is_limited_or_read_to_its_end(tmp_path: Path) -> None:
    assert only(run(command("flood"), tmp_path / "whole")[0]).steps == 20
    outcome, folder = run(command("flood", output=1.0), tmp_path)
    assert "it printed more than 1 MB" in str(outcome.failure)
    assert (folder / "log.txt").stat().st_size <= CHUNK


def test_one_that_is_told_to_leave_is_ended_even_if_it_is_deaf(tmp_path: Path) -> None:
    deadline = time.monotonic() + 60

    def leave() -> bool:
        return time.monotonic() > deadline or any(tmp_path.glob("trials/*/deaf"))

    with pytest.raises(Leave):
        run(command("deaf"), tmp_path, control=Control(should_leave=leave))
    (starts,) = tmp_path.glob("trials/*/starts")
    assert not alive(int(starts.read_text().split()[1])) and time.monotonic() < deadline


def test_an_interrupt_ends_the_command(tmp_path: Path) -> None:
    def interrupted() -> bool:
        if any(tmp_path.glob("trials/*/starts")):
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run(command("slow"), tmp_path, control=Control(should_leave=interrupted))
    (starts,) = tmp_path.glob("trials/*/starts")
    assert not alive(int(starts.read_text().split()[1]))


def test_a_pruner_ends_it_at_a_rung(tmp_path: Path) -> None:
    settings = command("slow")
    others = [
        Result(trial=trial(settings, eta=eta), status="complete", objective=1.0, steps=20,
               curve=(4.0, *[1.0 + 0.1 * place] * 19))
        for place, eta in enumerate((-12.0, -11.5, -11.0, -10.5, -10.0))
    ]  # fmt: skip
    pruner = Pruner.from_trials(others, kind="median", steps=20, warmup=2, window=2)
    result = only(run(settings, tmp_path, eta=-5, pruner=pruner)[0])
    assert result.status == "pruned" and result.steps < 15 and math.isfinite(result.objective)


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("leaves_out", "end at step 10, and what it writes goes on to step 19 without one"),
        ("growing", "its losses grew, from 4 to 12.1, before exit code 1"),
        ("assert", "assert math.isfinite(loss)"),
        ("found_nan", "found NaN in local forward loss"),
        ("stops", "Loss is nan, stopping training"),
        ("scale", "Minimum loss scale reached (0.0001). Your loss is probably exploding."),
    ],
)
def test_a_run_that_shows_that_it_diverged(tmp_path: Path, how: str, seen: str) -> None:
    outcome, folder = run(command(how), tmp_path)
    [result] = outcome.results
    assert (result.status, result.objective) == ("diverged", math.inf) and seen in result.error
    record = json.loads((folder / "result.json").read_text())
    assert record["status"] == "diverged" and seen in record["why"]
    assert seen in outcome.notices[0]


def test_the_environment_is_the_user_s_and_can_be_narrowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")  # this process's own affair
    for name, env, seen in (
        ("all", None, "hunter2"),
        ("no", (), None),
        ("own", ("MY_*",), "hunter2"),
    ):
        _, folder = run(command("secret", env=env), tmp_path / name)
        assert f"secret: {seen} None {folder}" in (folder / "log.txt").read_text()
    with raises_config_error("env", "MY_TOKEN") as caught:
        command("secret", env=("MY_TOKEN=hunter2",))
    assert "hunter2" not in str(caught.value)
    records = [p for p in tmp_path.rglob("*") if p.suffix in (".json", ".jsonl")]
    assert records and not any("hunter2" in path.read_text() for path in records)


@pytest.mark.parametrize(("how", "sign"), [("hang", "state"), ("deaf", "deaf")])
def test_what_a_killed_supervisor_left_is_ended(how: str, sign: str, tmp_path: Path) -> None:
    """The command gets SIGTERM when its parent dies; what is deaf to it is found by its mark."""
    code = "from pathlib import Path; from tests.command.commands import *; "
    code += f"run(command({how!r}), Path({str(tmp_path)!r}))"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    [path, *_] = until(lambda: list(tmp_path.glob(f"trials/*/{sign}")))
    parent.kill()
    parent.wait()
    pid = int((path.parent / "starts").read_text().split()[1])
    if how == "deaf":
        assert alive(pid) and end_marked(str(path.parent)) == 1
    until(lambda: not alive(pid), 10)


def test_a_job_is_the_same_after_json_and_refuses_other_code(
    tmp_path: Path, golden: Golden
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('step 0: loss 1')")
    more = {"arguments": {"a": {"b": ["{width}", 1.0]}}, "env": ("A_*",), "hang": None, "gpus": 0}
    settings = command(cwd=str(tmp_path), code=("*.py",), heldout=r"val (?P<loss>\S+)", **more)
    job = runner(settings, tmp_path).job((trial(settings),), None)
    again = from_json(Job, json.loads(json.dumps(to_json(job))))
    assert again.task == job.task and again.id == job.id
    script.write_text("print('step 0: loss 2')")
    with refused(golden, SweeperError):
        again.task.run(Control())
    assert command(cwd=str(tmp_path), code=("*.py",)).identity() != settings.identity()


TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3', "    f()"]
CAUSE = "mine.BadInput: positions.weight [32, 32], planned [128, 32]"
FOOTER = [
    *TRACEBACK,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    *(f"  footer {n}" for n in range(20)),
    "Root Cause (first observed failure):",
]


@pytest.mark.parametrize("ranks", [[""], ["[rank0]: ", "[rank1]: "]])
def test_the_error_before_a_launcher_s_footer_is_quoted(ranks: list[str]) -> None:
    own = [f"{rank}{line}" for line in (*TRACEBACK, CAUSE) for rank in ranks]
    quoted = last_lines(["step 1: loss 2", *own, *FOOTER], failed=True)
    assert quoted[0].endswith(CAUSE) and quoted[-1] == FOOTER[-1]
    assert "..." in quoted and len(quoted) == LAST_LINES


def test_a_file_that_cannot_be_parsed_has_no_traceback() -> None:
    log = ['  File "train.py", line 1', "    x =", "SyntaxError: invalid syntax", *FOOTER]
    assert last_lines(log, failed=True)[0] == "SyntaxError: invalid syntax"


def test_an_error_that_was_caught_is_none_of_a_run_that_ended_well() -> None:
    log = [*TRACEBACK, CAUSE, *(f"line {n}" for n in range(20))]
    assert last_lines(log, failed=False) == log[-LAST_LINES:]
    assert last_lines(log[-5:], failed=True) == log[-5:]
    assert last_lines([*log[-20:], *TRACEBACK, CAUSE], failed=True)[-1] == CAUSE


@pytest.mark.parametrize("other", [False, True])
def test_a_python_of_another_environment_is_named(
    other: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "bin/python"
    link.parent.mkdir()
    link.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", f"{link.parent}:{os.environ['PATH']}")
    argv = ("python" if other else sys.executable, "-c", "import not_here", "{eta}")
    outcome, _ = run(Command(command=argv, metric=METRIC, code=None), tmp_path / "study")
    assert outcome.failure is not None and "No module named 'not_here'" in str(outcome.failure)
    texts = f"(it ran under {link}, and sweeper under {sys.executable})"
    assert (texts in str(outcome.failure)) is other
