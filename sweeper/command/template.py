"""Placeholders in the words of a command: `{eta}`, `{width//64}`, `{width/base.width}`.

An expression is parsed into Python's syntax tree and computed here, node by node: nothing is ever
handed to Python's own evaluation.
"""

from __future__ import annotations

import ast
import json
import math
import operator
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
from sweeper.files import write_atomically
from sweeper.launch.slurm_queue import long_options
from sweeper.study.folder import PLAN
from sweeper.trial import Trial

Value = int | float | str
Values = Mapping[str, Any]
"""What placeholders stand for: values by name, and `base`, the base's sizes by name."""

_TOKENS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")
"""A literal brace, an expression, a brace that is alone, other text."""
_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "round": round,
    "min": min,
    "max": max,
}
MAX_BITS = 256
"""Of a whole number; no argument of a trainer is larger."""
LONGEST = 200
"""Characters of an expression."""
MAX_POWER = 64
"""Larger exponents are a slip of the pen, and could fill the memory."""
ALLOWED = (
    "a name, numbers, + - * / // % **, parentheses, and int, float, round, min, max; "
    "literal braces are written {{ and }}"
)


@dataclass(frozen=True)
class Expression:
    """The inside of one pair of braces."""

    text: str
    tree: ast.expr

    @property
    def names(self) -> set[str]:
        """The names that it uses, those of the base's sizes as `base.width`."""
        nodes = list(ast.walk(self.tree))
        # Names that are no placeholders: the function of a call, the `base` of `base.width`.
        inner = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        inner |= {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        dotted = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
        return dotted | {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in inner}

    def value(self, values: Values) -> Value:
        """What it comes to; ConfigError where that is no number."""
        try:
            result: Value = _computed(self.tree, values)
            _check_number(result)
        except (ArithmeticError, TypeError, ValueError) as error:
            allowed = f"an expression that has a value ({error})"
            raise ConfigError("command", f"{{{self.text}}}", allowed) from error
        if result == 0 and self._divides_a_size():
            raise ConfigError("command", f"{{{self.text}}}", self._above_zero(values))
        return result

    def _divides_a_size(self) -> bool:
        """Whether the expression counts parts of a width or depth, such as heads: 0 is a slip."""
        divides = any(isinstance(node, ast.FloorDiv) for node in ast.walk(self.tree))
        # {width//64} heads come to 0 at width 32, which a script may well take without a word.
        return divides and bool(self.names & {"width", "depth"})

    def _above_zero(self, values: Values) -> str:
        sizes = [f"{n} {values[n]}" for n in ("width", "depth") if n in self.names]
        return (
            f"it comes to 0 at {' and '.join(sizes)}, which is no count of heads or the like: take "
            "larger sizes, or divide by less (where 0 is meant, write int(a/b) for a//b)"
        )


@dataclass(frozen=True)
class Template:
    """A word with placeholders."""

    parts: tuple[str | Expression, ...]

    @classmethod
    def parse(cls, word: str, key: str = "command") -> Template:
        """Read a word; ConfigError, under `key`, for braces or an expression that cannot be."""
        parts: list[str | Expression] = []
        for match in _TOKENS.finditer(word):
            token = match[0]
            if token in ("{{", "}}"):
                parts.append(token[0])
            elif token in ("{", "}"):
                raise ConfigError(key, word, f"braces in pairs: {ALLOWED}")
            elif match[1] is not None:
                parts.append(Expression(match[1], _parsed(match[1], word, key)))
            else:
                parts.append(token)
        return cls(tuple(parts))

    @property
    def names(self) -> set[str]:
        """The names in all its placeholders."""
        return {n for part in self.parts if isinstance(part, Expression) for n in part.names}

    def check(self, known: set[str], key: str = "command") -> None:
        """ConfigError for a name that is none of the `known` ones."""
        for name in sorted(self.names - known):
            raise ConfigError(key, f"{{{name}}}", f"no such placeholder; {suggest(name, known)}")

    def value(self, values: Values) -> Value:
        """The value: that of the placeholder, as it is, where the word is nothing else."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Expression):
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


def _parsed(text: str, word: str, key: str) -> ast.expr:
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
        # Only parsed: no node that is not on the list of `_is_allowed` is ever computed.
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ConfigError(key, word, f"in braces: {ALLOWED}") from error
    for node in ast.walk(tree):
        if not _is_allowed(node):
            raise ConfigError(key, word, f"in braces: {ALLOWED}")
    return tree


def _check_number(value: object) -> None:
    """ValueError for what no command could read as a number."""
    if isinstance(value, complex):
        raise ValueError("it is the root of a negative number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("it is not finite")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("it is too large")


def _is_allowed(node: ast.AST) -> bool:
    match node:
        case ast.Constant():
            return type(node.value) in (int, float)
        case ast.BinOp():
            return type(node.op) in _OPERATIONS
        case ast.Call():
            named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
            return named and bool(node.args) and not node.keywords
        case ast.Attribute():
            return isinstance(node.value, ast.Name) and node.value.id == "base"
        case _:
            kinds = (ast.Name, ast.UnaryOp, ast.USub, ast.UAdd, ast.operator, ast.expr_context)
            return isinstance(node, kinds)


def _computed(node: ast.AST, values: Values) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return values[node.id]
        case ast.Attribute():
            return values["base"][node.attr]
        case ast.UnaryOp():
            operand = _computed(node.operand, values)
            return -operand if isinstance(node.op, ast.USub) else +operand
        case ast.Call():
            arguments = [_computed(argument, values) for argument in node.args]
            return _FUNCTIONS[node.func.id](*arguments)  # type: ignore[attr-defined]
        case ast.BinOp():
            left, right = _computed(node.left, values), _computed(node.right, values)
            # Before it is computed: 9**9**9 would fill the memory.
            if isinstance(node.op, ast.Pow) and abs(right) > MAX_POWER:
                raise ValueError(f"an exponent beyond {MAX_POWER}")
            if isinstance(left, str) or isinstance(right, str):
                raise TypeError("a text is no number")
            return _OPERATIONS[type(node.op)](left, right)
    raise TypeError(ast.unparse(node))


# Arguments as trainers take them: as flags of several kinds, or in a file.


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


# What placeholders stand for in a trial, and its command under torchrun.


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
    """The address of this allocation's first node; this machine's name outside of one."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        return socket.gethostname()
    name = _scontrol("hostnames", nodes).split()[0]
    # A node's name need not resolve; its address is what Slurm's own daemons use.
    address = re.search(r"NodeAddr=(\S+)", _scontrol("node", name))
    return address[1] if address else name


def _scontrol(kind: str, name: str) -> str:
    try:
        shown = subprocess.run(
            ["scontrol", "show", kind, name], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SweeperError(f"scontrol does not tell the hosts of {name}: {error}") from error
    return shown.stdout
