"""What a check measured: tables and figures of the coordinate check, and of scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sweeper.check.judge import (
    CHECK_ANSWERS,
    CheckRecord,
    CheckRule,
    CoordinateCheck,
    ModuleCheck,
)
from sweeper.check.recursion import KernelRow
from sweeper.engine.measurements import RANGES, OperandScale
from sweeper.report.console import collapsed
from sweeper.report.drawing import DASHED, DOTTED, FAINT, INK, LINE_COLOR, STYLE, WIDTH, new_figure
from sweeper.report.sections import Drawing, Item, Section, Sentence
from sweeper.report.sentences import check_sentence
from sweeper.table import Cell, Column, Table, answer, short

COLUMNS = 4
MOST_LETTERS = 11
RED, AMBER = "#b2182b", "#a06000"
ANSWER_COLORS = {"pass": INK, "fail": RED, "cannot say": AMBER}
OPERANDS = ("input", "weight", "gradient")


def coordinates(checks: Sequence[CoordinateCheck], rule: CheckRule) -> list[Item]:
    """The slopes where an answer rests on them; of several axes those of the worst answer first."""
    worst = max(checks, key=lambda check: CHECK_ANSWERS.index(check.answer))
    items = list[Item]()
    for check in checks:
        slopes = _slopes(check, rule)
        items += slopes if check is worst else [replace(item, detail=True) for item in slopes]
    return items


def _slopes(check: CoordinateCheck, rule: CheckRule) -> list[Item]:
    items: list[Item] = [coordinate_table(check, rule.threshold), *_at_fault(check)]
    reasons: dict[str, list[str]] = {}
    for name, members in collapsed((m.name, m) for m in check.modules):
        if (member := _worst(members)).answer != "pass":
            reasons.setdefault(f"{member.answer}, {member.worst.reason}", []).append(name)
    return items + [
        Sentence(f"{reason}: {', '.join(names)}", listed=True, detail=True)
        for reason, names in reasons.items()
    ]


def check_section(check: CoordinateCheck, record: CheckRecord) -> Section:
    """A check over one axis: its answer, the slopes, the curves."""
    rule, eta = record.rule, record.log2_hps.get("eta")
    at = f"; log2 η is {eta:g}" if isinstance(eta, int | float) else ""
    runs = (
        f"{rule.seeds} runs a size, each of {rule.steps} steps on one batch of {rule.batch}, at "
        f"{rule.share:g} times η{at}"
    )
    caption = (
        "The RMS of every module's output, and of what training changes in it, against the "
        f"{check.axis}: level where the parameterization is right. Of modules that differ in their "
        "layer alone the worst is drawn."
    )
    items: list[Item] = [
        Sentence(f"{check_sentence(check, rule)} {runs}.", code=check.answer),
        *_slopes(check, rule),
        Drawing(partial(coordinate_figure, check), caption=caption),
    ]
    return Section(f"Coordinate check over {check.axis}", items)


def scales_section(operands: Sequence[OperandScale]) -> Section:
    """How large the operands of all matrix products are."""
    return Section("Scales of the matrix products", [replace(scale_table(operands), title="")])


def coordinate_table(check: CoordinateCheck, threshold: float) -> Table:
    """Slopes by kind and step, a row for modules that differ in their layer alone: the worst."""
    # The first step shows what an update does by itself, the last also what layers do together.
    changes = [("change", step) for step in sorted({1, check.steps})]
    kinds = {"at init": ("output", 0)}
    kinds |= {f"step {step}": (kind, step) for kind, step in changes}
    kinds["direct"] = ("direct", check.steps)
    table = Table(
        f"Slopes of log RMS over log {check.axis} {', '.join(map(str, check.sizes))}",
        [
            Column("module", left=True),
            *(Column(name, form="+.2f", half=True) for name in kinds),
            Column("answer", left=True),
        ],
    )
    for name, members in collapsed((m.name, m) for m in check.modules):
        worst = _worst(members)
        cells = []
        for quantity, step in kinds.values():
            slopes = [
                s for m in members for s in m.slopes if (s.quantity, s.step) == (quantity, step)
            ]
            if not slopes:
                cells.append(Cell(None))
                continue
            farthest = max(slopes, key=lambda slope: slope.deviation)
            unknown = not math.isfinite(farthest.slope.value)
            # A reason as wide as a number; longer ones stand below the table.
            text = farthest.reason if len(farthest.reason) <= MOST_LETTERS else "-"
            cells.append(Cell(farthest.slope, text * unknown))
        # Each cell may be of another layer, so that no failing number hides behind the worst one.
        reason = f": {worst.worst.reason}" * (worst.answer != "pass")
        judged = replace(answer(worst.answer), small=reason)
        table.add(name, *cells, judged)
    table.legend, table.remarks = [LEGEND.format(threshold)], _expected(check)
    return table


LEGEND = (
    "Step: the whole change of an output by then; direct: by the module's own weights. "
    "Pass: within {:g} of theory's slope, 0 unless listed here. ±: 95 % interval."
)


def _expected(check: CoordinateCheck) -> list[str]:
    slopes = [slope for module in check.modules for slope in module.slopes]
    lines = []
    shrinking = [m.name for m in check.modules if any(s.expected for s in m.slopes)]
    if shrinking:
        least = min(slope.expected for slope in slopes)
        lines.append(
            f"Shrinks on purpose, change as {check.axis}^{least:g}: {', '.join(shrinking)}"
        )
    # slopes[0] is that of the output at initialization; elsewhere one-sided has other reasons.
    readouts = [m.name for m in check.modules if m.slopes[0].one_sided]
    if readouts:
        lines.append(
            f"As many entries at any {check.axis}, so it may begin small: {', '.join(readouts)}"
        )
    return lines


def _at_fault(check: CoordinateCheck) -> list[Item]:
    lines = []
    if check.unseen:
        lines.append(
            f"Not seen, as no output shows what they change: {', '.join(check.unseen)}. Use each "
            "by calling the module that holds it, or put it in a module of its own"
        )
    if check.origins:
        origins = [name for name, _ in collapsed((n, n) for n in check.origins)]
        lines.append(f"Where it begins: {', '.join(origins)}")
    return [Sentence(line, listed=True) for line in lines]


def _worst(members: Sequence[ModuleCheck]) -> ModuleCheck:
    return max(
        members, key=lambda member: (CHECK_ANSWERS.index(member.answer), member.worst.deviation)
    )


@rc_context(STYLE)
def coordinate_figure(check: CoordinateCheck) -> Figure:
    """A panel a module: log2 RMS of output and changes over log2 size; of layers the worst."""
    groups = collapsed((m.name, m) for m in check.modules)
    rows = max(1, math.ceil(len(groups) / COLUMNS))
    figure = new_figure(WIDTH, 1.0 + 1.35 * rows)
    panels = list(figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
    for ax, (name, members) in zip(panels, groups, strict=False):
        _panel(ax, check, name, _worst(members))
    for ax in panels[len(groups) :]:
        ax.remove()
    # Shared axes are labelled in the last row alone, which may not be under every column.
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
    # Sizes are evenly spaced, as powers of 2 are on a log axis.
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
    if quantity == "output":
        return {"color": FAINT, "linestyle": DASHED, "linewidth": 1.0}
    if quantity == "direct":
        return {"color": RED, "linestyle": DOTTED, "linewidth": 1.4}
    alpha = 1.0 if step == check.steps else 0.45
    return {"color": LINE_COLOR, "alpha": alpha, "linewidth": 1.4, "marker": "o", "markersize": 2.5}


SCALES_NOTE = (
    "To 0, over: the share of entries that the format makes 0, or cannot hold, at the last step, "
    "the largest of several layers."
)


def scale_table(operands: Sequence[OperandScale]) -> Table:
    """A row an operand: RMS at the start and the end, and what FP8 would lose of it at the end."""
    last = max(scale.step for scale in operands)
    # What E5M2 cannot hold E4M3 cannot either.
    losses = [(name, "underflow") for name in RANGES]
    losses.insert(1, ("e4m3", "overflow"))
    columns = [Column("product", left=True), Column("operand", left=True)]
    columns += [Column("RMS at init"), Column(f"RMS, step {last}")]
    for name, loss in losses:
        columns.append(Column(f"{name.upper()} {'to 0' if loss == 'underflow' else 'over'}"))
    table = Table("Operands of the matrix products", columns, legend=[SCALES_NOTE])
    for product, members in collapsed((s.product, s) for s in operands):
        for operand in OPERANDS:
            of_operand = [s for s in members if s.operand == operand]
            if not of_operand:
                continue
            ends = [s for s in of_operand if s.step == last]
            if not ends:
                continue
            shares = [max(getattr(getattr(s, name), loss) for s in ends) for name, loss in losses]
            table.add(
                product,
                operand,
                _range([s.rms for s in of_operand if s.step == 0]),
                _range([s.rms for s in ends]),
                *(Cell(share, f"{100 * share:.2f} %" if share else "0") for share in shares),
            )
        table.end_section()
    return table


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low}..{high}"


KERNELS = {"preactivation": "G", "normalized": "F", "tangent": "tangent"}
KERNEL_PAIRS = {"same": "a token with itself", "token": "another token", "image": "another image"}


def kernel_tables(rows: Sequence[KernelRow]) -> list[Item]:
    """Kernels by block, drawn and by the recursions; a table for each pair of tokens."""
    tables = list[Item]()
    for pair, of in KERNEL_PAIRS.items():
        # F of a token with itself is 1.
        names = [name for name in KERNELS if (pair, name) != ("same", "normalized")]
        columns = [Column("block", left=True)]
        for name in names:
            columns.append(Column(KERNELS[name], form=".3f"))
            columns.append(Column(f"{KERNELS[name]} in theory", form=".3f"))
        legend = ["±: 95 % interval over draws; theory: the recursions at infinite width."]
        table = Table(f"Kernels of {of}", columns, legend=legend, detail=pair != "same")
        for block in dict.fromkeys(row.block for row in rows):
            by_kernel = {row.kernel: row for row in rows if (row.block, row.pair) == (block, pair)}
            cells = [by_kernel.get(name) for name in names]
            if any(cells):
                values = [(row.measured, row.theory) if row else (None, None) for row in cells]
                table.add(block, *(cell for both in values for cell in both))
        tables.append(table)
    return tables
