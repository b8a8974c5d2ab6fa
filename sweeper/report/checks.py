"""What `sweeper check` shows: tables and figures of the coordinate check, scales and rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from rich.console import Console

from sweeper.check.judge import CHECK_ANSWERS, CheckAnswer, CheckRule, CoordinateCheck, ModuleCheck
from sweeper.check.rules import MAX_SPREAD, RuleRow
from sweeper.engine.operand_scales import RANGES, OperandScale
from sweeper.report.drawing import DASHED, DOTTED, FAINT, INK, LINE_COLOR, STYLE, WIDTH
from sweeper.report.table import Grid, short, within
from sweeper.scaling.spec import layer_of, with_layer

T = TypeVar("T")
COLUMNS = 4
COLORS = {"pass": "green", "fail": "red", "cannot say": "yellow"}
RED, AMBER = "#b2182b", "#a06000"
ANSWER_COLORS = {"pass": INK, "fail": RED, "cannot say": AMBER}
OPERANDS = ("input", "weight", "gradient")


def collapsed(named: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Values whose names differ in a layer's number alone, under one name with their range."""
    groups: dict[str, list[tuple[str, T]]] = {}
    for name, value in named:
        groups.setdefault(with_layer(name, "#"), []).append((name, value))
    collapsed_values = {}
    for members in groups.values():
        first = members[0][0]
        numbers = sorted({int(layer_of(name) or 0) for name, _ in members})
        layers = "-".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
        collapsed_values[with_layer(first, layers)] = [value for _, value in members]
    return collapsed_values


def coordinates(console: Console, check: CoordinateCheck, rule: CheckRule) -> None:
    """The table of slopes, a row for modules that differ in their layer alone, and the answer."""
    title = f"Slopes of log RMS over log {check.axis} {', '.join(map(str, check.sizes))}"
    shown = Grid(
        title, ["module", "role", *columns(check), "answer"], left=2, spare=("role", "at init")
    )
    for row in rows(check):
        answer = f"[{COLORS[row.answer]}]{row.answer}[/]"
        shown.add_row(row.name, row.role, *row.cells, ": ".join(filter(None, [answer, row.reason])))
    console.print(shown, crop=False)
    for line in legend(check, rule.threshold):
        console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal)
    style = COLORS[check.answer]
    console.print(
        f"[bold {style}]Coordinate check over {check.axis}: {check.answer}.[/]",
        highlight=False,
    )


def columns(check: CoordinateCheck) -> dict[str, tuple[str, int]]:
    """The kinds of slope in the table, and their steps, by the columns' heads."""
    changes = {f"change, step {s}": ("change", s) for s in sorted({1, check.steps})}
    direct = {f"direct, step {check.steps}": ("direct", check.steps)}
    return {"at init": ("output", 0), **changes, **direct}


@dataclass(frozen=True, kw_only=True)
class ModuleRow:
    """Modules that differ in their layer alone, in words: the worst of their slopes and answers."""

    name: str
    role: str
    cells: Sequence[str]
    answer: CheckAnswer
    reason: str


def rows(check: CoordinateCheck) -> list[ModuleRow]:
    """The table of slopes, a cell for each of `columns`."""
    lines = []
    for name, members in collapsed((m.name, m) for m in check.modules).items():
        worst = _worst(members)
        lines.append(
            ModuleRow(
                name=name,
                role=str(worst.role or ""),
                cells=[_cell(members, *column) for column in columns(check).values()],
                answer=worst.answer,
                reason=worst.worst.reason if worst.answer != "pass" else "",
            )
        )
    return lines


def legend(check: CoordinateCheck, threshold: float) -> list[str]:
    """What the numbers are, what is expected where it is not 0, and where a failure begins."""
    slopes = [slope for module in check.modules for slope in module.slopes]
    lines = [
        "Direct: what the module's new matrices (vectors, where it has no other) change of its "
        "first output. It must neither grow nor vanish; the whole change of such a module must "
        "only not grow. ±: 95 % interval "
        f"over seeds. Pass: within {threshold:g} of theory's slope, which is 0 unless listed here."
    ]
    shrinking = [m.name for m in check.modules if any(s.expected for s in m.slopes)]
    if shrinking:
        least = min(slope.expected for slope in slopes)
        lines.append(
            f"- Shrinks on purpose, change as {check.axis}^{least:g}: {', '.join(shrinking)}"
        )
    readouts = [m.name for m in check.modules if m.slopes[0].one_sided]
    if readouts:
        lines.append(
            f"- As many entries at any {check.axis}, so it may begin small: {', '.join(readouts)}"
        )
    if check.unseen:
        lines.append(
            f"- Not seen, as no output shows what they change: {', '.join(check.unseen)}. Use each "
            "by calling the module that holds it, or put it in a module of its own"
        )
    if check.origins:
        lines.append(f"- Where it begins: {', '.join(collapsed((n, n) for n in check.origins))}")
    return lines


def _worst(members: Sequence[ModuleCheck]) -> ModuleCheck:
    """The member with the worst answer."""
    return max(
        members, key=lambda member: (CHECK_ANSWERS.index(member.answer), member.worst.deviation)
    )


def _cell(members: Sequence[ModuleCheck], quantity: str, step: int) -> str:
    """The slope that is farthest off among the members."""
    slopes = [s for m in members for s in m.slopes if (s.quantity, s.step) == (quantity, step)]
    if not slopes:
        return ""
    worst = max(slopes, key=lambda slope: slope.deviation)
    return within(worst.slope, sign="+") if math.isfinite(worst.slope.value) else worst.reason


@rc_context(STYLE)
def coordinate_figure(check: CoordinateCheck) -> Figure:
    """A panel a module: log2 RMS of output and changes over log2 size; of layers the worst."""
    groups = collapsed((m.name, m) for m in check.modules)
    rows = max(1, math.ceil(len(groups) / COLUMNS))
    figure = Figure(figsize=(WIDTH, 1.0 + 1.35 * rows), layout="constrained")
    panels = list(figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
    for ax, (name, members) in zip(panels, groups.items(), strict=False):
        _panel(ax, check, name, _worst(members))
    for ax in panels[len(groups) :]:
        ax.remove()
    for ax in panels[max(0, len(groups) - COLUMNS) : len(groups)]:
        ax.tick_params(labelbottom=True)
    figure.supxlabel(check.axis, fontsize=9)
    figure.supylabel(f"log2 RMS{' over all entries' * (rows > 1)}", fontsize=9)
    looks = {"output at initialization": _look("output", 0, check)}
    looks |= {f"change, step {s}": _look("change", s, check) for s in sorted({1, check.steps})}
    looks[f"direct change, step {check.steps}"] = _look("direct", check.steps, check)
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    title = f"Coordinate check over {check.axis}: {check.answer}"
    look: dict[str, Any] = {"loc": "outside upper left", "alignment": "left"}
    figure.legend(handles=handles, ncols=len(handles), title=title, title_fontsize=10, **look)
    return figure


def _panel(ax: Axes, check: CoordinateCheck, name: str, module: ModuleCheck) -> None:
    """One module's curves."""
    xs = range(len(check.sizes))
    for slope in module.slopes:
        values = [v if math.isfinite(v) else math.nan for v in slope.values]
        ax.plot(xs, values, **_look(slope.quantity, slope.step, check))
    ax.set_xticks(list(xs), [str(size) for size in check.sizes])
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    reason = f": {module.worst.reason}" if module.answer != "pass" else ""
    ax.set_title(
        f"{name}\n{module.answer}{reason}",
        fontsize=6.5,
        color=ANSWER_COLORS[module.answer],
        parse_math=False,
    )


def _look(quantity: str, step: int, check: CoordinateCheck) -> dict[str, Any]:
    """How a curve is drawn."""
    if quantity == "output":
        return {"color": FAINT, "linestyle": DASHED, "linewidth": 1.0}
    if quantity == "direct":
        return {"color": RED, "linestyle": DOTTED, "linewidth": 1.4}
    alpha = 1.0 if step == check.steps else 0.45
    return {"color": LINE_COLOR, "alpha": alpha, "linewidth": 1.4, "marker": "o", "markersize": 2.5}


def scales(console: Console, operands: Sequence[OperandScale]) -> None:
    """RMS of every operand at the start and the end, and what FP8 would lose of it at the end."""
    columns, rows = scale_table(operands)
    shown = Grid("Operands of the matrix products", columns, left=2, spare=columns[-1:3:-1])
    for product, operand, *cells in rows:
        if operand == OPERANDS[0]:
            shown.add_section()
        shown.add_row(product, operand, *cells)
    console.print(shown, crop=False)
    console.print(SCALES_NOTE, highlight=False, soft_wrap=not console.is_terminal)


SCALES_NOTE = (
    "Shares of entries that the format would make 0, and that are beyond its largest number, "
    "at the last step; of several layers the largest, and the range of the RMS."
)


def scale_table(operands: Sequence[OperandScale]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of scales, a row an operand of products alike."""
    last = max(scale.step for scale in operands)
    columns = ["product", "operand", "RMS at init", f"RMS, step {last}"]
    columns += ["E4M3 to 0", "E4M3 over", "E5M2 to 0", "E5M2 over"]
    rows = []
    for product, members in collapsed((s.product, s) for s in operands).items():
        for operand in OPERANDS:
            own = [s for s in members if s.operand == operand]
            if own:
                rows.append([product, operand, *_operand(own, last)])
    return columns, rows


def _operand(members: Sequence[OperandScale], last: int) -> list[str]:
    """The cells of one operand."""
    ends = [s for s in members if s.step == last]
    cells = [_range([s.rms for s in members if s.step == 0]), _range([s.rms for s in ends])]
    for name in RANGES:
        for loss in ("underflow", "overflow"):
            share = max(getattr(getattr(s, name), loss) for s in ends)
            cells.append(f"{100 * share:.2f} %" if share else "0")
    return cells


def _range(values: Sequence[float]) -> str:
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low}..{high}"


@rc_context(STYLE)
def scale_figure(operands: Sequence[OperandScale]) -> Figure:
    """RMS of inputs, weights and gradients, a row a product: hollow at the start, full at the end.

    As Figure 3 of the u-muP paper; lines mark the ranges of E4M3 and E5M2.
    """
    products = list(dict.fromkeys(scale.product for scale in operands))
    last = max(scale.step for scale in operands)
    height = 1.3 + 0.16 * len(products)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    for ax, operand in zip(panels, OPERANDS, strict=True):
        own = {(s.product, s.step): s.rms for s in operands if s.operand == operand}
        _operand_panel(ax, products, own, last)
        ax.set_title({"gradient": "gradient of the output"}.get(operand, operand))
    panels[0].set_yticks(range(len(products)), products, fontsize=6.5)
    panels[0].invert_yaxis()
    panels[1].set_xlabel("RMS, log2")
    handles = [
        Line2D([], [], label="initialization", **_dot("white")),
        Line2D([], [], label=f"step {last}", **_dot(LINE_COLOR)),
        Line2D([], [], label="range of E4M3", color=RED, linestyle=DASHED),
        Line2D([], [], label="of E5M2", color=FAINT, linestyle=DOTTED),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4)
    return figure


def _operand_panel(
    ax: Axes, products: Sequence[str], own: Mapping[tuple[str, int], float], last: int
) -> None:
    for name, style, color in (("e4m3", DASHED, RED), ("e5m2", DOTTED, FAINT)):
        for edge in RANGES[name]:
            ax.axvline(math.log2(edge), color=color, linestyle=style, linewidth=0.8)
    for row, product in enumerate(products):
        ends = [_log(own.get((product, step), math.nan)) for step in (0, last)]
        ax.plot(ends, [row, row], color=LINE_COLOR, linewidth=1.0)
        for value, face in zip(ends, ("white", LINE_COLOR), strict=True):
            ax.plot([value], [row], **_dot(face))


def _log(value: float) -> float:
    return math.log2(value) if 0 < value < math.inf else math.nan


def _dot(face: str) -> dict[str, Any]:
    look = {"marker": "o", "markersize": 4, "linestyle": "none", "color": LINE_COLOR}
    return {**look, "markerfacecolor": face}


def rules(console: Console, rows: Sequence[RuleRow]) -> None:
    """The RMS by which a step at eta = 1 moves a layer, by rule and shape."""
    shapes = list(rows[0].changes)
    heads = [f"{out}x{into}" for out, into in shapes]
    columns = ["rule", "updates", *heads, "spread", "constant"]
    shown = Grid(
        "RMS of the change by rule and shape (out x in)", columns, left=2, spare=heads[1:-1]
    )
    for row in rows:
        cells = [f"{row.changes[shape]:.3g}" for shape in shapes]
        answer = "[green]yes[/]" if row.keeps else "[red]no[/]"
        shown.add_row(row.rule, str(row.update), *cells, f"{row.spread:.3g}", answer)
    console.print(shown, crop=False)
    console.print(
        f"Spread: largest over smallest; constant: at most {MAX_SPREAD:g}. sign: Adam, Lion; "
        "orthogonal: Muon; normalized: unit Frobenius norm, one input.",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )
