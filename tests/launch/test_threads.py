"""How long torch's threads spin, on an idle machine and beside others; what is collected when."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.command.process import environment
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.launch import machine
from sweeper.launch.machine import (
    _USUALLY,
    BLAS,
    BUSY,
    IDLE,
    RARELY,
    SPIN,
    THREADS,
    collect_as_usual,
    collect_rarely,
    set_spin,
)
from tests.engine.tiny_trials import corpus, trial


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (SPIN, "OMP_WAIT_POLICY")
    environ = {name: value for name, value in os.environ.items() if name not in names}
    monkeypatch.setattr(os, "environ", environ)


@pytest.mark.parametrize(
    ("running", "cores", "mine", "spin"),
    [
        ([1, 1, 1], 2, 2, IDLE),
        ([2, 2, 2], 2, 2, BUSY),
        ([5, 1, 3], 2, 2, IDLE),  # what runs for a moment is no load
        ([2, 2, 2], 2, 1, IDLE),  # beside another, each on its own core
        ([60, 61, 62], 64, 2, IDLE),
        ([64, 64, 64], 64, 2, BUSY),
    ],
)
def test_beside_others_threads_sleep_soon(
    running: list[int], cores: int, mine: int, spin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(running)
    monkeypatch.setattr(machine, "_others", lambda: next(looks) - 1)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(mine), raising=False)
    set_spin()
    assert os.environ[SPIN] == spin


@pytest.mark.parametrize("name", [SPIN, "OMP_WAIT_POLICY"])
def test_the_user_s_word_counts(name: str) -> None:
    os.environ[name] = "77"
    set_spin()
    assert {SPIN: os.environ.get(SPIN)} == {SPIN: "77" if name == SPIN else None}


def test_a_user_s_command_sees_the_user_s_alone() -> None:
    set_spin()
    assert SPIN in os.environ and SPIN not in environment(None, {})
    os.environ[SPIN] = "5000"
    assert environment(None, {})[SPIN] == "5000"


@pytest.mark.parametrize(
    ("argv", "mine", "seen"),
    [
        (["--json", "judge", "--help"], {}, ["1", "1"]),
        (["judge", "--help"], {"OPENBLAS_NUM_THREADS": "3"}, ["3", "None"]),
        (["judge", "--help"], {"OMP_NUM_THREADS": "2"}, ["None", "None"]),
        (["compare", "--settle", "--help"], {}, ["None", "None"]),
    ],
)
def test_a_verb_that_only_reads_has_one_thread_for_its_matrices(
    argv: list[str], mine: dict[str, str], seen: list[str]
) -> None:
    """It is said before NumPy is loaded, which reads it then; of training nothing changes."""
    script = (
        "import atexit, gc, os, sys\n"
        "from sweeper.cli.app import main\n"
        "assert not {'numpy', 'torch'} & sys.modules.keys()\n"
        f"blas = {BLAS!r}\n"
        "atexit.register(lambda: print(*map(os.environ.get, blas), gc.get_threshold()[0],"
        " gc.get_freeze_count() > 1000))\n"  # garbage is collected rarely, and not at the end
        f"sys.argv = ['sweeper', *{argv!r}]\n"
        "main()"
    )
    plain = {k: v for k, v in os.environ.items() if k not in (*BLAS, THREADS)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=plain | mine
    )
    assert done.stdout.splitlines()[-1].split() == [*seen, str(RARELY[0]), "True"], done


def test_a_machine_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert machine._others() == 0


@pytest.fixture
def _collector() -> Iterator[None]:
    yield
    gc.set_threshold(*_USUALLY)
    gc.unfreeze()


@pytest.mark.usefixtures("_collector")
def test_a_training_run_collects_as_usual(tmp_path: Path) -> None:
    gc.unfreeze()
    collect_rarely()
    assert gc.get_threshold() == RARELY != _USUALLY and not gc.get_freeze_count()
    BatchedRun(BatchedTrials(trials=(trial(),), corpus=corpus(tmp_path)))
    assert gc.get_threshold() == _USUALLY and gc.get_freeze_count()


@pytest.mark.usefixtures("_collector")
def test_the_user_s_own_collection_stays() -> None:
    gc.set_threshold(77)
    collect_as_usual()
    assert gc.get_threshold()[0] == 77


@pytest.mark.long
def test_a_child_forked_after_training_does_not_hang() -> None:
    """Torch's threads are the parent's: a child that waited for them would wait for ever."""
    script = (
        "import os, signal, torch\n"
        "from tests.engine.runs import train_trials\n"
        "from tests.engine.tiny_trials import trial\n"
        "torch.set_num_threads(2)\n"
        "much = torch.ones(300_000)\n"
        "much.exp().sum()\n"
        "train_trials([trial(train={'steps': 1})])\n"
        "if not (child := os.fork()):\n"
        "    signal.alarm(30)\n"
        "    much.exp().sum()\n"
        "    os._exit(torch.get_num_threads() != 1)\n"
        "print('status', os.waitpid(child, 0)[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["status 0"], done
