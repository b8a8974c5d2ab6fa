"""What was found, as tables and sentences: the terminal prints them, the page shows the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import TypeVar

from sweeper.decide.ladder_verdict import SizeVerdict, Verdict
from sweeper.decide.target import TURNING
from sweeper.decide.trend import Trend
from sweeper.plan.explanation import Explained
from sweeper.plan.factors import edits_first, is_edit
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
    cell_text,
    counted,
    number,
    short,
    within,
)
from sweeper.trial import Result, Space, in_use

T = TypeVar("T")
LEARNING_RATE = "learning rate"
ETA = "eta (learning rate)"
"""Its name where it is first named on a screen of a parameterization."""
NOT_SEARCHED = " (not searched)"
"""Beside a hyperparameter of the best configuration that no trial moved."""
MOST_STEPS = 0.5
"""From a larger share of clipped steps on, the clip sets a run's gradients."""


def in_jobs(submitted: int, finished: int, failed: int = 0) -> str:
    """How many trials are left in a queue, some of which `failed` before."""
    again = f" {failed} of them failed before, and are tried again." * bool(failed)
    return f"{counted(submitted, 'trial')} in jobs now, {finished} are finished.{again}"


def size_text(size: Size, *, deep: bool) -> str:
    """A width and a depth in words; without the depth where trials take none (not `deep`)."""
    return f"width {size.width}" + f", depth {size.depth}" * deep


def role_name(role: str) -> str:
    """A role as tables name it: "fixed" reads as not trained, which is "frozen"."""
    return "scalar-like" if role == "fixed" else role


def collapsed(
    named: Iterable[tuple[str, T]], content: Callable[[T], Hashable] = lambda _: None
) -> list[tuple[str, list[T]]]:
    """Values alike in `content` whose names differ in a layer's number alone: layers.0-3.q."""
    groups: dict[Hashable, list[tuple[str, T]]] = {}
    for name, value in named:
        groups.setdefault((with_layer(name, "#"), content(value)), []).append((name, value))
    pairs = []
    for members in groups.values():
        numbers = sorted({int(layer_of(name) or 0) for name, _ in members})
        layers = "-".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
        pairs.append((with_layer(members[0][0], layers), [value for _, value in members]))
    return pairs


def grouped(parameters: Sequence[PlannedParameter]) -> list[tuple[str, PlannedParameter]]:
    """Parameters alike but for their layer as the first of them: blocks.0-11.weight."""

    def content(p: PlannedParameter) -> Hashable:
        return p.role, p.init, p.frozen, p.base_shape, p.shape, p.base, p.target, p.gamma

    return [
        (name, alike[0]) for name, alike in collapsed(((p.name, p) for p in parameters), content)
    ]


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
    if conclusion.untrained:
        return f"No answer: {conclusion.untrained}"
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
        Column("gain", unit="nats", form=".4f"),
        Column("points"),
        Column("range"),
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
        Column("least loss", unit="nats", form=".4f"),
        Column("points"),
        Column("diverged"),
    ]
    table = Table("Pairs, the most strongly coupled first", columns)
    # NaN compares with nothing: pairs without a transfer error go last by a key of their own.
    for grid in sorted(grids, key=lambda g: (math.isnan(g.transfer_error), -g.transfer_error)):
        losses = [loss for row in grid.losses for loss in row]
        diverged = sum(not math.isfinite(loss) for loss in losses)
        table.add(*grid.names, grid.transfer_error, min(losses), len(losses), diverged)
    return table


def best_table(conclusion: Conclusion, space: Space) -> Table:
    """The best configuration as it is used, with each hyperparameter's default, and what was tried.

    A line may have been extended beyond the configured range, or have had fewer points.
    """
    columns = [
        Column("hyperparameter", left=True),
        Column("value"),
        Column("default"),
        Column("range"),
    ]
    table = Table("Best configuration", columns)
    lines = [*conclusion.lines, *([conclusion.retune.line] if conclusion.retune else [])]
    for name, value in in_use(space, conclusion.best_log2).items():
        text = value_text(value) + NOT_SEARCHED * (name in conclusion.not_searched)
        axis, default, ends = space.get(name), "", ""
        if axis and axis.choices:
            default, ends = (
                str(axis.choices[round(axis.default)]),
                ", ".join(map(str, axis.choices)),
            )
        elif axis:
            tried = [value for line in lines if line.name == name for value, _ in line.points_log2]
            tried, default = tried or [axis.low, axis.high], short(2.0**axis.default)
            ends = f"{short(2.0 ** min(tried))} to {short(2.0 ** max(tried))}"
        label = Cell(name, ETA) if name == "eta" else name
        table.add(label, Cell(value, text), default, ends)
    return table


def plan(plan: TransferPlan, *, deep: bool = True) -> list[Item]:
    """Every parameter of the target, layers alike in one row; `deep`: a command takes a depth."""
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
        items.append(Sentence("What your own training code must do beside:"))
        # A built-in model does all of it by itself: the first two tell what they are like.
        for place, need in enumerate(edits_first(plan.needs)):
            items.append(Sentence(need, listed=True, detail=place > 1))
    return items


ORIGINS = {
    "the study": "the search's best",
    "transfer.eta": "as given",
    "the trend over width": "the trend's at the target",
}
"""What a planned eta is that is not the ladder's best at the base, by its plan's `eta_from`."""


def planned_eta(plan: TransferPlan, verdicts: Iterable[Verdict]) -> str:
    """The eta to train with, what it is, and the ladder's best at the base where that differs."""
    text = value_text(eta := plan.hps["eta"])
    best = [_best(size) for verdict in verdicts for size in verdict.sizes if size.is_base]
    origin = ORIGINS.get(str(plan.source.get("eta_from")))
    if not best or origin is None or plan.law or best[0] in ("-", text, f"{eta:.3g}"):
        return text
    return f"{text} ({origin}; the best of the base's curve on the ladder is {best[0]})"


def target_command(words: Sequence[str], note: str = "") -> list[Item]:
    """What trains the target, where a command does."""
    return [Commands("The target's command:", [words], note=note)] * bool(words)


NUMBERS = {
    "init_std": Column("init std", form=".3g"),
    "multiplier": Column("multiplier", form=".3g"),
    "lr": Column("lr", form=".3g"),
    "eps": Column("eps", form=".3g"),
    "weight_decay": Column("decay", form=".3g"),
}


def plan_table(plan: TransferPlan) -> Table:
    """A row for parameters alike: on the terminal the target's numbers, on the page both sizes'."""
    number_columns = {n: column for n, column in NUMBERS.items() if n != "eps" or plan.has_eps}
    named = [Column("parameter", left=True), Column("role", left=True)]
    is_apart = any(parameter.target.multiplier != 1 for parameter in plan.parameters)
    apart = " Multipliers stand apart: print(plan) and param_groups absorb them in init std and lr."
    table = Table(
        f"Plan for {plan.target} (tuned at {plan.base}){', multipliers apart' * is_apart}",
        [*named, *number_columns.values(), Column("gamma", form=".3g")],
        legend=[f"lr: {ETA} times gamma and a factor of the width.{apart * is_apart}"],
    )
    for names, parameter in grouped(plan.parameters):
        numbers = _prescribed(parameter, number_columns)
        table.add(names, role_name(parameter.role), *numbers, parameter.gamma)
    return _shared_aside(table)


def _prescribed(parameter: PlannedParameter, names: Iterable[str]) -> list[Value]:
    numbers: list[Value] = []
    for name in names:
        base, target = (getattr(side, name) for side in (parameter.base, parameter.target))
        numbers.append(Cell(BaseToTarget(base=base, target=target), f"{target:.3g}"))
    # NUMBERS begins with the std: what is not drawn has none, and its start stands in that place.
    numbers[0] = _start(parameter) or numbers[0]
    return numbers


def _shared_aside(table: Table) -> Table:
    """The table with what is alike in all rows in its legend: a screen needs no column for it."""
    columns, shared = list[Column](), list[str]()
    for index, column in enumerate(table.columns):
        texts = {cell_text(row.values[index], column.form) for row in table.rows}
        is_spare = column.name in ("multiplier", "eps", "decay", "gamma")
        aside = is_spare and len(texts) == 1 and len(table.rows) > 1
        shared += [f"{column.name} {text}" for text in texts] * aside
        columns.append(replace(column, secondary=aside))
    ends = [f"All have {', '.join(shared)}."] * bool(shared)
    return replace(table, columns=columns, legend=[*table.legend, *ends])


def _start(parameter: PlannedParameter) -> str:
    if parameter.frozen:
        return "frozen"
    return parameter.init if parameter.init != "normal" else ""


def explanation(plan: TransferPlan, rows: Sequence[Explained]) -> list[Item]:
    """Every parameter with the target's numbers, and each role with its exponents and reason."""
    reasons = dict.fromkeys(
        f"{role_name(r.parameter.role)} (a {r.a:g}, b {r.b:g}, c {r.c:g}): {r.why}" for r in rows
    )
    table = plan_table(plan)
    decay = "decay: of a weight a step (torch's weight_decay is decay / lr)."
    exponents = "a, b, c: multiplier m^-a, init std m^-b, lr m^-c, m being the growth of the width."
    return [
        replace(table, legend=[*table.legend, decay, exponents]),
        *(
            Sentence(f"{'a plain model needs: ' * is_edit(need)}{need}", listed=True, detail=more)
            for need in edits_first(plan.needs)
            for more in [not is_edit(need)]
        ),
        *(Sentence(reason, listed=True) for reason in reasons),
    ]


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
        Sentence(
            text + (f" To settle it, {todo}." if todo and todo not in settled else ""), code=code
        )
        for code, text, todo in answers
    ]
    fails = result.answer == "fails" and hyperparameter == "eta"
    suspects = suspects_text(result) if fails else ""
    return [*sentences, *[Sentence(suspects)] * bool(suspects)]


def verdict_table(result: Verdict, hyperparameter: str = "eta", *, unit: str = "nats") -> Table:
    """A row a size, of curves over `hyperparameter`; losses are in `unit`."""
    axis = result.axis.replace("_", " ")
    of_eta = hyperparameter in ("eta", LEARNING_RATE)
    name = ETA if hyperparameter == "eta" else hyperparameter
    columns = [
        Column(axis, left=True),
        Column("best", form=".3g"),
        Column("optimum", unit=f"log2 {hyperparameter}", form="z.2f"),
        Column("shift", unit="log2", form="+z.2f"),
        Column("loss gap", unit=unit, form=".4f"),
        *[Column("law", unit="log2", form="+.2f")] * bool(result.law),
        Column("gap of the loss", form=".2%", secondary=True),
        Column("loss", unit=unit, form=".4f", secondary=bool(result.law)),
        Column("range within 1 %", unit="log2", form=".2f", secondary=True),
        Column("answer", left=True),
    ]
    # Losses without an interval: the legend says why there is none.
    bare = any(math.isfinite(s.loss.value) and math.isinf(s.loss.high) for s in result.sizes)
    without = "; one seed, or too few finite runs, gives none" * bare
    law = f" Planned by {result.law}." if result.law else ""
    if not law and result.axis in UNSCALED_AXES:
        law = f" The rule over {axis}: the optimum stays as it is."
    surer = ""
    if result.confidence != 0.95:
        level = f"{100 * result.confidence:g} %"
        surer = f", of shift and loss gap {level}, as they were looked at several times"
    legend = (
        f"{f'Law: what it adds to log2 {hyperparameter}. ' if result.law else ''}"
        f"Best: {name}; optimum: its log2. Shift: from the base's optimum, log2. Loss gap: {unit} "
        f"lost at the base's optimum. ±: 95 % interval{surer}{without}."
        f"{f' A size holds with {result.limits}.' if result.limits else ''}{law}"
        f"{' w: width, d: depth, b: batch size, s: steps.' * (result.axis == JOINT_AXIS)}"
    )
    title = "Learning-rate curves" if of_eta else f"Curves of {hyperparameter}"
    table = Table(
        f"{title} over {axis}",
        columns,
        legend=[legend],
    )
    base_side = next((size.side for size in result.sizes if size.is_base), 0)
    for size in result.sizes:
        # Of the base both are 0 by definition, whatever the noise.
        is_exact = size.is_base and math.isfinite(size.shift_log2.value)
        # A shift between optima is a bound where one of them is, and unknown of two on one side.
        shift = _bounded(size.shift_log2, size.side or -base_side, "+z.2f")
        shift = UNKNOWN if size.side and size.side == base_side else shift
        loss, gap, range_log2 = size.loss.value, size.loss_gap, size.basin.width_log2
        # Relative to the least loss of the size; a loss of 0 would be no scale.
        ends = asdict(gap).items()
        share = replace(gap, **{end: part / loss for end, part in ends}) if loss else gap
        known = math.isfinite(gap.value) and (gap.low > 0 or math.isfinite(size.loss.high))
        from_low = f"{gap.low:.4f} to inf" if known and math.isinf(gap.high) else ""
        label = label_size(asdict(size.size), result.axis)
        is_bound = math.isfinite(range_log2.value) and math.isinf(range_log2.high)
        table.add(
            Cell(label, label, small=" (base)" * size.is_base),
            Cell(2.0**size.optimum_log2.value, _best(size)),
            _bounded(size.optimum_log2, size.side, "z.2f"),
            Cell(0.0, "0") if is_exact else shift,
            Cell(0.0, "0") if is_exact else Cell(gap, from_low),
            *[size.planned_log2] * bool(result.law),
            Cell(0.0, "0") if is_exact else share,
            Cell(size.loss, number(loss, ".3f")),
            Cell(range_log2, f"{'≥' * is_bound}{number(range_log2.value, '.2f')}"),
            answer(size.answer),
            note="" if size.answer in ("holds", "base") else size.reason,
            subject=describe_size(size.size, result.axis),
        )
    return table


def _best(size: SizeVerdict) -> str:
    best = 2.0**size.optimum_log2.value
    return "-" if math.isnan(best) else f"{' ≥≤'[size.side]}{best:.3g}".strip()


def _bounded(estimate: Estimate, side: int, form: str) -> Value:
    """An estimate that is a bound where it has a `side`: the truth is at or above (1) or below."""
    if not side or not math.isfinite(estimate.value):
        return estimate
    value = estimate.value
    low, high = (value, math.inf) if side > 0 else (-math.inf, value)
    bound = Estimate(value=value, low=low, high=high)
    return Cell(bound, f"{'≥' if side > 0 else '≤'}{number(value, form)}")


def trend_text(fitted: Trend, *, applied: bool) -> str:
    """What the optima over a ladder say of the target's, and what a plan makes of it."""
    gain = f"{fitted.gain.value:.4f} nats ({fitted.gain.low:.4f} to {fitted.gain.high:.4f})"
    if applied:
        end = f"used (transfer.correct=true), which saves {gain}."
    elif not fitted.warranted:
        end = f"not used: {fitted.reason}."
    else:
        end = f"not used: transfer.correct=true would plan with it and save {gain}."
    return f"{drift_text(fitted)}, {end}"


def drift_text(fitted: Trend, name: str = "eta") -> str:
    """How the optima of what is called `name` go, and where that leads at the target."""
    axis = fitted.axis.replace("_", " ")
    turns, best = fitted.forms.get(TURNING, 0.0), fitted.predicted_log2
    goes = f"{TURNING} ({100 * turns:.0f} %)" if turns >= 0.5 else ""
    goes = goes or f"goes as {axis}^({within(fitted.slope)})"
    sizes = f"{len(fitted.sizes)} {plural(fitted.axis)}"
    return (
        f"Trend over {sizes}: {name} {goes}; the trend's at {axis} {fitted.target} is "
        f"{short(2.0**best.value)} ({short(2.0**best.low)} to {short(2.0**best.high)})"
    )
