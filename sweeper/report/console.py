"""Tables and sentences for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console

from sweeper.plan.diagnose import AblationResult, Diagnosis
from sweeper.plan.explain import Explained
from sweeper.plan.plan import PlannedParameter, TransferPlan, value_text
from sweeper.report.progress import duration
from sweeper.report.table import (
    NOT_SEARCHED,
    Grid,
    grouped,
    role_word,
    short,
    size_words,
    trend_words,
    within,
)
from sweeper.search.strategy import Conclusion, LineResult, PairGrid
from sweeper.trial import Space, in_use
from sweeper.verdict.curve import Estimate
from sweeper.verdict.judge import Verdict
from sweeper.verdict.ladder import JOINT_AXIS, UNSCALED_AXES, describe_size, label_size
from sweeper.verdict.trend import Trend

NO_INTERVAL = "; one seed, or too few finite runs, gives none"
SPARE = ("eps", "decay", "shape", "fan in/out", "init std", "role")
"""What a plan's table can do without, the first most easily."""


def number(value: float, digits: int = 4) -> str:
    """A number for a table; what is not finite in words."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "diverged" if value > 0 else "-inf"
    return f"{value:.{digits}f}"


def power(log2: float) -> str:
    """A base-2 logarithm as a power: 2^-8, 2^0.5."""
    return f"2^{log2:g}"


@dataclass(frozen=True, kw_only=True)
class PlannedRuns:
    """Runs that a command would train; FLOPs and seconds of all of them, NaN: not known."""

    name: str
    runs: int
    flops: float
    seconds: float


def dry_run(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[PlannedRuns], facts: str
) -> None:
    """What a command would run, and what is to be said of it; `columns`: of the names and runs."""
    filled = Grid(title, [*columns, "FLOPs", "time"])
    for row in rows:
        filled.add_row(*_cost(row))
    filled.add_section()
    filled.add_row(*_cost(total_runs(rows)))
    console.print(filled, crop=False)
    console.print(facts, highlight=False, soft_wrap=not console.is_terminal)


def total_runs(rows: Sequence[PlannedRuns]) -> PlannedRuns:
    """All of them."""
    return PlannedRuns(
        name="all",
        runs=sum(row.runs for row in rows),
        flops=sum(row.flops for row in rows),
        seconds=sum(row.seconds for row in rows),
    )


def _cost(row: PlannedRuns) -> list[str]:
    flops = "-" if math.isnan(row.flops) else f"{row.flops:.2e}"
    time = "-" if math.isnan(row.seconds) else duration(row.seconds)
    return [row.name, str(row.runs), flops, time]


def conclusion(console: Console, conclusion: Conclusion, space: Space) -> None:
    """What a search found: the lines, the notes, the best configuration."""
    if conclusion.lines:
        filled = Grid(
            "Lines: one hyperparameter varied at a time",
            ["hyperparameter", "optimum", "value", "loss", "points", "range"],
            spare=("range", "points", "optimum"),
        )
        for line in conclusion.lines:
            filled.add_row(*_line_row(line))
        if conclusion.retune is not None:
            filled.add_row(*_line_row(replace(conclusion.retune.line, name="eta, retuned")))
        console.print(filled, crop=False)
    if conclusion.pairs:
        _pairs(console, conclusion.pairs)
    if math.isfinite(conclusion.objective):
        _best(console, conclusion, space)
    for note in conclusion.notes:
        console.print(f"- {note}", highlight=False, markup=False, soft_wrap=not console.is_terminal)


def found(conclusion: Conclusion) -> str:
    """What a search found, in a sentence."""
    if not math.isfinite(conclusion.objective):
        return f"All {conclusion.runs} trials diverged or failed."
    seeds = f"mean of {conclusion.seeds} seeds" if conclusion.seeds > 1 else "one seed"
    loss = f"Training loss {number(conclusion.objective)} nats ({seeds})"
    return f"{loss} after {conclusion.runs} trials."


def _best(console: Console, conclusion: Conclusion, space: Space) -> None:
    filled = Grid("Best configuration", ["hyperparameter", "log2", "value"])
    best = in_use(space, conclusion.best_log2)
    for name, axis in space.items():
        log2 = "" if axis.choices else f"{conclusion.best_log2[name]:g}"
        value = value_text(best[name])
        filled.add_row(name, log2, value + NOT_SEARCHED * (name in conclusion.not_searched))
    console.print(filled, crop=False)


def _pairs(console: Console, grids: Sequence[PairGrid]) -> None:
    columns = ["hyperparameter", "and", "transfer error", "least loss", "points", "diverged"]
    filled = Grid(
        "Pairs, the most strongly coupled first",
        columns,
        left=2,
        spare=("diverged", "points", "least loss"),
    )
    told = sorted(grids, key=lambda grid: (math.isnan(grid.transfer_error), -grid.transfer_error))
    for grid in told:
        losses = [loss for row in grid.losses for loss in row]
        diverged = sum(not math.isfinite(loss) for loss in losses)
        error, least = number(grid.transfer_error), number(min(losses))
        filled.add_row(*grid.names, error, least, str(len(losses)), str(diverged))
    console.print(filled, crop=False)


def _line_row(line: LineResult) -> list[str]:
    values = [value for value, _ in line.points_log2]
    span = f"{power(min(values))}..{power(max(values))}"
    return [
        line.name,
        "" if line.choices else power(line.optimum_log2),
        value_text(line.optimum),
        "failed" if line.optimum_log2 in line.failed_log2 else number(line.objective),
        str(len(values)),
        ", ".join(map(str, line.choices)) or span,
    ]


def plan(console: Console, plan: TransferPlan, *, deep: bool = True) -> None:
    """Every parameter of the target; layers that are alike share a row.

    Not `deep`: a command of its own takes no depth.
    """
    if not plan.parameters:
        _own_plan(console, plan, deep=deep)
        return
    columns = ["parameter", "role", "shape", "init std", "multiplier", "lr", "eps", "decay"]
    filled = Grid(f"Plan for {plan.target} (tuned at {plan.base})", columns, left=2, spare=SPARE)
    for names, parameter in grouped(plan.parameters):
        target = parameter.target
        filled.add_row(
            names,
            role_word(parameter.role),
            "x".join(map(str, parameter.shape)),
            _start(parameter) or short(target.init_std),
            short(target.multiplier),
            short(target.lr),
            short(target.eps),
            short(target.weight_decay),
        )
    console.print(filled, crop=False)
    _law(console, plan)
    if plan.needs:
        console.print("In your own training code, TransferPlan.load leaves to the model:")
    for need in plan.needs:
        line = f"- {need}"
        console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _law(console: Console, plan: TransferPlan) -> None:
    """What the law changed, if there is one."""
    for line in plan.law.lines() if plan.law else ():
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _own_plan(console: Console, plan: TransferPlan, *, deep: bool) -> None:
    """The hyperparameters of a command that scales by itself."""
    target, base = (size_words(size, deep=deep) for size in (plan.target, plan.base))
    sentence = f"For {target} (tuned at {base}) the command gets the hyperparameters as "
    console.print(
        f"{sentence}they are:", style="bold", highlight=False, soft_wrap=not console.is_terminal
    )
    filled = Grid("", ["hyperparameter", "value"])
    for name, value in plan.hps.items():
        filled.add_row(name, value_text(value))
    console.print(filled, crop=False)
    _law(console, plan)


def explanation(console: Console, plan: TransferPlan, rows: Sequence[Explained]) -> None:
    """Every parameter with its exponents and its numbers, the base's above the target's."""
    columns = ["parameter", "fan in/out", "a", "b", "c"]
    columns += ["init std", "multiplier", "lr", "eps", "decay"]
    filled = Grid(f"From {plan.base} (upper) to {plan.target} (lower)", columns, spare=SPARE)
    by_name = {row.parameter.name: row for row in rows}
    reasons: dict[tuple[str, str], list[str]] = {}
    for names, parameter in grouped(plan.parameters):
        row = by_name[parameter.name]
        role = role_word(parameter.role)
        reasons.setdefault((role, row.why), []).append(names)
        filled.add_row(f"{names}\n  {role}", *_explained(row))
        filled.add_section()
    console.print(filled, crop=False)
    legend = "With m the growth of the width: multiplier m^-a, init std m^-b, learning rate m^-c."
    for line in [
        legend,
        *(f"- {role} ({', '.join(names)}): {why}" for (role, why), names in reasons.items()),
        *(f"- a plain model needs: {need}" for need in plan.needs),
    ]:
        console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _explained(row: Explained) -> list[str]:
    """The cells of one parameter: fans at the target, exponents, and numbers at both sizes."""
    parameter = row.parameter
    numbers = [
        f"{getattr(parameter.base, name):.3g}\n{getattr(parameter.target, name):.3g}"
        for name in ("init_std", "multiplier", "lr", "eps", "weight_decay")
    ]
    numbers[0] = _start(parameter) or numbers[0]
    fans = f"{parameter.fan_in}\n{parameter.fan_out}"
    return [fans, *(f"{value:g}" for value in (row.a, row.b, row.c)), *numbers]


def _start(parameter: PlannedParameter) -> str:
    """How values start where no std says it: ones, zeros, kept, or frozen; else empty."""
    if parameter.frozen:
        return "frozen"
    return parameter.init if parameter.init != "normal" else ""


def verdict(console: Console, result: Verdict, hyperparameter: str = "eta") -> None:
    """One axis: the table of its sizes, whose curves are over `hyperparameter`, and the answer."""
    axis = result.axis.replace("_", " ")
    by_law = ["law"] * bool(result.law)
    columns = [axis, f"optimum log2 {hyperparameter}", *by_law, "shift", "basin", "loss", "regret"]
    title = "Learning-rate curves" if hyperparameter == "eta" else f"Curves of {hyperparameter}"
    spare = ("basin", "loss gap", "loss", "shift")
    shown = Grid(f"{title} over {axis}", [*columns, "loss gap", "answer"], spare=spare)
    bare = [s for s in result.sizes if math.isfinite(s.loss.value) and math.isinf(s.loss.high)]
    for size in result.sizes:
        defined = size.is_base and size in bare
        shown.add_row(
            label_size(asdict(size.size), result.axis),
            within(size.optimum_log2),
            *(f"{size.planned_log2:+.2f}" for _ in by_law),
            "-" if defined else within(size.shift_log2, sign="+"),
            _basin(size.basin.width_log2),
            number(size.loss.value, 3),
            within(size.regret, 4),
            "-" if defined else within(size.loss_gap, 4),
            size.answer,
        )
    console.print(shown, crop=False)
    legend = "Shift: how far the optimum lies from the base's, in log2. "
    if result.law:
        legend = (
            f"Law: what it adds to log2 {hyperparameter}. Shift: how far the optimum lies from "
            "the base's beyond that, in log2. "
        )
    legend += (
        f"Basin: the range of {hyperparameter} within 1 % of the least loss, its width in log2. "
        f"Regret: the loss in nats from training at the transferred {hyperparameter} instead of "
        "the optimum. Loss gap: the loss from training at the base's optimum instead. "
        f"±: 95 % interval{NO_INTERVAL * bool(bare)}. A size holds with {result.limits}."
    )
    if result.law:
        legend += f" Planned by {result.law}."
    elif result.axis in UNSCALED_AXES:
        legend += f" The rule over {axis}: eta stays as it is."
    if result.axis == JOINT_AXIS:
        legend += " w: width, d: depth, b: batch size, s: steps."
    console.print(legend, highlight=False, soft_wrap=not console.is_terminal)
    doubts = [size for size in result.sizes if size.answer != "holds"]
    notes = [f"{describe_size(size.size, result.axis)}: {size.reason}" for size in doubts]
    for line in [*notes, *([f"Note: {result.note}."] if result.note else [])]:
        console.print(f"- {line}", highlight=False, markup=False, soft_wrap=not console.is_terminal)
    style = {"holds": "green", "fails": "red"}.get(result.answer, "yellow")
    is_open = result.answer == "cannot say yet"
    answer = "can neither be confirmed nor refuted yet" if is_open else result.answer
    limit = f" up to {result.up_to}" if result.up_to else ""
    subject = "" if hyperparameter == "eta" else f"of {hyperparameter} "
    todo = f" To settle it, {result.todo}." if result.todo else ""
    console.print(
        f"[bold {style}]The transfer {subject}over {axis} {answer}{limit}.[/]{todo}",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


def _basin(width: Estimate) -> str:
    """The basin's width; with >= where the curve ends within it."""
    if not math.isfinite(width.value):
        return "-"
    return f"{'≥' if math.isinf(width.high) else ''}{width.value:.2f}"


def trend(console: Console, fitted: Trend | None, *, applied: bool) -> None:
    """What the optima over width say of the target's, and what became of it."""
    if fitted is not None:
        text = trend_words(fitted, applied=applied)
        console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def diagnosis(console: Console, diagnosed: Diagnosis) -> None:
    """What every ablation showed, what explains most first."""
    if diagnosed.results:
        columns = ["ablation", "evidence", "shift", "loss gap", "loss", "explains"]
        shown = Grid(
            f"Ablations of the transfer over {diagnosed.axis}",
            columns,
            left=2,
            spare=("evidence", "loss", "shift"),
        )
        for result in diagnosed.results:
            evidence = "yes" if result.ablation.evidence else ""
            shown.add_row(result.ablation.name, evidence, *_ablation_cells(result))
        console.print(shown, crop=False)
        for result in diagnosed.results:
            evidence = result.ablation.evidence
            line = f"- {result.ablation.name}: {result.sentence}."
            line += f" Evidence without training: {evidence}." if evidence else ""
            console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _ablation_cells(result: AblationResult) -> list[str]:
    """The cells of an ablation's numbers."""
    after = result.after
    if after is None:
        return ["-", "-", "-", "not tried"]
    explained = f"{100 * result.explained.value:.0f} %"
    shift, gap = within(after.shift_log2, sign="+"), within(after.loss_gap, 4)
    return [shift, gap, number(after.loss.value, 3), explained]
