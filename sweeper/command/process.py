"""Processes of a command: started in a group of their own, and ended to the last one."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from functools import cache
from pathlib import Path

from sweeper.errors import SweeperError
from sweeper.files import create
from sweeper.launch import slurm_queue
from sweeper.launch.machine import without_our_spin
from sweeper.trial import digest

MARK = "SWEEPER_DIR"
"""A variable in the environment of every process of a trial: its folder."""
USUAL = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TERM"),
    *("TMPDIR", "HOSTNAME", "XDG_*", "SSL_CERT_*"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("CUDA_*", "NVIDIA_*", "ROCR_*", "HIP_*", "NCCL_*", "GLOO_*", "FI_*", "UCX_*", "TORCH*"),
    *("OMP_*", "MKL_*", "GOMP_*", "KMP_*", "TRITON_*", "PYTORCH_*", "XLA_*"),
    *("SLURM_*", "SRUN_*", "MASTER_ADDR", "MASTER_PORT"),
)
"""Variables without which few commands run, by pattern: they are left where others are not."""
MOST_FORKS = 10_000
"""So often is looked for processes that were started while others were ended."""
SUBREAPER = 36
"""Linux' name for being the parent of all descendants whose own parent has ended."""


def environment(patterns: Sequence[str] | None, added: Mapping[str, str]) -> dict[str, str]:
    """What the command sees: this environment and what is `added`.

    With `patterns` only the usual variables of this environment, and those that match.
    """
    # What sweeper or submitit has put there is not the user's.
    ours = without_our_spin({k: v for k, v in os.environ.items() if not k.startswith("SUBMITIT_")})
    if patterns is not None:
        seen = _pattern((*USUAL, *patterns))
        ours = {name: value for name, value in ours.items() if seen.match(name)}
    return {**ours, **added}


@cache
def _dying_with_parent() -> tuple[str, ...]:
    """What stands before a command to have it get SIGTERM when its parent dies.

    Empty where this machine's `setpriv` cannot do it. `preexec_fn` would do it too, at the price of
    a fork of this whole process.
    """
    program = shutil.which("setpriv")
    if program is None:
        return ()
    ask, dying = slurm_queue.long_options(help=None, pdeathsig=None)
    usage = subprocess.run([program, ask], capture_output=True, text=True, check=False)
    return (program, dying, "TERM", "--") if dying in usage.stdout else ()


@cache
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))


class Group:
    """A command and all that it starts: what srun starts on other nodes is of it too.

    A daemon leaves the process group, and may drop `MARK`. It stays in the control group, where
    this user may make one, and becomes a child of this process once its parents have ended.
    """

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path) -> None:
        """Start it, its output going to the end of `log`; OSError when it cannot be started."""
        self.mark = env[MARK]
        if not can_run(argv[0], cwd, env.get("PATH")):
            raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
        self._step = ""
        if Path(argv[0]).name == "srun" and "SLURM_JOB_ID" in os.environ:
            self._step = f"sweeper-{Path(self.mark).name}"
            named = slurm_queue.long_options(job_name=self._step)
            argv = [argv[0], *named, *argv[1:]]
        self._cgroup = None if "SLURM_JOB_ID" in os.environ else _control_group(self.mark)
        _adopt(True)
        self._before = _children()
        with os.fdopen(create(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
            self.process = subprocess.Popen(
                [*_dying_with_parent(), *argv],
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, and deaf to the terminal's Ctrl-C
            )
        if self._cgroup:  # at once, before it has started anything
            with suppress(OSError):
                (self._cgroup / "cgroup.procs").write_text(str(self.process.pid))

    def wait(self, seconds: float) -> int | None:
        """Its exit code once it has ended, negative for a signal; None after `seconds`."""
        for pid in self._adopted():  # or what has ended would stay in the table of processes
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def end(self, grace: float) -> int:
        """SIGTERM to all, SIGKILL to what is left after `grace` seconds; its exit code."""
        if not self._end_step("TERM"):
            self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and (self.wait(0.05) is None or self._others()):
            pass
        self.clean()
        return self.process.wait()

    def clean(self) -> None:
        """End at once whatever is left of the group."""
        if self.process.poll() is None:
            self._end_step()
        self._signal(signal.SIGKILL)
        end_marked(self.mark)
        self.process.wait()
        for _ in range(MOST_FORKS):  # the children of each that is ended are then adopted
            if not (adopted := self._adopted()):
                break
            for pid in adopted:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    if os.waitpid(pid, os.WNOHANG)[0] == 0:
                        time.sleep(0.001)  # one that a driver holds may not end at all
        _adopt(False)
        deadline = time.monotonic() + 1.0
        while self._cgroup and self._cgroup.is_dir() and time.monotonic() < deadline:
            try:
                self._cgroup.rmdir()
            except OSError:  # it is busy until all that was killed has ended
                time.sleep(0.01)

    def _adopted(self) -> set[int]:
        """What has become a child of this process, and is of no session that it was in."""
        adopted = set[int]()
        for pid in _children() - self._before - {self.process.pid}:
            with suppress(OSError):  # it has ended, and somebody waited for it
                adopted |= {pid} if os.getsid(pid) != os.getsid(0) else set()
        return adopted

    def _end_step(self, number: str | None = None) -> bool:
        """Send srun's processes, on all nodes, a signal, or end them; False where none are known.

        A SIGTERM to srun itself would be a SIGKILL to them.
        """
        if not self._step:
            return False
        try:
            ids = slurm_queue.steps(self._step)
            slurm_queue.cancel(ids, number)
        except SweeperError:
            return False
        return bool(ids)

    def _others(self) -> bool:
        try:
            # Signal 0 only asks. A group has its first process's number, and may outlive it.
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _adopt(on: bool) -> None:
    with suppress(AttributeError, OSError):  # not on Linux
        ctypes.CDLL(None).prctl(SUBREAPER, int(on), 0, 0, 0)


def _children() -> set[int]:
    pids = set[int]()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            pids.update(map(int, path.read_text().split()))
    return pids


def _control_group(mark: str) -> Path | None:
    """A new control group (v2) below this process's own; None where it may make none."""
    with suppress(OSError, StopIteration):
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        root = next(line.split()[4] for line in mounts if " - cgroup2 " in line)
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line[3:] for line in lines if line.startswith("0::"))
        folder = Path(f"{root}{own}", _group_name(mark))
        folder.mkdir(exist_ok=True)
        return folder
    return None


def _group_name(mark: str) -> str:
    """A control group's name: with a slash at its end the mark makes how they all begin."""
    place, _, name = mark.rpartition("/")
    return f"sweeper-{digest(place)[:16]}-{name}"


def can_run(program: str, cwd: Path, path: str | None) -> bool:
    """Whether a program is there, seen from the folder `cwd`, and may be executed."""
    if "/" in program:
        return (cwd / program).is_file() and os.access(cwd / program, os.X_OK)
    return bool(program) and shutil.which(program, path=path) is not None


def end_marked(mark: str) -> int:
    """Kill every process of this machine that has a mark; how many there were.

    It is in the environment, as `MARK=mark`, or in the control group's name. One that ends with a
    slash stands for all folders below. What an earlier supervisor, killed itself, could not end is
    found so, and what left its group.
    """
    end_of_word = b"" if mark.endswith("/") else b"(?![^/\n\0])"
    variable, group = f"{MARK}={mark}", f"/{_group_name(mark)}"
    in_environment = re.compile(rb"(?<![^\0])" + re.escape(os.fsencode(variable)) + end_of_word)
    in_groups = re.compile(re.escape(os.fsencode(group)) + end_of_word)

    def marked(process: Path) -> bool:
        return bool(
            in_groups.search((process / "cgroup").read_bytes())
            or in_environment.search((process / "environ").read_bytes())
        )

    def end(pids: Iterable[int]) -> int:
        count = 0
        for pid in pids:
            with suppress(OSError):  # it has ended meanwhile, or is another user's
                if pid != os.getpid() and marked(Path(f"/proc/{pid}")):
                    os.kill(pid, signal.SIGKILL)
                    count += 1
        return count

    newest = _newest_pid()
    count = end([int(name) for name in os.listdir("/proc") if name.isdecimal()])
    # A daemon forks and its parent ends: what was started since the list was made is followed.
    for _ in range(MOST_FORKS):
        before, newest = newest, _newest_pid()
        if newest <= before:
            break
        count += end(range(before + 1, newest + 1))
    return count


def _newest_pid() -> int:
    return int(Path("/proc/loadavg").read_text().split()[-1])
