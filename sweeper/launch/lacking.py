"""What a machine lacks that a job needs, by what the job said at its end."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeLack:
    """What is wrong, the line that says so, and what may help."""

    what: str
    line: str
    remedy: str

    def __str__(self) -> str:
        """As the user reads it."""
        return f"{self.what} there ({self.line}); {self.remedy}"


STARTS = "launcher.python is what starts there, launcher.setup the lines of shell before it"
KINDS = (
    (
        "a line of launcher.setup failed",
        r"sweeper: launcher\.setup",
        "every line of it must succeed",
    ),
    (
        "the GPU or its driver is missing",
        r"NVIDIA driver|CUDA driver|no CUDA-capable|libcuda|CUDA (unknown )?error|NVML|"
        r"CUDA initialization|uncorrectable ECC|fallen off the bus|hipError|No CUDA GPUs",
        "launcher.constraint and launcher.submitit.slurm_exclude choose nodes",
    ),
    (
        "a disk, or room on it, is missing",
        r"No space left|quota exceeded|Read-only file system|Stale file handle|"
        r"Input/output error|Transport endpoint|Unable to create TMPDIR",
        "every node must see the study's folder and write to it",
    ),
    (
        "a module or a library is missing",
        r"ModuleNotFoundError|No module named|ImportError|cannot open shared object|"
        r"GLIBC\w*_[\d.]+' not found",
        STARTS,
    ),
    (
        "the interpreter or a program is missing",
        r"execve|command not found|[Nn]o such program|Exec format error|cannot execute|"
        r"cannot be started|Illegal instruction|python\S*: No such file",
        STARTS,
    ),
    (
        "a file is missing",
        r"FileNotFoundError|No such file or directory|PermissionError|Permission denied",
        "every node must see what a job reads",
    ),
)
"""Kinds, the words of their errors, and remedies; the first that matches counts."""


def lack_of(text: str) -> NodeLack | None:
    """What `text`, the end of a log, says is missing; None where it says of no such thing."""
    lines = [line.strip()[:300] for line in text.splitlines()]
    for what, words, remedy in KINDS:
        for at in reversed(range(len(lines))):
            if re.search(words, lines[at]):
                # Before our own line about it stands what the line of setup has said.
                said = lines[max(0, at - 1) : at + 1] if what == KINDS[0][0] else lines[at : at + 1]
                return NodeLack(what, " | ".join(said), remedy)
    return None
