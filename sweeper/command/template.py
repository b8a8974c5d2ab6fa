"""Placeholders in the words of a command: `{eta}`, `{width//64}`, `{width/base.width}`."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w
import yaml  # type: ignore[import-untyped]

from sweeper import schedule
from sweeper.errors import ConfigError, SweeperError, suggest
from sweeper.expression import MAX_BITS, NUMBERS, Expression, NoExpressionError
from sweeper.files import write_atomically
from sweeper.launch.slurm_queue import long_options
from sweeper.study.folder import PLAN
from sweeper.trial import Trial

Value = int | float | str
Values = Mapping[str, Any]
"""What placeholders stand for: values by name, and `base`, the base's sizes by name."""

_TOKENS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")
"""A literal brace, an expression, a brace that is alone, other text."""
_OF_BASE = re.compile(r"base\.\w+")
ALLOWED = (
    "a name, numbers, + - * / // % **, parentheses, and int, float, round, min, max; "
    "literal braces are written {{ and }}"
)


@dataclass(frozen=True)
class Placeholder:
    """One pair of braces and the expression in it."""

    text: str
    expression: Expression

    @classmethod
    def parse(cls, text: str) -> Placeholder:
        """NoExpressionError for what is no arithmetic of values and `base.NAME`."""
        expression = Expression.parse(text, NUMBERS)
        if any("." in name and not _OF_BASE.fullmatch(name) for name in expression.names):
            raise NoExpressionError
        return cls(text, expression)

    def value(self, values: Values) -> Value:
        """What it comes to; ConfigError where that is no number."""

        def value_of(name: str) -> Any:
            base, dot, size = name.partition(".")
            return values[base][size] if dot else values[name]

        try:
            result: Value = self.expression.value(value_of)
            _check_number(result)
        except (ArithmeticError, TypeError, ValueError) as error:
            allowed = f"an expression that has a value ({error})"
            raise ConfigError("command", f"{{{self.text}}}", allowed) from error
        # {width//64} heads come to 0 at width 32, which a script may well take without a word.
        sizes = [f"{n} {values[n]}" for n in ("width", "depth") if n in self.expression.names]
        if result == 0 and sizes and self.expression.divides:
            allowed = (
                f"it comes to 0 at {' and '.join(sizes)}, which is no count of heads or the like: "
                "take larger sizes, or divide by less (where 0 is meant, write int(a/b) for a//b)"
            )
            raise ConfigError("command", f"{{{self.text}}}", allowed)
        return result


@dataclass(frozen=True)
class Template:
    """A word with placeholders."""

    parts: tuple[str | Placeholder, ...]

    @classmethod
    def parse(cls, word: str, key: str = "command") -> Template:
        """Read a word; ConfigError, under `key`, for braces or an expression that cannot be."""
        parts: list[str | Placeholder] = []
        for match in _TOKENS.finditer(word):
            token = match[0]
            if token in ("{{", "}}"):
                parts.append(token[0])
            elif token in ("{", "}"):
                raise ConfigError(key, word, f"braces in pairs: {ALLOWED}")
            elif match[1] is not None:
                try:
                    parts.append(Placeholder.parse(match[1]))
                except NoExpressionError as error:
                    why = f" ({error})" if str(error) else ""
                    raise ConfigError(key, word, f"in braces: {ALLOWED}{why}") from error
            else:
                parts.append(token)
        return cls(tuple(parts))

    @property
    def names(self) -> set[str]:
        """The names in all its placeholders."""
        placeholders = (part for part in self.parts if isinstance(part, Placeholder))
        return {name for part in placeholders for name in part.expression.names}

    def check(self, placeholders: set[str], key: str = "command") -> None:
        """ConfigError for a name that is none of the `placeholders`."""
        for name in sorted(self.names - placeholders):
            raise ConfigError(
                key, f"{{{name}}}", f"no such placeholder; {suggest(name, placeholders)}"
            )

    def value(self, values: Values) -> Value:
        """The value: that of the placeholder, as it is, where the word is nothing else."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Placeholder):
            return self.parts[0].value(values)
        return self.text(values)

    def text(self, values: Values, number: Callable[[float], str] = repr) -> str:
        """The word with values in the place of placeholders; `number` writes floats."""
        return "".join(
            part if isinstance(part, str) else written(part.value(values), number)
            for part in self.parts
        )


def written(value: object, number: Callable[[float], str] = repr) -> str:
    """A value as a command takes it: a float always looks like one (`1.0`)."""
    return number(value) if isinstance(value, float) else str(value)


def flat(arguments: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested arguments under dotted keys; ConfigError where a key is a value and a mapping too."""
    dotted: dict[str, Any] = {}
    for key, value in arguments.items():
        name = f"{prefix}{key}"
        dotted |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    for name in dotted:  # keys may hold dots themselves: {"a": 1, "a.b": 2}
        if below := [other for other in dotted if other.startswith(f"{name}.")]:
            raise ConfigError(f"arguments.{name}", dotted[name], f"no value: {below[0]} lies in it")
    return dotted


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """`change` of a value, or of every item of a list."""
    if isinstance(value, list | tuple):
        return [each(item, change) for item in value]
    return change(value)


def templates_in(value: Any) -> list[Template]:
    """The templates in what `each` has made."""
    if isinstance(value, list):
        return [template for item in value for template in templates_in(item)]
    return [value] if isinstance(value, Template) else []


def _check_number(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("it is not finite")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("it is too large")


Style = Literal["equals", "spaces", "hydra", "json", "yaml", "toml"]
"""`--key=value`, `--key value` and bare booleans, `key=value`, or a file of all arguments."""


def float_text(style: Style) -> Callable[[float], str]:
    """How a style writes floats: Python's shortest text that reads back to the same float.

    Where YAML reads it the mantissa gets a point: PyYAML takes 1e-05 for a text.
    """
    return _with_point if style in ("hydra", "yaml") else repr


def _with_point(value: float) -> str:
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa}.0{e}{exponent}" if e and "." not in mantissa else repr(value)


def styled(
    style: Style, arguments: Mapping[str, Any], folder: Path, *, write: bool = True
) -> list[str]:
    """`arguments` as a command takes them; a file of them goes to `folder`, if asked to `write`."""
    if style in _FILES:
        if not arguments:
            return []
        # Nested again: in a file `optimizer.lr` is a mapping within a mapping.
        tree: dict[str, Any] = {}
        for key, value in arguments.items():
            *above, last = key.split(".")
            inner = tree
            for part in above:
                inner = inner.setdefault(part, {})
            inner[last] = value
        path = folder / f"arguments.{style}"
        if write:
            write_atomically(path, _FILES[style](tree))
        return [str(path)]
    argv: list[str] = []
    for key, value in arguments.items():
        match style:
            case "equals":
                argv.append(f"--{key}={written(value)}")
            case "hydra":  # it reads lists, booleans and null as JSON has them
                plain = isinstance(value, str | float)
                text = written(value, float_text(style)) if plain else json.dumps(value)
                argv.append(f"{key}={text}")
            case _ if value is None or isinstance(value, bool):
                argv += [f"--{key}"] if value else []
            case _:
                items = value if isinstance(value, list | tuple) else [value]
                argv += [f"--{key}", *map(written, items)]
    return argv


_FILES: Mapping[str, Callable[[Any], str]] = {
    "json": lambda tree: json.dumps(tree, indent=1, allow_nan=False) + "\n",
    "yaml": lambda tree: str(yaml.safe_dump(tree, sort_keys=False)),
    "toml": tomli_w.dumps,
}


SIZES = ("width", "depth", "batch_size", "seq_len", "steps")
"""Sizes; width and depth are also those of the base: `{base.width}`."""
OTHERS = (
    *("seed", "dir", "trial", "plan", "resume", "nodes", "gpus", "tasks", "port"),
    *schedule.PLACEHOLDERS,
)
"""What else a command may ask for."""
RESERVED = frozenset({*SIZES, *OTHERS, "base"})
"""Names that no hyperparameter can have."""
Launch = Literal["plain", "torchrun"]
_PYTHON = re.compile(r"python[\d.]*")
PORTS = range(20_000, 40_000)


def values_of(trial: Trial, folder: Path, settings: Mapping[str, int | str]) -> Values:
    """What the placeholders stand for in one trial: its own values, and those of `settings`."""
    train = trial.train
    return {
        **trial.values,
        "width": trial.width,
        "depth": trial.depth,
        "batch_size": train.batch_size,
        "seq_len": train.seq_len,
        # A watched model is measured when the call after a step begins: it needs one step more.
        "steps": train.steps + bool(trial.measurement),
        "schedule": schedule.name_of(train.schedule),
        "decay_steps": train.steps - train.decay_start,
        "warmup_steps": train.span.warmup,
        "seed": trial.seed,
        "dir": str(folder),
        "trial": str(folder / "trial.json"),
        "plan": str(folder / PLAN),
        "port": port_of(trial.key),
        "base": {"width": trial.spec.base_width, "depth": trial.spec.base_depth},
        **settings,
    }


def port_of(key: str) -> int:
    """A port that follows from a trial's key: two trials on a host do not collide."""
    return PORTS.start + int(key[:8], 16) % len(PORTS)


def under_torchrun(argv: Sequence[str], values: Values, options: Sequence[str] = ()) -> list[str]:
    """The command under torchrun: on one node by itself, on several by srun, once a node."""
    # torchrun starts Python by itself; any other program needs --no-python.
    script = (
        [*options, *argv[1:]]
        if _PYTHON.fullmatch(Path(argv[0]).name)
        else [*options, *long_options(no_python=None), *argv]
    )
    tasks = values["tasks"]
    run = [sys.executable, "-m", "torch.distributed.run"]
    if values["nodes"] == 1:
        return [*run, *long_options(standalone=None, nproc_per_node=tasks), *script]
    nodes = str(values["nodes"])
    return [
        # It shares what the allocation has with the step that runs this process.
        "srun",
        *long_options(overlap=None, mem=0, nodes=nodes, ntasks=nodes, ntasks_per_node=1),
        *run,
        *long_options(
            nnodes=nodes,
            nproc_per_node=tasks,
            rdzv_id=f"{os.environ.get('SLURM_JOB_ID', '0')}-{values['port']}",
            rdzv_backend="c10d",
            rdzv_endpoint=f"{_first_host()}:{values['port']}",
        ),
        *script,
    ]


def _first_host() -> str:
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        return socket.gethostname()
    name = _scontrol("hostnames", nodes).split()[0]
    # A node's name need not resolve; its address is what Slurm's own daemons use.
    address = re.search(r"NodeAddr=(\S+)", _scontrol("node", name))
    return address[1] if address else name


def _scontrol(kind: str, name: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", "show", kind, name], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SweeperError(f"scontrol does not tell the hosts of {name}: {error}") from error
    return done.stdout
