"""Placeholders in the words of a command: `{eta}`, `{width//64}`, `{width/base.width}`.

An expression is parsed into Python's syntax tree and computed here, node by node: nothing is ever
handed to Python's own evaluation.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.errors import ConfigError, suggest

Value = int | float | str
Values = Mapping[str, Any]
"""What placeholders stand for: values by name, and `base`, the base's sizes by name."""

_TOKENS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")
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
        inner = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        inner |= {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        found = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
        return found | {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in inner}

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
        """Whether it counts the parts of a width or depth, such as heads: none is a slip."""
        divides = any(isinstance(node, ast.FloorDiv) for node in ast.walk(self.tree))
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


def _parsed(text: str, word: str, key: str) -> ast.expr:
    try:
        if len(text) > LONGEST:
            raise ValueError("it is too long")
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
            if isinstance(node.op, ast.Pow) and abs(right) > MAX_POWER:
                raise ValueError(f"an exponent beyond {MAX_POWER}")
            if isinstance(left, str) or isinstance(right, str):
                raise TypeError("a text is no number")
            return _OPERATIONS[type(node.op)](left, right)
    raise TypeError(ast.unparse(node))
