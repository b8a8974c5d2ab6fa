"""A plan as a table of plain text: what is trained alike in a row, then what the model must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from sweeper.scaling.prescription import SETTING_FACTORS
from sweeper.scaling.spec import NUMBER

if TYPE_CHECKING:
    from sweeper.transfer.plan import PlannedParameter, TransferPlan

COLUMNS = ("parameters", "role", "init std", "lr", "eps", "decay")
NAMES_WIDTH, NAMES_LINES = 48, 2
"""Of the column of names: characters of a line, and lines of a row."""
MAX_LINES = 38
"""Lines of all rows together."""
MAX_NEEDS = 12
LAW_WIDTH = 96
ONE_MINUS = "one_minus_"
"""Hyperparameters of these names are factors on the distance of an optimizer's setting from 1."""
NO_BREAK = "\N{NO-BREAK SPACE}"


def plan_table(plan: TransferPlan) -> str:
    """Sizes, scheme, rows of parameters with the numbers that they absorbed, needs."""
    lines = [
        f"Plan for {named_sizes(plan, 'target')}, tuned at {named_sizes(plan, 'base')}",
        _rules(plan),
    ]
    if plan.law is not None:
        lines += [part for line in plan.law.lines() for part in _folded(line)]
    rows = [line for members in _alike(plan.parameters) for line in _row(*members)]
    hidden = len(rows) - MAX_LINES
    table = _aligned([COLUMNS, *rows[:MAX_LINES]])
    lines += ["", *table]
    if hidden > 0:
        lines.append(f"... and {hidden} lines more: plan.absorbed() has every parameter")
    if plan.needs:
        lines += ["", "The model itself must do what no group can:"]
        lines += [f"- {need}" for need in plan.needs[:MAX_NEEDS]]
    if len(plan.needs) > MAX_NEEDS:
        lines.append(f"... and {len(plan.needs) - MAX_NEEDS} more: plan.needs has them all")
    return "\n".join(lines)


def _folded(line: str) -> list[str]:
    """A line of a list for people, on as many as it needs."""
    indent = "  " if line.startswith("- ") else ""
    return wrap(line, LAW_WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def named_sizes(plan: TransferPlan, which: str) -> str:
    """The sizes as the user names them, if the plan knows, else width and depth."""
    named: Any = plan.source.get("sizes")
    if isinstance(named, Mapping) and isinstance(named.get(which), Mapping):
        return ", ".join(f"{name} {value}" for name, value in named[which].items())
    return str(getattr(plan, which))


def _rules(plan: TransferPlan) -> str:
    """Scheme, optimizer and hyperparameters."""
    optimizer = f" with {plan.optimizer.name}" if plan.optimizer else ""
    return f"{plan.parameterization}{optimizer}: {hps_text(plan)}"


def hps_text(plan: TransferPlan) -> str:
    """The hyperparameters, those that are factors on the optimizer's settings as factors.

    A command that scales by itself takes what has their names as it is.
    """
    scaled = bool(plan.parameters)
    return ", ".join(_hp(name, value, scaled=scaled) for name, value in plan.hps.items())


def _hp(name: str, value: object, *, scaled: bool) -> str:
    of = f"(1 - {name.removeprefix(ONE_MINUS)})" if name.startswith(ONE_MINUS) else name
    factor = scaled and (of != name or name in SETTING_FACTORS)
    return f"{of} x {value_text(value)}" if factor else f"{name} {value_text(value)}"


def value_text(value: object) -> str:
    """A hyperparameter as it is used: a float in four digits, anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _alike(
    parameters: Sequence[PlannedParameter],
) -> list[tuple[PlannedParameter, list[str], int]]:
    """Of parameters of one role and equal settings: the first, names with *, how many."""
    rows: dict[tuple[object, ...], list[PlannedParameter]] = {}
    for parameter in parameters:
        settings = parameter.absorbed()
        numbers = (settings.init_mean, settings.init_std, settings.lr, settings.eps)
        key = (parameter.role, parameter.init, parameter.frozen, *numbers, settings.weight_decay)
        rows.setdefault(key, []).append(parameter)
    return [
        (
            members[0],
            list(dict.fromkeys(NUMBER.sub("*", one.name) for one in members)),
            len(members),
        )
        for members in rows.values()
    ]


def _row(first: PlannedParameter, names: Sequence[str], count: int) -> list[tuple[str, ...]]:
    """The cells of a row; its names take more than one line where they must."""
    settings = first.absorbed()
    init = first.init if first.init != "normal" else f"{settings.init_std:.4g}"
    numbers = (settings.lr, settings.eps, settings.weight_decay)
    cells = [init, *(f"{value:.4g}" for value in numbers)]
    if first.frozen:
        cells = ["frozen", "-", "-", "-"]
    lines = _name_lines(names, count)
    blank = [""] * (len(COLUMNS) - 1)
    return [
        (line, *([first.role, *cells] if index == 0 else blank)) for index, line in enumerate(lines)
    ]


def _name_lines(names: Sequence[str], count: int) -> list[str]:
    """Names on at most `NAMES_LINES` lines; what has no room is counted."""
    shown, tail = [*names], ""
    while len(lines := _wrapped(shown, tail)) > NAMES_LINES and len(shown) > 1:
        shown.pop()
        tail = f", ...{NO_BREAK}{count}{NO_BREAK}in{NO_BREAK}all"
    return lines


def _wrapped(names: Sequence[str], tail: str) -> list[str]:
    lines = wrap(", ".join(names) + tail, NAMES_WIDTH, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width: the first two to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
