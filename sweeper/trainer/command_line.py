"""A command with its placeholders: what it takes, and the words that a trial runs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sweeper.errors import ConfigError, SweeperError
from sweeper.trainer.styles import Style, float_text, words
from sweeper.trainer.template import Template, Values
from sweeper.trial import Trial

SIZES = ("width", "depth", "batch_size", "seq_len", "steps")
"""Sizes; width and depth are also those of the base: `{base.width}`."""
OTHERS = ("seed", "dir", "trial", "plan", "resume", "nodes", "gpus", "tasks", "port")
"""What else a command may ask for."""
RESERVED = frozenset({*SIZES, *OTHERS, "base"})
"""Names that no hyperparameter can have."""
Launch = Literal["plain", "torchrun"]
_PYTHON = re.compile(r"python[\d.]*")
PORTS = range(20_000, 40_000)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The words of a command, and arguments that are added to them in a style."""

    command: tuple[str, ...] = ()
    style: Style = "equals"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    resume: tuple[str, ...] = ()
    launch: Launch = "plain"
    torchrun: tuple[str, ...] = ()

    @cached_property
    def _templates(self) -> tuple[list[Template], dict[str, Any], list[Template]]:
        """Of the words, the arguments (values that are no texts as they are), and `resume`."""
        arguments = {
            key: _templated(value, f"arguments.{key}")
            for key, value in flat(self.arguments).items()
        }
        resume = [Template.parse(word, "resume") for word in self.resume]
        return [Template.parse(word) for word in self.command], arguments, resume

    @property
    def names(self) -> set[str]:
        """Every placeholder that is used."""
        command, arguments, resume = self._templates
        given = [t for value in arguments.values() for t in _templates_in(value)]
        return {name for template in (*command, *given, *resume) for name in template.names}

    def check(self, hyperparameters: Sequence[str]) -> None:
        """ConfigError for an unknown placeholder, by the key where it stands."""
        known = {*hyperparameters, *SIZES, *OTHERS, "base.width", "base.depth"}
        command, arguments, resume = self._templates
        for template in command:
            template.check(known)
        for key, value in arguments.items():
            for template in _templates_in(value):
                template.check(known, f"arguments.{key}")
        for template in resume:
            template.check(known, "resume")

    def argv(self, values: Values, *, resumed: bool, write: bool = True) -> list[str]:
        """The words to run; files of arguments go to `values["dir"]` if asked to `write`."""
        command, arguments, resume = self._templates
        number = float_text(self.style)
        given = {key: _argument(key, value, values) for key, value in arguments.items()}
        folder = Path(values["dir"])
        argv = [template.text(values, number) for template in command]
        argv += words(self.style, given, folder, write=write)
        argv += [template.text(values, number) for template in resume] if resumed else []
        return launched(argv, values, self.torchrun) if self.launch == "torchrun" else argv


def flat(arguments: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested arguments under dotted keys; ConfigError where a key is a value and a mapping too."""
    found: dict[str, Any] = {}
    for key, value in arguments.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    for name in found:
        if below := [other for other in found if other.startswith(f"{name}.")]:
            raise ConfigError(f"arguments.{name}", found[name], f"no value: {below[0]} lies in it")
    return found


def _templated(value: Any, key: str) -> Any:
    """A value with templates in the place of its texts, those in lists too."""
    if isinstance(value, str):
        return Template.parse(value, key)
    return [_templated(item, key) for item in value] if isinstance(value, list | tuple) else value


def _templates_in(value: Any) -> list[Template]:
    if isinstance(value, list):
        return [template for item in value for template in _templates_in(item)]
    return [value] if isinstance(value, Template) else []


def _argument(key: str, value: Any, values: Values) -> Any:
    """An argument's value; ConfigError names it."""
    try:
        return _filled(value, values)
    except ConfigError as error:
        raise ConfigError(f"arguments.{key}", error.value, error.allowed) from error


def _filled(value: Any, values: Values) -> Any:
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    return value.value(values) if isinstance(value, Template) else value


def values_of(trial: Trial, folder: Path, resources: Mapping[str, int]) -> Values:
    """What the placeholders stand for in one trial."""
    train = trial.spec.train
    return {
        **trial.values,
        "width": trial.width,
        "depth": trial.depth,
        "batch_size": train.batch_size,
        "seq_len": train.seq_len,
        # A measurement is made of a step when the next one begins.
        "steps": train.steps + bool(trial.measurement),
        "seed": trial.seed,
        "dir": str(folder),
        "trial": str(folder / "trial.json"),
        "plan": str(folder / "plan.json"),
        "port": port_of(trial.key),
        "base": {"width": trial.spec.base_width, "depth": trial.spec.base_depth},
        **resources,
    }


def port_of(key: str) -> int:
    """A port that follows from a trial's key: two trials on a host do not collide."""
    return PORTS.start + int(key[:8], 16) % len(PORTS)


def launched(argv: Sequence[str], values: Values, options: Sequence[str] = ()) -> list[str]:
    """The words under torchrun: on one node by itself, on several by srun, once a node."""
    script = (
        [*options, *argv[1:]]
        if _PYTHON.fullmatch(Path(argv[0]).name)
        else [*options, "--no-python", *argv]
    )
    processes = f"--nproc-per-node={values['tasks']}"
    run = [sys.executable, "-m", "torch.distributed.run"]
    if values["nodes"] == 1:
        return [*run, "--standalone", processes, *script]
    nodes = str(values["nodes"])
    return [
        # It shares what the allocation has with the step that runs this process.
        *("srun", "--overlap", "--mem=0", f"--nodes={nodes}", f"--ntasks={nodes}"),
        "--ntasks-per-node=1",
        *run,
        f"--nnodes={nodes}",
        processes,
        f"--rdzv-id={os.environ.get('SLURM_JOB_ID', '0')}-{values['port']}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={_first_host()}:{values['port']}",
        *script,
    ]


def _first_host() -> str:
    """The address of this allocation's first node; this machine's name outside of one."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        return socket.gethostname()
    name = _scontrol("hostnames", nodes).split()[0]
    address = re.search(r"NodeAddr=(\S+)", _scontrol("node", name))
    return address[1] if address else name


def _scontrol(kind: str, name: str) -> str:
    """What `scontrol show` says."""
    try:
        found = subprocess.run(
            ["scontrol", "show", kind, name], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SweeperError(f"scontrol does not tell the hosts of {name}: {error}") from error
    return found.stdout
