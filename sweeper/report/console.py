"""Tables and sentences for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from sweeper.report.progress import duration
from sweeper.scaling.names import layer_of, with_layer
from sweeper.search.strategy import Conclusion, LineResult, PairGrid, Phase
from sweeper.transfer.diagnosis import Diagnosis, Finding
from sweeper.transfer.estimate import Estimate
from sweeper.transfer.explain import Explained
from sweeper.transfer.ladder import SEVERAL, UNSCALED, named, place
from sweeper.transfer.plan import PlannedParameter, TransferPlan
from sweeper.transfer.trend import Trend
from sweeper.transfer.verdict import Verdict
from sweeper.trial import plain


def table(title: str, columns: Sequence[str], *, left: int = 1) -> Table:
    """An empty table whose first `left` columns are text and whose others are numbers."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for index, name in enumerate(columns):
        made.add_column(name, justify="left" if index < left else "right", overflow="fold")
    return made


def number(value: float, digits: int = 4) -> str:
    """A number for a table; what is not finite in words."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "diverged" if value > 0 else "-inf"
    return f"{value:.{digits}f}"


def short(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def power(log2: float) -> str:
    """A base-2 logarithm as a power: 2^-8, 2^0.5."""
    return f"2^{log2:g}"


def within(estimate: Estimate, digits: int = 2, sign: str = "") -> str:
    """A value with the larger half of its 95 % interval: 0.51 ±0.22."""
    half = max(estimate.high - estimate.value, estimate.value - estimate.low)
    if not math.isfinite(estimate.value):
        return "-"
    return f"{estimate.value:{sign}.{digits}f} ±{half:.{digits}f}"


def dry_run(
    console: Console, phases: Sequence[Phase], flops: float, seconds: float | None, facts: str
) -> None:
    """What a search would run: trials by phase, FLOPs and time."""
    made = table("This search would run", ["phase", "trials", "FLOPs", "time"])
    for phase in phases:
        time = "-" if seconds is None else duration(phase.trials * seconds)
        made.add_row(phase.name, str(phase.trials), f"{phase.trials * flops:.2e}", time)
    total = sum(phase.trials for phase in phases)
    time = "-" if seconds is None else duration(total * seconds)
    made.add_section()
    made.add_row("all", str(total), f"{total * flops:.2e}", time)
    console.print(made)
    console.print(facts, highlight=False, soft_wrap=True)


def conclusion(console: Console, found: Conclusion, space_names: Iterable[str]) -> None:
    """What a search found: the lines, the notes, the best configuration."""
    if found.lines:
        made = table(
            "Lines: one hyperparameter varied at a time",
            ["hyperparameter", "optimum", "value", "loss", "points", "range"],
        )
        for line in found.lines:
            made.add_row(*_line_row(line))
        console.print(made)
    if found.pairs:
        _pairs(console, found.pairs)
    if math.isfinite(found.objective):
        _best(console, found, space_names)
    else:
        console.print(f"All {found.runs} trials diverged or failed.", highlight=False)
    for note in found.notes:
        console.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)


def _best(console: Console, found: Conclusion, space_names: Iterable[str]) -> None:
    made = table("Best configuration", ["hyperparameter", "log2", "value"])
    best = plain(found.best_log2)
    for name in space_names:
        made.add_row(name, f"{found.best_log2[name]:g}", short(best[name]))
    console.print(made)
    seeds = f"mean of {found.seeds} seeds" if found.seeds > 1 else "one seed"
    console.print(
        f"Training loss {number(found.objective)} nats ({seeds}) after {found.runs} trials.",
        highlight=False,
    )


def _pairs(console: Console, grids: Sequence[PairGrid]) -> None:
    columns = ["hyperparameter", "and", "transfer error", "least loss", "points", "diverged"]
    made = table("Pairs, the most strongly coupled first", columns, left=2)
    told = sorted(grids, key=lambda grid: (math.isnan(grid.transfer_error), -grid.transfer_error))
    for grid in told:
        losses = [loss for row in grid.losses for loss in row]
        diverged = sum(not math.isfinite(loss) for loss in losses)
        error, least = number(grid.transfer_error), number(min(losses))
        made.add_row(*grid.names, error, least, str(len(losses)), str(diverged))
    console.print(made)


def _line_row(line: LineResult) -> list[str]:
    values = [value for value, _ in line.points_log2]
    return [
        line.name,
        power(line.optimum_log2),
        short(2.0**line.optimum_log2),
        number(line.objective),
        str(len(values)),
        f"{power(min(values))}..{power(max(values))}",
    ]


def plan(console: Console, made: TransferPlan) -> None:
    """Every parameter of the target; layers that are alike share a row."""
    columns = ["parameter", "role", "shape", "init std", "multiplier", "lr", "eps", "decay"]
    shown = table(f"Plan for {made.target} (tuned at {made.base})", columns, left=2)
    for names, parameter in grouped(made.parameters):
        target = parameter.target
        shown.add_row(
            names,
            parameter.role,
            "x".join(map(str, parameter.shape)),
            short(target.init_std) if parameter.init == "normal" else parameter.init,
            short(target.multiplier),
            short(target.lr),
            short(target.eps),
            short(target.weight_decay),
        )
    console.print(shown)
    if made.needs:
        console.print("In your own training code, TransferPlan.load leaves to the model:")
    for need in made.needs:
        console.print(f"- {need}", highlight=False, markup=False)


def explanation(console: Console, made: TransferPlan, rows: Sequence[Explained]) -> None:
    """Every parameter with its exponents and its numbers, the base's above the target's."""
    columns = ["parameter", "fan in/out", "a", "b", "c"]
    columns += ["init std", "multiplier", "lr", "eps", "decay"]
    shown = table(f"From {made.base} (upper) to {made.target} (lower)", columns)
    shown.columns[0].no_wrap = True
    by_name = {row.parameter.name: row for row in rows}
    reasons: dict[tuple[str, str], list[str]] = {}
    for names, parameter in grouped(made.parameters):
        row = by_name[parameter.name]
        reasons.setdefault((parameter.role, row.why), []).append(names)
        shown.add_row(f"{names}\n  {parameter.role}", *_explained(row))
        shown.add_section()
    console.print(shown)
    legend = "With m the growth of the width: multiplier m^-a, init std m^-b, learning rate m^-c."
    for line in [
        legend,
        *(f"- {role} ({', '.join(names)}): {why}" for (role, why), names in reasons.items()),
        *(f"- a plain model needs: {need}" for need in made.needs),
    ]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _explained(row: Explained) -> list[str]:
    """The cells of one parameter: fans at the target, exponents, and numbers at both sizes."""
    parameter = row.parameter
    numbers = [
        f"{getattr(parameter.base, name):.3g}\n{getattr(parameter.target, name):.3g}"
        for name in ("init_std", "multiplier", "lr", "eps", "weight_decay")
    ]
    if parameter.init != "normal":
        numbers[0] = parameter.init
    fans = f"{parameter.fan_in}\n{parameter.fan_out}"
    return [fans, *(f"{value:g}" for value in (row.a, row.b, row.c)), *numbers]


def grouped(parameters: Sequence[PlannedParameter]) -> list[tuple[str, PlannedParameter]]:
    """Parameters that differ in a layer's number alone, as one row with its range of layers."""
    rows: dict[tuple[object, ...], list[PlannedParameter]] = {}
    for parameter in parameters:
        key = (with_layer(parameter.name, "#"), parameter.shape, parameter.role, parameter.target)
        rows.setdefault(key, []).append(parameter)
    found = []
    for members in rows.values():
        name = members[0].name
        if len(members) > 1:
            name = with_layer(name, f"{layer_of(name)}-{layer_of(members[-1].name)}")
        found.append((name, members[0]))
    return found


def verdict(console: Console, found: Verdict, along: str = "eta") -> None:
    """One axis: the table of its sizes, and the answer; `along`: what the curves are along."""
    axis, curves = found.axis.replace("_", " "), "Learning-rate curves"
    columns = [axis, f"optimum log2 {along}", "shift", "basin", "loss", "regret", "cost", "answer"]
    shown = table(f"{curves if along == 'eta' else f'Curves of {along}'} over {axis}", columns)
    for size in found.sizes:
        shown.add_row(
            place(asdict(size.size), found.axis),
            within(size.optimum_log2),
            within(size.shift_log2, sign="+"),
            _basin(size.basin.width_log2),
            number(size.loss.value, 3),
            within(size.regret, 4),
            within(size.cost, 4),
            size.answer,
        )
    console.print(shown)
    legend = (
        f"Regret: loss in nats of training at the transferred {along}. "
        "Cost: at the base's own optimum. "
        "Shift: log2, from the base's optimum. Basin: log2 width within 1 % of the least loss. "
        f"±: 95 % interval. Holds: {found.limits}."
    )
    if found.axis in UNSCALED:
        legend += f" The rule over {axis}: eta stays as it is."
    if found.axis == SEVERAL:
        legend += " w: width, d: depth, b: batch size, s: steps."
    console.print(legend, highlight=False, soft_wrap=True)
    doubts = [size for size in found.sizes if size.answer != "holds"]
    notes = [f"{named(size.size, found.axis)}: {size.reason}" for size in doubts]
    for line in [*notes, *([f"Note: {found.note}."] if found.note else [])]:
        console.print(f"- {line}", highlight=False, markup=False, soft_wrap=True)
    style = {"holds": "green", "fails": "red"}.get(found.answer, "yellow")
    subject = "" if along == "eta" else f"of {along} "
    todo = f" To settle it, {found.todo}." if found.todo else ""
    console.print(
        f"[bold {style}]The transfer {subject}over {axis} {_sentence(found)}.[/]{todo}",
        highlight=False,
        soft_wrap=True,
    )


def _basin(width: Estimate) -> str:
    """The basin's width; with >= where the curve ends within it."""
    if not math.isfinite(width.value):
        return "-"
    return f"{'≥' if math.isinf(width.high) else ''}{width.value:.2f}"


def trend(console: Console, found: Trend | None, *, applied: bool) -> None:
    """What the optima over width say of the target's, and what became of it."""
    if found is None:
        return
    low, high = 2.0**found.predicted_log2.low, 2.0**found.predicted_log2.high
    text = (
        f"Trend over {len(found.widths)} widths: eta* goes as width^({within(found.slope)}). "
        f"At width {found.target} it predicts eta {short(2.0**found.predicted_log2.value)} "
        f"({short(low)} to {short(high)}) where the plan's transferred one is "
        f"{short(2.0**found.transferred_log2)}. "
    )
    saved = f"going over saves {found.gain.value:.4f} nats"
    if applied:
        text += f"The plan uses the prediction (transfer.correct): {saved}."
    elif found.warranted:
        text += (
            f"A correction is warranted: {found.reason}; {saved}. transfer.correct=true applies it."
        )
    else:
        text += f"No correction is warranted: {found.reason}."
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _sentence(found: Verdict) -> str:
    if found.answer == "cannot say yet":
        return "can neither be confirmed nor refuted yet"
    return found.answer


def diagnosis(console: Console, found: Diagnosis) -> None:
    """What every ablation showed, what explains most first, and the likeliest cause."""
    if found.findings:
        columns = ["ablation", "seen before", "shift", "cost", "loss", "explains"]
        shown = table(f"Experiments on the transfer over {found.axis}", columns, left=2)
        for finding in found.findings:
            seen = "yes" if finding.ablation.seen else ""
            shown.add_row(finding.ablation.name, seen, *_finding(finding))
        console.print(shown)
        for finding in found.findings:
            seen = f" Seen before: {finding.ablation.seen}." if finding.ablation.seen else ""
            line = f"- {finding.ablation.name}: {finding.sentence}.{seen}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(found.sentence, style="bold", highlight=False, markup=False, soft_wrap=True)


def _finding(finding: Finding) -> list[str]:
    """The cells of an ablation's numbers."""
    after = finding.after
    if after is None:
        return ["-", "-", "-", "not tried"]
    share = f"{100 * finding.explained.value:.0f} %"
    shift, cost = within(after.shift_log2, sign="+"), within(after.cost, 4)
    return [shift, cost, number(after.loss.value, 3), share]
