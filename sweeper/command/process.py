"""Processes of a command: started in a group of their own, and ended to the last one."""

from __future__ import annotations

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

MARK = "SWEEPER_DIR"
"""A variable in the environment of every process of a trial: its folder."""
USUAL = (
    # The user and the shell.
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TERM"),
    *("TMPDIR", "HOSTNAME", "XDG_*", "SSL_CERT_*"),
    # Python and the libraries that it finds.
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    # Devices, the network between them, threads.
    *("CUDA_*", "NVIDIA_*", "ROCR_*", "HIP_*", "NCCL_*", "GLOO_*", "FI_*", "UCX_*", "TORCH*"),
    *("OMP_*", "MKL_*", "GOMP_*", "KMP_*", "TRITON_*", "PYTORCH_*", "XLA_*"),
    # The cluster.
    *("SLURM_*", "SRUN_*", "MASTER_ADDR", "MASTER_PORT"),
)
"""Variables without which few commands run, by pattern: they are left where others are not."""
MOST_FORKS = 10_000
"""So often is looked for processes that were started while others were ended."""


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
    """A command and all that it starts, as far as it stays in the group or keeps `MARK`.

    What srun starts on other nodes is of it too.
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

    def wait(self, seconds: float) -> int | None:
        """Its exit code once it has ended, negative for a signal; None after `seconds`."""
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


def can_run(program: str, cwd: Path, path: str | None) -> bool:
    """Whether a program is there, seen from the folder `cwd`, and may be executed."""
    if "/" in program:
        return (cwd / program).is_file() and os.access(cwd / program, os.X_OK)
    return bool(program) and shutil.which(program, path=path) is not None


def end_marked(mark: str) -> int:
    """Kill every process of this machine whose environment has `MARK=mark`; how many there were.

    A mark that ends with a slash stands for all folders below. What an earlier supervisor, killed
    itself, could not end is found so, and what left its group.
    """
    wanted = os.fsencode(f"{MARK}={mark}")

    def marked(variable: bytes) -> bool:
        return variable.startswith(wanted) if mark.endswith("/") else variable == wanted

    def end(pids: Iterable[int]) -> int:
        count = 0
        for pid in pids:
            with suppress(OSError):  # it has ended meanwhile, or is another user's
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if pid != os.getpid() and any(map(marked, variables)):
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
