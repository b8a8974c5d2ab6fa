"""What was found, as tables and sentences: the terminal prints them, the page shows the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import TypeVar

from sweeper.decide.ladder_verdict import Verdict
from sweeper.decide.target import TURNING
from sweeper.decide.trend import Trend
from sweeper.plan.explanation import Explained
from sweeper.plan.factors import is_edit
from sweeper.plan.plan import PlannedParameter, TransferPlan, value_text
from sweeper.report.sections import Commands, Item, Sentence
from sweeper.report.sentences_transfer import SAID, suspects_text
from sweeper.scaling.spec import layer_of, with_layer
from sweeper.search.fresh import final_accuracy
from sweeper.search.strategy import Conclusion, LineResult, PairGrid
from sweeper.stats.estimate import UNKNOWN, Estimate
from sweeper.stats.ladder import (
    JOINT_AXIS,
    UNSCALED_AXES,
    Size,
    describe_size,
    extent,
    label_size,
    plural,
)
from sweeper.study.cost import Cost, cost_table
from sweeper.table import (
    BaseToTarget,
    Cell,
    Column,
    Table,
    Value,
    answer,
    counted,
    number,
    short,
    within,
)
from sweeper.trial import Result, Space, in_use

Row = TypeVar("Row")
NOT_SEARCHED = " (not searched)"
"""Beside a hyperparameter of the best configuration that no trial moved."""
MOST_STEPS = 0.5
"""From a larger share of clipped steps on, the clip sets a run's gradients."""
NO_INTERVAL = "; one seed, or too few finite runs, gives none"
ROLE_NAMES = {"fixed": "scalar-like"}
"""A role as tables name it: "fixed" reads as not trained, which is "frozen"."""


def in_jobs(submitted: int, finished: int, failed: int) -> str:
    """How many trials are left in a queue, some of which `failed` before."""
    again = f" {failed} of them failed before, and are tried again." * bool(failed)
    return f"{counted(submitted, 'trial')} in jobs now, {finished} are finished.{again}"


def size_text(size: Size, *, deep: bool) -> str:
    """A width and a depth in words; without the depth where trials take none (not `deep`)."""
    return f"width {size.width}" + f", depth {size.depth}" * deep


def role_name(role: str) -> str:
    """A role of a plan, for people."""
    return ROLE_NAMES.get(role, role)


def alike(
    rows: Sequence[Row], name: Callable[[Row], str], content: Callable[[Row], Hashable]
) -> list[tuple[str, Row]]:
    """Rows of one content whose names differ in a layer's number alone, as the first of them.

    Its name has the range of layers in place of the number: blocks.0-11.weight.
    """
    # Layers are taken to follow on each other: those of one content are named from first to last.
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault((with_layer(name(row), "#"), content(row)), []).append(row)
    named = []
    for first, *others in groups.values():
        label = name(first)
        if others:
            label = with_layer(label, f"{layer_of(label)}-{layer_of(name(others[-1]))}")
        named.append((label, first))
    return named


def grouped(parameters: Sequence[PlannedParameter]) -> list[tuple[str, PlannedParameter]]:
    """Parameters that differ in a layer's number alone, as one row with its range of layers."""
    return alike(
        parameters,
        lambda planned: planned.name,
        lambda planned: (
            planned.role,
            planned.init,
            planned.frozen,
            planned.base_shape,
            planned.shape,
            planned.base,
            planned.target,
            planned.gamma,
        ),
    )


# What a search would run, and what it found.


def dry_run(
    title: str, name: str, rows: Sequence[tuple[str, Cost]], runs: str, facts: str
) -> list[Item]:
    """What a command would run, by `name`, and the `facts` to be said of it."""
    costs = [((label,), cost) for label, cost in rows]
    return [cost_table(title, [name], costs, runs=runs, total=True), Sentence(facts)]


def conclusion(conclusion: Conclusion, space: Space) -> list[Item]:
    """What a search found: the best configuration, the pairs, the notes; the lines aside."""
    items = list[Item]()
    if conclusion.pairs:
        items.append(pairs_table(conclusion.pairs))
    if math.isfinite(conclusion.objective):
        items.append(best_table(conclusion, space))
    if conclusion.lines:
        items.append(replace(lines_table(conclusion, space), detail=True))
    return [*items, *(Sentence(note, listed=True, detail=True) for note in conclusion.notes)]


def conclusion_text(conclusion: Conclusion) -> str:
    """What a search found, in a sentence."""
    if not math.isfinite(conclusion.objective):
        return f"All {conclusion.runs} trials diverged or failed."
    loss = f"{conclusion.loss_name} {number(conclusion.objective)} nats ({conclusion.basis})"
    return f"{loss} after {conclusion.runs} trials." if conclusion.fresh_seeds else f"{loss}."


def accuracy_note(results: Iterable[Result]) -> list[str]:
    """The top-1 accuracy of the best configuration of a classifier."""
    if (accuracy := final_accuracy(results)) is None:
        return []
    share, seeds = accuracy
    return [f"top-1 accuracy on held-out samples {share:.1%} (mean of {seeds} fresh seeds)"]


def clip_note(results: Iterable[Result]) -> list[str]:
    """Whether a clip of the gradients' norm was active in most steps of trials."""
    shares = [result.clipped for result in results if result.clipped is not None]
    most = sum(share > MOST_STEPS for share in shares)
    if not most:
        return []
    return [
        f"train.clip was active in more than half of the steps of {most} of {len(shares)} trials: "
        "one norm for all widths undoes the parameterization's scales; raise it, or leave it out "
        "(train.clip=null)"
    ]


def lines_table(conclusion: Conclusion, space: Space) -> Table:
    """A row a line search: its optimum, the loss there and its gain, and the range."""
    columns = [
        Column("hyperparameter", left=True),
        Column("optimum"),
        Column("loss", unit="nats", form=".4f"),
        Column("gain", unit="nats", form=".4f", importance=2),
        Column("points", importance=1),
        Column("range", importance=0),
    ]
    legend = "Gain: over the default, by the runs that chose the optimum, and so rather too much."
    table = Table("Lines: one hyperparameter varied at a time", columns, legend=[legend])
    lines: list[LineResult] = list(conclusion.lines)
    if conclusion.retune is not None:
        # eta has two lines: the first at all other defaults, this one at their optima.
        lines.append(replace(conclusion.retune.line, name="eta, retuned"))
    for line in lines:
        values = [value for value, _ in line.points_log2]
        searched = f"{short(2.0 ** min(values))} to {short(2.0 ** max(values))}"
        failed, axis = line.optimum_log2 in line.failed_log2, space.get(line.name)
        gain = line.gain(axis.default) if axis else math.nan
        table.add(
            line.name,
            Cell(line.optimum, value_text(line.optimum)),
            Cell(line.objective, "failed") if failed else line.objective,
            gain if math.isfinite(gain) else Cell(gain, "-"),
            len(values),
            ", ".join(map(str, line.choices)) or searched,
        )
    return table


def pairs_table(grids: Sequence[PairGrid]) -> Table:
    """A row a pair of hyperparameters: what is lost by tuning each without the other."""
    columns = [
        Column("hyperparameter", left=True),
        Column("and", left=True),
        Column("transfer error", unit="nats", form=".4f"),
        Column("least loss", unit="nats", form=".4f", importance=2),
        Column("points", importance=1),
        Column("diverged", importance=0),
    ]
    table = Table("Pairs, the most strongly coupled first", columns)
    # NaN compares with nothing: pairs without a transfer error go last by a key of their own.
    for grid in sorted(grids, key=lambda g: (math.isnan(g.transfer_error), -g.transfer_error)):
        losses = [loss for row in grid.losses for loss in row]
        diverged = sum(not math.isfinite(loss) for loss in losses)
        table.add(*grid.names, grid.transfer_error, min(losses), len(losses), diverged)
    return table


def best_table(conclusion: Conclusion, space: Space) -> Table:
    """The best configuration as it is used, with each hyperparameter's default and range."""
    columns = [
        Column("hyperparameter", left=True),
        Column("value"),
        Column("default", importance=1),
        Column("range", importance=0),
    ]
    table = Table("Best configuration", columns)
    for name, value in in_use(space, conclusion.best_log2).items():
        text = value_text(value) + NOT_SEARCHED * (name in conclusion.not_searched)
        axis, default, ends = space.get(name), "", ""
        if axis and axis.choices:
            default, ends = (
                str(axis.choices[round(axis.default)]),
                ", ".join(map(str, axis.choices)),
            )
        elif axis:
            default, low, high = (short(2.0**end) for end in (axis.default, axis.low, axis.high))
            ends = f"{low} to {high}"
        table.add(name, Cell(value, text), default, ends)
    return table


# The plan.


def plan(plan: TransferPlan, *, deep: bool = True) -> list[Item]:
    """Every parameter of the target; layers that are alike share a row.

    Not `deep`: a user command takes no depth.
    """
    items = list[Item]()
    if plan.parameters:
        items.append(plan_table(plan))
    else:
        target, base = (size_text(size, deep=deep) for size in (plan.target, plan.base))
        table = Table(
            f"For {target} (tuned at {base}) the command gets:",
            [Column("hyperparameter", left=True), Column("value")],
        )
        for name, value in plan.hps.items():
            table.add(name, Cell(value, value_text(value)))
        items.append(table)
    for line in plan.law.lines() if plan.law else ():
        items.append(Sentence(line.removeprefix("- "), listed=line.startswith("- ")))
    if plan.parameters and plan.needs:
        count = len(plan.needs)
        things = f"{count} thing{'s are' if count > 1 else ' is'}"
        brief = f"In your own training code {things} left to the model: plan.needs lists them."
        items.append(Sentence(brief))
        items += [Sentence(need, listed=True, detail=True) for need in plan.needs]
    return items


def target_command(plan: TransferPlan, note: str = "") -> list[Item]:
    """What trains the target, where a command does."""
    command = plan.source.get("target_command")
    if not isinstance(command, list | tuple):
        return []
    return [Commands("The target's command:", [list(map(str, command))], note=note)]


GAMMA_LEGEND = (
    "The learning rate is eta, times gamma, times what goes as m^-c, m being the growth of the "
    "width."
)
NUMBERS = {
    "init_std": Column("init std", form=".3g"),
    "multiplier": Column("multiplier", form=".3g"),
    "lr": Column("lr", form=".3g"),
    "eps": Column("eps", form=".3g", importance=3),
    "weight_decay": Column("decay", form=".3g", importance=4),
}
"""Fields of a prescription. What is drawn and trained with stays longest where room is scarce."""


def plan_table(plan: TransferPlan) -> Table:
    """A row for parameters alike: on the terminal the target's numbers, on the page both sizes'.

    Every gamma stands with the exponent beside their product, the learning rate.
    """
    number_columns = _numbers(plan)
    # Where all are 1 they go with the role where room is scarce.
    least = None if any(parameter.gamma != 1 for parameter in plan.parameters) else 1
    columns = [
        Column("parameter", left=True),
        Column("role", left=True, importance=1),
        Column("shape", importance=0),
        *number_columns.values(),
        Column("gamma", form=".3g", importance=least),
        Column("c", form="g", importance=least),
    ]
    table = Table(f"Plan for {plan.target} (tuned at {plan.base})", columns)
    for names, parameter in grouped(plan.parameters):
        shapes = ("x".join(map(str, shape)) for shape in (parameter.base_shape, parameter.shape))
        numbers: list[Value] = []
        for name in number_columns:
            base, target = (getattr(side, name) for side in (parameter.base, parameter.target))
            numbers.append(Cell(BaseToTarget(base=base, target=target), short(target)))
        # What is not drawn has no std: its start stands in that place.
        numbers[0] = _start(parameter) or numbers[0]
        base_shape, shape = shapes
        numbers += [parameter.gamma, parameter.lr_exponent]
        table.add(
            names, role_name(parameter.role), BaseToTarget(base=base_shape, target=shape), *numbers
        )
    table.legend = [GAMMA_LEGEND + " Every gamma is 1 here." * (least is not None)]
    return table


def _numbers(plan: TransferPlan) -> dict[str, Column]:
    """The fields of a prescription that play a part in the plan's optimizer."""
    return {n: column for n, column in NUMBERS.items() if n != "eps" or plan.has_eps}


def _start(parameter: PlannedParameter) -> str:
    """How values start where no std says it: ones, zeros, kept, or frozen; else empty."""
    if parameter.frozen:
        return "frozen"
    return parameter.init if parameter.init != "normal" else ""


def explanation(plan: TransferPlan, rows: Sequence[Explained], *, verbose: bool) -> list[Item]:
    """Every parameter with its exponents and the target's numbers; `verbose`: the base's above."""
    columns = [Column("parameter", left=True)]
    columns += [Column("fan in/out", importance=0)] * verbose
    columns += [Column(name, form="g") for name in "abc"]
    has_gammas = any(row.parameter.gamma != 1 for row in rows)
    columns += [Column("gamma", form=".3g")] * has_gammas
    title = f"From {plan.base} (upper) to {plan.target} (lower)"
    if not verbose:
        title = f"At {plan.target} (tuned at {plan.base})"
    number_columns = _numbers(plan)
    table = Table(title, [*columns, *number_columns.values()])
    by_name = {row.parameter.name: row for row in rows}
    reasons: dict[tuple[str, str], list[str]] = {}
    for names, parameter in grouped(plan.parameters):
        row, role = by_name[parameter.name], role_name(parameter.role)
        reasons.setdefault((role, row.why), []).append(names)
        numbers: list[Value] = []
        for name in number_columns:
            base, target = (getattr(side, name) for side in (parameter.base, parameter.target))
            text = f"{base:.3g}\n{target:.3g}" if verbose else f"{target:.3g}"
            numbers.append(Cell(BaseToTarget(base=base, target=target), text))
        # NUMBERS begins with the init std, in whose place stands what is not drawn.
        numbers[0] = _start(parameter) or numbers[0]
        fans = [f"{parameter.fan_in}\n{parameter.fan_out}"] * verbose
        gamma = [parameter.gamma] * has_gammas
        label = Cell(names, f"{names}\n  {role}" if verbose else names)
        table.add(label, *fans, row.a, row.b, row.c, *gamma, *numbers)
        if verbose:
            table.end_section()
    table.legend = ["m: growth of the width; multiplier m^-a, init std m^-b, learning rate m^-c."]
    items: list[Item] = [table]
    # Lines of code that only the model's author can write come before what else is to be told.
    for need in sorted(plan.needs, key=lambda need: not is_edit(need)):
        text = f"a plain model needs: {need}"
        items.append(Sentence(text, listed=True, detail=not is_edit(need)))
    for (role, why), alike_names in reasons.items():
        of = f" ({', '.join(alike_names)})" if verbose else ""
        items.append(Sentence(f"{role}{of}: {why}", listed=True))
    return items


# What validation found.


def verdicts(
    results: Sequence[Verdict], hyperparameter: str = "eta", settled: str = "", beside: str = ""
) -> list[Item]:
    """All axes, whose curves are over `hyperparameter`.

    `settled` says with how many runs they were settled, and with that what would tell more;
    `beside` what else the plan carries, that no curve judged.
    """
    items = list[Item]()
    for result in results:
        items += verdict_items(result, hyperparameter, settled, named=bool(beside))
    return items + [Sentence(f"{settled}.")] * bool(settled) + [Sentence(beside)] * bool(beside)


def verdict_items(
    result: Verdict, hyperparameter: str = "eta", settled: str = "", *, named: bool = False
) -> list[Item]:
    """A verdict: the table of its sizes, and its sentences."""
    items: list[Item] = [verdict_table(result, hyperparameter)] * bool(result.sizes)
    items += [Sentence(f"Note: {result.note}.", listed=True)] * bool(result.note)
    return [*items, *verdict_sentences(result, hyperparameter, settled, named=named)]


TO_SETTLE = "To settle it, "
"""So begins what would tell more."""


def verdict_sentences(
    result: Verdict,
    hyperparameter: str = "eta",
    settled: str = "",
    *,
    named: bool = False,
    at: str = "",
) -> list[Sentence]:
    """The answers on the ladder and at the target, and what would settle one that is open.

    `settled` has said already what would. `named`: eta, too, as more is carried beside it. `at`:
    the sizes that the answer is of, where these are not the whole ladder.
    """
    axis, verdict = result.axis.replace("_", " "), SAID.get(result.answer, result.answer)
    subject = "" if hyperparameter == "eta" and not named else f"of {hyperparameter} "
    ladder = at + extent(result.axis, [size.size for size in result.sizes])
    text = f"The transfer {subject}over {axis} {verdict} at {ladder}."
    answers = [(result.answer, text, result.todo)]
    if (target := result.target) is not None:
        answers.append((target.answer, f"{target.sentence}.", target.todo))
    sentences = [
        Sentence(text + (f" {TO_SETTLE}{todo}." if todo and todo not in settled else ""), code=code)
        for code, text, todo in answers
    ]
    fails = result.answer == "fails" and hyperparameter == "eta"
    suspects = suspects_text(result) if fails else ""
    return [*sentences, *[Sentence(suspects)] * bool(suspects)]


def verdict_table(result: Verdict, hyperparameter: str = "eta", *, unit: str = "nats") -> Table:
    """A row a size. The answer rests on shift and loss gap, which no terminal leaves out.

    `unit` is the losses'.
    """
    axis = result.axis.replace("_", " ")
    columns = [
        Column(axis, left=True),
        Column("optimum", unit=f"log2 {hyperparameter}", form="z.2f"),
        Column("shift", unit="log2", form="+z.2f"),
        Column("loss gap", unit=unit, form=".4f"),
        *[Column("law", unit="log2", form="+.2f", importance=5)] * bool(result.law),
        Column("relative gap", form=".2%", importance=4),
        Column("regret", unit=unit, form=".4f", importance=3),
        Column("loss", unit=unit, form=".4f", importance=2),
        Column("basin", unit="log2", form=".2f", importance=1),
        Column("answer", left=True),
    ]
    # Losses without an interval: the legend says why there is none.
    bare = [s for s in result.sizes if math.isfinite(s.loss.value) and math.isinf(s.loss.high)]
    law = f" Planned by {result.law}." if result.law else ""
    if not law and result.axis in UNSCALED_AXES:
        law = f" The rule over {axis}: eta stays as it is."
    surer = ""
    if result.confidence != 0.95:
        level = f"{100 * result.confidence:g} %"
        surer = f", of shift and loss gap {level}, as they were looked at several times"
    legend = (
        f"{f'Law: what it adds to log2 {hyperparameter}. ' if result.law else ''}"
        f"Shift: from the base's optimum, log2. Loss gap: {unit} lost at the base's optimum "
        "(relative gap: of the loss); regret: lost at the transferred value. Basin: the range "
        f"within 1 % of the least loss. ±: 95 % interval{surer}{NO_INTERVAL * bool(bare)}."
        f"{f' A size holds with {result.limits}.' if result.limits else ''}{law}"
        f"{' w: width, d: depth, b: batch size, s: steps.' * (result.axis == JOINT_AXIS)}"
    )
    title = "Learning-rate curves" if hyperparameter == "eta" else f"Curves of {hyperparameter}"
    table = Table(
        f"{title} over {axis}",
        columns,
        legend=[legend],
    )
    base_side = next((size.side for size in result.sizes if size.is_base), 0)
    for size in result.sizes:
        # Of the base both are 0 by definition, whatever the noise.
        is_exact = size.is_base and math.isfinite(size.shift_log2.value)
        loss = size.loss.value
        # Relative to the least loss of the size; a loss of 0 would be no scale.
        share = (
            replace(
                size.loss_gap, **{end: part / loss for end, part in asdict(size.loss_gap).items()}
            )
            if loss
            else size.loss_gap
        )
        basin = size.basin.width_log2
        label = label_size(asdict(size.size), result.axis)
        is_bound = math.isfinite(basin.value) and math.isinf(basin.high)
        table.add(
            Cell(label, label, small=" (base)" * size.is_base),
            _bounded(size.optimum_log2, size.side, "z.2f"),
            Cell(0.0, "0") if is_exact else _shift_cell(size.shift_log2, size.side, base_side),
            Cell(0.0, "0") if is_exact else size.loss_gap,
            *[size.planned_log2] * bool(result.law),
            Cell(0.0, "0") if is_exact else share,
            size.regret,
            Cell(size.loss, number(loss, ".3f")),
            Cell(basin, f"{'≥' * is_bound}{number(basin.value, '.2f')}"),
            answer(size.answer),
            note="" if size.answer in ("holds", "base") else size.reason,
            subject=describe_size(size.size, result.axis),
        )
    return table


def _bounded(estimate: Estimate, side: int, form: str) -> Value:
    """An estimate that is a bound where it has a `side`: the truth is at or above (1) or below."""
    if not side or not math.isfinite(estimate.value):
        return estimate
    value = estimate.value
    low, high = (value, math.inf) if side > 0 else (-math.inf, value)
    bound = Estimate(value=value, low=low, high=high)
    return Cell(bound, f"{'≥' if side > 0 else '≤'}{number(value, form)}")


def _shift_cell(shift: Estimate, side: int, base_side: int) -> Value:
    """A shift between optima: a bound where one of them is, unknown where both are on one side."""
    if side and side == base_side:
        return UNKNOWN
    return _bounded(shift, side or -base_side, "+z.2f")


def trend_text(fitted: Trend, unit: str = "nats", *, applied: bool, of_plan: bool = True) -> str:
    """What the optima over a ladder say of the target's, and what became of it.

    `of_plan`: there is a plan, which a key of its study would change.
    """
    axis = fitted.axis.replace("_", " ")
    gain = f"{fitted.gain.value:.4f} {unit} ({fitted.gain.low:.4f} to {fitted.gain.high:.4f})"
    if applied:
        end = f"the plan uses the prediction (transfer.correct=true), which saves {gain}."
    elif not fitted.warranted:
        end = f"no correction: {fitted.reason}."
    elif not of_plan:
        end = f"to train with the prediction would save {gain}."
    else:
        end = f"transfer.correct=true would plan with it and save {gain}."
    turns, best = fitted.forms.get(TURNING, 0.0), fitted.predicted_log2
    goes = f"{TURNING} ({100 * turns:.0f} %)" if turns >= 0.5 else ""
    goes = goes or f"goes as {axis}^({within(fitted.slope)})"
    sizes = f"{len(fitted.sizes)} {plural(fitted.axis)}"
    return (
        f"Trend over {sizes}: eta {goes}; at {axis} {fitted.target} the best "
        f"is {short(2.0**best.value)} ({short(2.0**best.low)} to {short(2.0**best.high)}), the "
        f"transferred one {short(2.0**fitted.transferred_log2)}; {end}"
    )
