"""Parts of the Slurm launcher that need no Slurm."""

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sweeper.engine.jobs import MeasureSize
from sweeper.errors import SweeperError
from sweeper.files import write_json
from sweeper.launch import slurm_jobs, slurm_queue
from sweeper.launch.executor import Scheduled
from sweeper.launch.job import Resources
from sweeper.launch.parameters import Parameters
from sweeper.launch.slurm import SETTLING, Slurm, checked_setup
from sweeper.launch.slurm_jobs import Raised, SlurmFailure, Submission, attempts, failure_of
from sweeper.launch.slurm_queue import lack_of
from sweeper.report.standing import jobs_items
from sweeper.report.terminal import Terminal
from sweeper.sweep.progress import Jobs
from sweeper.trial import Trial
from tests.engine.tiny_trials import corpus, tree
from tests.golden import Golden
from tests.launch.cluster import stand_in
from tests.refusals import raises_config_error, refused
from tests.specs import spec_of


@pytest.mark.parametrize(
    ("options", "key"),
    [
        *(({key: value}, key) for key, value in {
            "partition": "a\n#SBATCH --wrap=b", "account": "a b", "qos": "$(touch x)",
            "constraint": "`x`", "gres": "gpu;'", "memory": "lots", "time": 0, "warn": 240 * 60,
            "gpus": 2, "poll": 0.0, "retries": -1, "setup": ("a\nb",), "python": (),
        }.items()),
        ({"memory": "4G", "submitit": Parameters(slurm_mem_per_gpu="1G")}, "memory"),
        ({"submitit": Parameters(slurm_mem_per_cpu="1G", slurm_mem_per_gpu="1G")},
         "submitit.slurm_mem_per_cpu"),
        ({"memory": "4G", "sbatch": {"mem-per-cpu": "1G"}}, "memory"),
        ({"sbatch": {"array": "0-9"}}, "sbatch.array"),
        ({"sbatch": {"Bad Name": "a"}}, "sbatch.Bad Name"),
        ({"sbatch": {"licenses": "a\nb"}}, "sbatch.licenses"),
        ({"sbatch": {"licenses": [1]}}, "sbatch.licenses"),
    ],
)  # fmt: skip
def test_what_no_cluster_could_mean_is_refused(options: dict[str, Any], key: str) -> None:
    with raises_config_error(key):
        Slurm(**options)


def test_the_script_keeps_every_word_whole(commands: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it's a; folder"
    launcher = Slurm(
        python=("env", "A=b c", "python;x"), setup=("module load a",), sbatch={"licenses": "a,b"}
    )
    assert isinstance(launcher, Scheduled)
    script = launcher.script(folder, 3)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    (line,) = [line for line in script.splitlines() if line.startswith("srun")]
    argv = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    program = slurm_jobs.BOOT.format(folder=str(folder / "slurm/TOKEN"))
    assert {"A=b c", "python;x", program} <= set(argv)
    for text in ("--array=0-2%3", "--licenses=a,b", "--requeue", "--signal=URG@120"):
        assert f"#SBATCH {text}" in script
    assert "--gpus-per-node=1" in script and "module load a" in script and "wckey" not in script
    assert "--gres=gpu:a100:1" in Slurm(gres="gpu:a100:1").script(folder, 1)
    assert not folder.exists()


def test_a_job_gets_the_resources_that_it_asks_for(commands: Path, tmp_path: Path) -> None:
    launcher = Slurm(cpus=2, memory="4G", time=90)
    asked = Resources(nodes=2, tasks=3, gpus=8, cpus=5, memory="64G", time=30)
    executors = launcher._executor(tmp_path, "a", asked), launcher._executor(tmp_path, "a")
    scripts = [each._make_submission_file_text("true", "") for each in executors]
    names = ("nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "mem", "time")
    values = (2, 3, 8, 5, "64G", 30, 1, 1, 1, 2, "4G", 90)
    for at, value in enumerate(values):
        assert f"#SBATCH --{names[at % 6]}={value}\n" in scripts[at // 6], at
    assert "--cpus-per-task=5" in scripts[0].split("srun")[1]


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("infinite", None), ("2:00", 2), ("1:30:30", 90.5), ("1-00:00:00", 1440), ("n/a", None)],
)
def test_times_of_slurm_s(text: str, minutes: float | None) -> None:
    assert slurm_queue.minutes(text) == minutes


def test_the_queue_is_asked_once_for_all(commands: Path) -> None:
    lines = [
        "sweeper-a-1-x|7_3|RUNNING|node1|T1|T0|None|mine",
        "sweeper-a-1-y|8|PENDING||N/A|T0|(a|b)|",
        "sweeper-a-1-x|7_4|NODE_FAIL|node2|T1|T0|None|",
        "other|9|RUNNING|n|T|T|None|",
    ]
    stand_in(commands, "squeue", "\n".join(f"echo '{line}'" for line in lines))
    third, lone, lost = slurm_queue.queue("sweeper-a-1-")
    assert (third.array, third.index, third.since, third.active) == ("7", 3, "T1", True)
    assert third.comment == "mine"
    assert (lone.id, lone.index, lone.since, lone.reason) == ("8", 0, "T0", "(a|b)")
    assert not lost.active


def test_nodes_of_a_partition_are_those_that_can_run(commands: Path) -> None:
    lines = ("node1|main*|idle", "node2|main*|down", "node3|high|mix")
    stand_in(commands, "sinfo", "\n".join(f"echo '{line}'" for line in lines))
    assert slurm_queue.nodes(None) == slurm_queue.nodes("main") == {"node1"}
    assert slurm_queue.nodes("main,high") == {"node1", "node3"}


def test_an_array_s_largest_size_is_read(commands: Path) -> None:
    stand_in(commands, "scontrol", "echo 'MaxArraySize            = 3'")
    assert slurm_queue.largest_array() == 3


def test_inside_a_job_nothing_of_it_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CONF"):
        monkeypatch.setenv(name, "7")
    with slurm_queue.outside_a_job():
        assert [name for name in os.environ if name.startswith("SLURM_")] == ["SLURM_CONF"]
    assert os.environ["SLURM_JOB_ID"] == os.environ["SLURM_CPUS_PER_TASK"] == "7"
    # A shell may still have sizes of a job that ended: srun would take them for this one's.
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "standard")
    with slurm_queue.outside_a_job():
        note = sorted(name for name in os.environ if name.startswith("SLURM_"))
    assert note == ["SLURM_CONF", "SLURM_TIME_FORMAT"]


def planned(study: Path, names: list[str]) -> slurm_jobs.Array:
    owns = [study / "jobs" / name for name in names]
    for own in owns:
        own.mkdir(parents=True, exist_ok=True)
        (own / "job.json").write_text('{"task": {"trials": [1, 2]}}')
    return slurm_jobs.record_array(study, owns, Resources())


def test_the_newest_submission_of_a_job_counts(tmp_path: Path) -> None:
    first = planned(tmp_path, ["a", "b"])
    assert all(member.newest() for member in first.members) and first.id is None
    first.accept("12")
    second = planned(tmp_path, ["b"])
    assert [member.newest() for member in first.members] == [True, False]
    assert [m.number for m in second.members] == [1]
    (again,) = [array for array in slurm_jobs.arrays(tmp_path) if array.name == first.name]
    assert again == first and again.task_id(1) == "12_1"
    for folder in (first.folder, second.folder, first.members[0].folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    second.discard()
    assert first.members[1].newest() and len(slurm_jobs.arrays(tmp_path)) == 1


def test_runs_of_a_submission(tmp_path: Path) -> None:
    submission = Submission(folder=tmp_path / "job/submission-3")
    submission.folder.mkdir(parents=True)
    assert submission.runs() == 0 and submission.last(Raised) is None
    for number, kind in ((0, "started"), (0, "error"), (1, "started")):
        (submission.folder / f"{kind}-{number}.json").write_text('{"error": "x"}')
    assert submission.runs() == 2 and submission.last(Raised) is None
    (submission.folder / "error-1.json").write_text('{"error": "y"}')
    assert submission.last(Raised) == Raised(error="y")


@pytest.mark.parametrize("text", ["", "{}", '{"fraction": "x"}', '{"fraction": 7}', "[0.5]"])
def test_progress_that_cannot_be_read_is_none(text: str, tmp_path: Path) -> None:
    submission = Submission(folder=tmp_path)
    assert submission.progress.fraction == 0
    (tmp_path / "progress.json").write_text(text)
    assert submission.progress.fraction == 0
    (tmp_path / "progress.json").write_text('{"fraction": 0.5}')
    assert submission.progress.fraction == 0.5


# A job that is ended again and again: a command without a checkpoint begins anew each time, and is
# cut now here and now there. Runs are told by where they began and how far they came.


@pytest.mark.parametrize(
    ("runs", "count"),
    [([(0, 0)], 1), ([(0, 0.4)], 0), ([(0, 0), (0, 0)], 2), ([(0, 0.4)] * 3, 2),
     ([(0, 0), (0, 0.3), (0, 0.6)], 0), ([(0, 0), (0, 0.5), (0, 0.505)], 1),
     ([(0, 0.5), (0, 0.2), (0, 0.4)], 2), ([(0.01, 0.22)], 0), ([(0.01, 0.22), (0.01, 0.26)], 2),
     ([(0.01, 0.22), (0.01, 0.26), (0.01, 0.25)], 3), ([(0.01, 0.22), (0.2, 0.4)], 0)],
)  # fmt: skip
def test_a_failure_counts_unless_the_job_came_further(
    runs: list[tuple[float, float]], count: int, tmp_path: Path
) -> None:
    for number, (began, fraction) in enumerate(runs):
        progress = {"fraction": fraction} | ({"began": began} if began else {})
        (tmp_path / f"submission-{number}").mkdir()
        write_json(tmp_path / f"submission-{number}" / "progress.json", progress)
    assert attempts(tmp_path) == count


@pytest.fixture
def signals() -> Iterator[None]:
    numbers = (*slurm_jobs.BEFORE_THE_END, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(
    ("runs", "still"),
    [([(None, 0.3)] * 3, True), ([(None, 0.3)] * 2, False),
     ([(None, 0.2), (None, 0.3), (None, 0.3)], False), ([(None, 0.3)], False),
     ([(0.0, 0.22), (0.01, 0.26), (0.01, 0.31)], True),
     ([(0.0, 0.22), (0.2, 0.26), (0.2, 0.31)], False)],
)  # fmt: skip
def test_a_job_that_comes_no_further_is_not_put_back_for_ever(
    runs: list[Any], still: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *earlier, (began, fraction) = runs
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(len(earlier)))
    folder = tmp_path / "submission-0"
    folder.mkdir()
    for number, (first, last) in enumerate(earlier):
        record = {"fraction": last} | ({} if first is None else {"began": first})
        (folder / f"left-{number}.json").write_text(json.dumps(record))
    run = slurm_jobs.Run(Submission(folder=folder))
    run.began, run.fraction = run.began if began is None else began, fraction
    assert run._stands_still() is still


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a\n/usr/bin/python3: No module named submitit\nb", "module"),
        ("slurmstepd: error: execve(): /opt/python: No such file or directory", "interpreter"),
        ("bash: line 3: module: command not found", "interpreter"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "driver"),
        ("OSError: [Errno 28] No space left on device: 'x'", "disk"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a'", "file"),
        ("a\nof it\nsweeper: launcher.setup failed: false", "(of it | sweeper: launcher.setup"),
        ("ValueError: out of luck", None),
    ],
)
def test_what_a_node_lacks_is_told(text: str, what: str | None) -> None:
    lack = lack_of(text)
    assert (lack is None) == (what is None)
    assert what is None or (what in str(lack) and "(" in str(lack))


@pytest.mark.parametrize(
    ("lines", "code", "text"),
    [
        (("export A=1", "true"), 0, ""),
        (("for i in 1 2; do", "  false", "done || true", "true"), 0, ""),
        (("if false; then", "  :", "else", "  :", "fi"), 0, ""),
        (("cat <<END >/dev/null", "if then", "END", "echo \\", "a"), 0, ""),
        (("true", "module_load nope", "true"), 127, "failed: module_load nope (exit code 127)"),
        (("f() {", "  return 3", "}", "f"), 3, "failed: f (exit code 3)"),
        (("true", "exit 3"), 3, "failed: exit 3 (exit code 3)"),
        (("true", "[ -d /nowhere ] || exit 0"), 1, "failed: exit 0 (exit code 0)"),
        (("set -e", "false | false"), 1, "failed: false (exit code 1)"),
        (("set -u", "echo $nothing_of_this_name"), 1, "nothing_of_this_name: unbound"),
    ],
)
def test_a_line_of_setup_that_fails_ends_the_job(
    lines: tuple[str, ...], code: int, text: str
) -> None:
    script = "\n".join([*checked_setup(lines), "echo ran"])
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == code and text in done.stderr
    assert ("ran" in done.stdout) is (code == 0)


def dead(study: Path, records: dict[str, dict[str, Any]], state: str | None) -> SlurmFailure:
    array = planned(study, ["a"])
    array.accept("5")
    (member,) = array.members
    for kind, record in records.items():
        (member.folder / f"{kind}-0.json").write_text(json.dumps(record))
    (array.folder / "5_0_log.err").write_text(
        "a cause\n\nsrun: error: node1: task 0: Exited with exit code 7\n"
    )
    row = f"{array.name}|5|{state}|node1|T1|T0|None"
    return failure_of(array, 0, None if state is None else slurm_queue._entry(row))


STARTED = {"started": {"node": "node2"}}
RAISED = {"error": "E: x", "retry": True}


def leaves(**values: bool) -> dict[str, Any]:
    return STARTED | {"left": {"fraction": 0.3, **values}}


@pytest.mark.parametrize(
    ("records", "state", "text", "expected"),
    [
        ({}, "FAILED", "job 5 on node1 ended without a result (FAILED): a", (True, False, True)),
        (STARTED, "TIMEOUT", "raise launcher.time (runner.time", (False, True, True)),
        (leaves(requeue=False, still=True), "FAILED", "runner.resume_if", (True, False, False)),
        (STARTED, "NODE_FAIL", "on node2", (False, True, True)),
        (STARTED, None, "vanished", (False, True, True)),
        (STARTED, "OUT_OF_MEMORY", "OUT_OF_MEMORY", (False, True, False)),
        (STARTED | {"error": RAISED}, "FAILED", "E: x", (True, False, True)),
        (STARTED | {"error": RAISED | {"retry": False}}, "FAILED", "x", (True, False, False)),
        (leaves(requeue=True), "FAILED", "30 %", (False, False, True)),
        (leaves(requeue=False), "FAILED", "30", (True, False, True)),
    ],
)
def test_why_a_job_is_gone(
    records: dict[str, Any], state: str | None, text: str, expected: Any, tmp_path: Path
) -> None:
    failure = dead(tmp_path, records, state)
    assert text in str(failure)
    assert (failure.certain, failure.blames_trials, failure.retry) == expected


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_what_others_can_enter_is_not_trusted(mode: int, tmp_path: Path, golden: Golden) -> None:
    folder = tmp_path / "a"
    folder.mkdir(mode=0o700)
    slurm_jobs.check_private(folder)
    (tmp_path / "link").symlink_to(folder)
    with refused(golden, SweeperError):
        slurm_jobs.check_private(tmp_path / "link")
    assert os.path.samefile(slurm_jobs.opened(str(folder)), folder)
    with pytest.raises(OSError, match=r"directory|symbolic"):
        slurm_jobs.opened(str(tmp_path / "link"))
    folder.chmod(mode)
    with refused(golden, SweeperError):
        slurm_jobs.check_private(folder)
    with pytest.raises(SweeperError, match="nobody else can enter"):
        slurm_jobs.opened(str(folder))


def test_the_modules_of_a_batch_are_the_user_s(tmp_path: Path) -> None:
    made = tree()
    made["model"]["_target_"] = "users_own.Model"
    trials = (Trial(spec=spec_of(made), log2_hps={}),)
    task = MeasureSize(trials=trials, corpus=corpus(tmp_path), device="cpu")
    assert task.modules() == ["users_own"]


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_what_a_killed_submission_left_undone_is_finished(names: list[str], tmp_path: Path) -> None:
    array = planned(tmp_path, names)
    Slurm(gpus=0).repair(array, "5")
    tasks = [f"5_{index}" if len(names) > 1 else "5" for index in range(len(names))]
    paths = sorted(array.folder.glob("*.pkl"))
    assert [path.name for path in paths] == [f"{task}_submitted.pkl" for task in tasks]


def test_jobs_that_are_gone_are_told(commands: Path, tmp_path: Path, golden: Golden) -> None:
    array = planned(tmp_path, ["a", "b", "c"])
    array.accept("5")
    row = f"{array.name}|5_0|RUNNING|node1|T1|T0|None|"
    stand_in(commands, "squeue", f"echo '{row}'")
    details = "ValueError: of it\n(all of it: log.txt)"
    failed = {"failure": {"reason": "it ended with exit code 1", "details": details}}
    (tmp_path / "jobs/b/result-0.json").write_text(json.dumps(failed))
    [state] = [s for s in Slurm.states(tmp_path) if s.stage == "failed"]
    assert (state.id, state.error) == ("5_1", "it ended with exit code 1: ValueError: of it")
    (tmp_path / "jobs/b/result-0.json").write_text("{}")
    values = [(s.id, s.state, s.trials) for s in Slurm.states(tmp_path)]
    assert values == [("5_0", "running", 2), ("5_1", "finished", 2), ("5_2", "vanished", 2)]
    # Cancelled, what had finished still waits for a driver, and it alone.
    (array.folder / "cancelled").touch()
    assert [(s.id, s.state) for s in Slurm.states(tmp_path)] == [("5_1", "finished")]
    assert Jobs.of(tmp_path).trials == {"finished": 2}
    (array.folder / "cancelled").unlink()
    stand_in(commands, "squeue", "true")
    (tmp_path / "jobs/a").rename(tmp_path / "recorded")
    assert [s.state for s in Slurm.states(tmp_path)] == ["finished", "vanished"]
    stand_in(commands, "squeue", "echo slurm_load_jobs error: Unable to contact >&2; exit 1")
    with pytest.raises(slurm_queue.SchedulerError, match="Unable to contact"):
        Slurm.states(tmp_path)
    jobs = Jobs.of(tmp_path)
    assert jobs.states == () and jobs.trouble
    golden.says(jobs.trouble)


def test_a_job_that_sbatch_has_not_yet_taken_is_queued(commands: Path, tmp_path: Path) -> None:
    """It is on record first. Its number may be noted between the look at it and at the queue."""
    array = planned(tmp_path, ["a"])
    noted = f'echo \'{{"id": "5"}}\' > {array.folder}/id.json'
    for line in ("true", noted):
        stand_in(commands, "squeue", line)
        values = [(s.id, s.state, s.stage) for s in Slurm.states(tmp_path)]
        assert values == [("a", "being submitted", "queued")]
    assert [s.state for s in Slurm.states(tmp_path)] == ["vanished"]
    (array.folder / "id.json").unlink()
    stand_in(commands, "squeue", "true")
    for hours in (0.0, 5.0):  # a clock that goes back does not keep it on its way for so long
        at = array.at - SETTLING if not hours else array.at + 3600 * hours
        record = {"name": array.name, "members": ["a/submission-0"], "at": at}
        write_json(array.folder / "array.json", record)
        assert [s.state for s in Slurm.states(tmp_path)] == ["never submitted"]


def test_trials_in_jobs_are_counted_by_what_becomes_of_them(
    commands: Path, tmp_path: Path, golden: Golden
) -> None:
    array = planned(tmp_path, list("abcdef"))
    array.accept("5")
    states = ("RUNNING", "PENDING", "CONFIGURING", "TIMEOUT", "REQUEUE_HOLD", "COMPLETING")
    rows = [f"{array.name}|5_{i}|{state}||T1|T0|None|" for i, state in enumerate(states)]
    stand_in(commands, "squeue", "\n".join(f"echo '{row}'" for row in rows))
    jobs = Jobs.of(tmp_path)
    assert jobs.trials == {"running": 4, "queued": 6, "ended": 2}
    text = StringIO()
    Terminal(Console(file=text, width=120)).print(jobs_items(jobs))
    golden.says(text.getvalue())


def test_of_a_job_s_nodes_the_first_alone_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []
    monkeypatch.setattr(slurm_jobs, "check_private", lambda path: None)
    monkeypatch.setattr(slurm_jobs, "Run", lambda submission: submission)
    monkeypatch.setattr(slurm_jobs, "serve", served.append)
    for process in ("1", "0"):
        monkeypatch.setenv("SLURM_PROCID", process)
        slurm_jobs.run(str(tmp_path / "job" / "submission"))
    assert len(served) == 1
