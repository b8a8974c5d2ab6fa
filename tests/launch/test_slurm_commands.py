"""The commands that know of jobs: search --detach and --dry-run, status, cancel."""

import json
import re
import shutil
from pathlib import Path

import pytest

from sweeper.files import try_json, write_json
from sweeper.launch.slurm_jobs import comment, prefix
from sweeper.launch.slurm_queue import queue
from tests.cli.driver import TINY, assert_refused, call, make_workplace
from tests.golden import Golden
from tests.launch.cluster import slurm
from tests.waiting import until

WORDS = [
    *(word for word in TINY if not word.startswith("launcher.")),
    *("launcher=slurm", "launcher.gpus=0", "launcher.cpus=1", "launcher.time=5"),
    *("launcher.poll=0.2", "runner.batched_trials=3", "study=a"),
]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_workplace(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("cluster")
def test_a_search_is_left_alone_looked_at_cancelled_and_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = call(capsys, "search", *WORDS, "launcher.partition=mian")
    assert_refused(refused, "launcher.partition='mian'", "did you mean main")
    preview = call(capsys, "search", *WORDS, "--dry-run", "--json").document
    assert "#SBATCH --job-name=sweeper-a-" in preview["script"] and not (tmp_path / "runs").exists()

    # Its job waits in its batch script, or it might end before it is looked at.
    gate = "launcher.setup=['until [ -e go ]; do sleep 0.1; done']"
    submitted = call(capsys, "search", *WORDS, gate, "--detach", "--json").document
    assert submitted.pop("next"), "the command that collects what Slurm trains"
    assert submitted == {"study": "a", "finished": 0, "submitted": 3}
    again = call(capsys, "search", *WORDS, gate, "--detach", "--json")
    assert again.code == 0 and len(json.loads((tmp_path / "runs/a/slurm/study.json").read_text()))
    state = call(capsys, "status", "a", "--json").document
    (job,) = state["jobs"]
    assert job["trials"] == 3 and state["job_trials"].keys() <= {"queued", "running", "finished"}
    assert job["id"] in call(capsys, "status", "a").out
    assert [step["why"] for step in state["next"]] == ["to collect them, and go on"]

    other = slurm("sbatch", "--parsable", "--job-name=sweeper-a-other", "--wrap=sleep 60").strip()
    cancelled = call(capsys, "cancel", "a", "--json").document
    (to_go_on,) = cancelled.pop("next")
    assert "--detach" in to_go_on["command"]
    assert cancelled == {"study": "a", "cancelled": 1, "finished": 0}
    until(lambda: job["id"] not in slurm("squeue", "-h", "--format=%i"))
    assert other in slurm("squeue", "-h", "--format=%i")
    slurm("scancel", other)

    Path("go").touch()
    finished = call(capsys, "search", *WORDS, "--json")
    assert finished.code == 0 and finished.document["finished"], finished.err
    state = call(capsys, "status", "a", "--json").document
    assert sum(state["trials"].values()) == 3 and state["jobs"] == []


@pytest.mark.usefixtures("cluster")
def test_jobs_of_others_go_on_where_numbers_are_given_out_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cluster that lost its state does that. A job is ours by its name and its comment."""
    gate, study = "launcher.setup=['until [ -e go ]; do sleep 0.1; done']", tmp_path / "runs/a"
    assert call(capsys, "search", *WORDS, gate, "--detach").code == 0
    [entry] = queue(prefix(study))
    assert comment(study) in entry.comment
    wrap = ["sbatch", "--parsable", "--wrap=sleep 60", "--job-name"]
    others = [slurm(*wrap, name).strip() for name in (f"{prefix(study)}theirs", "theirs")]
    shutil.copytree(study, tmp_path / "copies/a")
    refused = call(capsys, "cancel", "a", "--root", "copies")
    assert refused.code == 1 and {entry.id, others[0]} <= {*re.findall(r"\d+", refused.text)}
    assert entry.id in slurm("squeue", "-h", "--format=%i")
    [record] = study.glob("slurm/*/array.json")
    write_json(record, {**try_json(record), "name": f"{prefix(study)}purged"})
    write_json(record.with_name("id.json"), {"id": others[1]})
    gone = call(capsys, "search", *WORDS, gate, "launcher.grace=0", "--detach")
    assert f"{others[1]} ended without a result (vanished" in gone.text
    until(lambda: entry.id not in slurm("squeue", "-h", "--format=%i"))  # ours, on no record
    refused = call(capsys, "cancel", "a")
    assert refused.code == 1 and f"scancel {others[0]}" in refused.text
    assert {*others} <= {*slurm("squeue", "-h", "--format=%i").split()}
    slurm("scancel", *others)


def test_without_a_queue_nothing_can_be_left_alone(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    answer = call(capsys, "search", *TINY, "study=a", "--detach")
    assert_refused(answer, golden)
    assert not Path("runs").exists()


def test_without_slurm_one_clear_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    answer = call(capsys, "search", *WORDS)
    assert_refused(answer, golden, code=1)
    assert not Path("runs").exists()
