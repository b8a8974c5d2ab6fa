"""Expressions that users write: `width//64` in a command, `loss < 4 and seed in [0, 1]` of rows.

Python parses the text, a syntax lists what may stand in it, and that is computed here, node by
node. Nothing is ever handed to Python's own evaluation: an expression from a stranger can do no
more than name values.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from numbers import Number
from types import NoneType
from typing import Any

_ARITHMETIC: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
MAX_POWER = 64
"""Larger exponents, and more digits of a rounding, are a slip of the pen; could fill the memory."""
MAX_BITS = 256
"""Of a whole number that is the base of a power, or a value; no trainer's argument is larger."""


def _rounded(number: Any, digits: Any = None) -> Any:
    if digits is not None and abs(digits) > MAX_POWER:
        raise ValueError(f"more than {MAX_POWER} digits of a rounding")
    return round(number, digits)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "round": _rounded,
    "min": min,
    "max": max,
}
_CONDITIONS = (ast.BoolOp, ast.Compare)
_ALWAYS = (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.USub, ast.expr_context)


@dataclass(frozen=True)
class Syntax:
    """What an expression may hold: kinds of nodes and of literals, up to so many characters."""

    nodes: tuple[type[ast.AST], ...]
    literals: tuple[type, ...]
    longest: int


NUMBERS = Syntax((ast.BinOp, ast.Call, *_ARITHMETIC), (int, float), 200)
"""Names, numbers, arithmetic and functions."""
CONDITIONS = Syntax(
    (*_CONDITIONS, ast.And, ast.Or, ast.Not, ast.cmpop, ast.List),
    (int, float, str, bool, NoneType),
    20_000,
)
"""Names compared with numbers, texts, None and lists, joined by `and`, `or` and `not`."""


class NoExpressionError(ValueError):
    """The text is none of its syntax, or what is computed has no value; it may say why."""


@dataclass(frozen=True)
class Expression:
    """A text of some syntax; `names` are what it needs, such as `width` and `base.width`."""

    tree: ast.expr
    names: frozenset[str]
    divides: bool

    @classmethod
    def parse(cls, text: str, syntax: Syntax) -> Expression:
        """NoExpressionError for what is none."""
        if len(text) > syntax.longest:
            raise NoExpressionError(f"at most {syntax.longest:,} characters")
        try:
            with warnings.catch_warnings(action="ignore"):  # Python's, of what is refused anyway
                tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise NoExpressionError("it cannot be parsed") from error
        nodes = list(ast.walk(tree))
        if not all(_is_allowed(node, syntax) for node in nodes):
            raise NoExpressionError
        # No names of values: the function of a call, and `base` of `base.width`.
        inner = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        inner |= {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        outer = [n for n in nodes if isinstance(n, ast.Name | ast.Attribute) and id(n) not in inner]
        divides = any(isinstance(node, ast.FloorDiv) for node in nodes)
        return cls(tree, frozenset(map(_dotted, outer)), divides)

    def value(
        self,
        value_of: Callable[[str], Any],
        compared: Callable[[type[ast.cmpop], Any, Any], Any] | None = None,
    ) -> Any:
        """What it comes to, with values by name; a comparison is what `compared` makes of it.

        ArithmeticError, TypeError, ValueError and RecursionError where it has no value.
        """

        def compute(node: ast.expr) -> Any:
            match node:
                case ast.Constant():
                    return node.value
                case ast.Name() | ast.Attribute():
                    return value_of(_dotted(node))
                case ast.List():
                    return [_literal(item) for item in node.elts]
                case ast.Call():
                    arguments = map(compute, node.args)
                    return _FUNCTIONS[node.func.id](*arguments)  # type: ignore[attr-defined]
                case ast.BinOp():
                    return _arithmetic(node.op, compute(node.left), compute(node.right))
                case ast.UnaryOp(op=ast.Not()):
                    return operator.invert(condition(node.operand))
                case ast.UnaryOp():
                    return _arithmetic(node.op, compute(node.operand))
                case ast.BoolOp():
                    join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
                    return reduce(join, map(condition, node.values))
                case ast.Compare() if compared is not None:
                    # A chain, a < b < c, compares neighbours, as in Python.
                    sides = [compute(side) for side in (node.left, *node.comparators)]
                    pairs = zip(node.ops, sides, sides[1:], strict=False)
                    return reduce(operator.and_, (compared(type(op), a, b) for op, a, b in pairs))
            raise NoExpressionError

        def condition(node: ast.expr) -> Any:
            if not _is_condition(node):
                raise NoExpressionError
            return compute(node)

        return compute(self.tree)


def _is_condition(node: ast.expr) -> bool:
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, _CONDITIONS)


def _is_allowed(node: ast.AST, syntax: Syntax) -> bool:
    match node:
        case ast.Constant():
            return type(node.value) in syntax.literals
        case ast.Call() if isinstance(node.func, ast.Name):
            named = ast.Call in syntax.nodes and node.func.id in _FUNCTIONS
            return named and bool(node.args) and not node.keywords
        case ast.Attribute():
            return isinstance(node.value, ast.Name | ast.Attribute)
    return not isinstance(node, ast.Call) and isinstance(node, (*_ALWAYS, *syntax.nodes))


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    assert isinstance(node, ast.Name)
    return ".".join([node.id, *parts])


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
        if isinstance(node.op, ast.Not):
            raise NoExpressionError
        return _arithmetic(node.op, node.operand.value)
    if not isinstance(node, ast.Constant):
        raise NoExpressionError
    return node.value


def _arithmetic(op: ast.AST, *values: Any) -> Any:
    if not all(isinstance(value, Number) for value in values):
        text = any(isinstance(value, str) for value in values)
        raise TypeError("a text is no number" if text else "only numbers are computed with")
    # Before it is computed: 9**9**9 would fill the memory.
    if isinstance(op, ast.Pow) and abs(values[1]) > MAX_POWER:
        raise ValueError(f"an exponent beyond {MAX_POWER}")
    if isinstance(op, ast.Pow) and isinstance(values[0], int) and values[0].bit_length() > MAX_BITS:
        raise ValueError("it is too large")
    result = _ARITHMETIC[type(op)](*values)
    if isinstance(result, complex):
        raise ValueError("it is the root of a negative number")
    return result
