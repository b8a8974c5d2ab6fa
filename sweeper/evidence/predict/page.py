"""What people see of a prediction: tables, the figure of loss over compute, the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from sweeper.evidence.predict.decision import (
    MOST_FITTED,
    PREDICTED,
    LossQuestion,
    NoLossLaw,
    Prediction,
    Proposed,
)
from sweeper.evidence.predict.forecast import LossBackTest
from sweeper.evidence.predict.verb import PredictAnswer, TablePrediction
from sweeper.evidence.runs.loss_runs import Design, LossRuns, Rungs
from sweeper.evidence.runs.run import unit_of
from sweeper.evidence.runs.words import reading_text, table_facts
from sweeper.files import private_folder
from sweeper.laws.law import NoLaw
from sweeper.records import to_json
from sweeper.report.drawing import (
    BESIDE,
    DASHED,
    FAINT,
    INK,
    LINE_COLOR,
    STAR,
    STRIP,
    STYLE,
    error_bar,
    look_of,
)
from sweeper.report.next import Next, again
from sweeper.report.page import paged
from sweeper.report.sections import Drawing, Report, Section, Sentence, Shown, rests_on
from sweeper.stats.estimate import Estimate
from sweeper.study.folder import TargetFolder
from sweeper.table import Column, Table, answer, counted, duration
from sweeper.verbs.requests import TransferRequest

if TYPE_CHECKING:
    from sweeper.config.studies import Invocation
    from sweeper.evidence.predict.reading import Predicted

PARAMETERS = ("E", "A", "B", "alpha", "beta", "gamma")


def answer_text(prediction: Prediction) -> str:
    """The answer in a sentence or two."""
    loss_to_come, target = prediction.prediction, prediction.target
    best = prediction.optimum
    parts = []
    if prediction.fixed:
        named = (f"{name} at {value:.4g}" for name, value in prediction.fixed.items())
        parts.append(f"With {' and '.join(named)}, as given:")
    if loss_to_come and target:
        inputs = prediction.inputs
        flops = f"{target.flops:.3g} FLOPs, " * inputs.flops_known
        times = f"{target.beyond:.3g} times" if target.beyond > 1.001 else "no more than"
        beyond = f"{times} the largest run's"
        where = (
            f"{target.params:.3g} parameters and {target.tokens:.3g} {inputs.unit} ({flops}"
            f"{beyond}{' compute' * (not inputs.flops_known)})"
        )
        loss = f"{loss_to_come.loss:.4f} ({loss_to_come.low:.4f} to {loss_to_come.high:.4f})"
        if prediction.answer == PREDICTED:
            parts.append(f"The loss of {where} will be {loss}, 95 % sure.")
        else:
            parts.append(f"Cannot say yet what {where} will reach; the law alone says {loss}.")
    if best:
        size, tokens = best.params, best.tokens
        sure = "" if prediction.answer == PREDICTED else ", if the law holds"
        parts.append(
            f"The best of {best.flops:.3g} FLOPs: {size.value:.3g} parameters ({size.low:.3g} to "
            f"{size.high:.3g}) and {tokens.value:.3g} {prediction.inputs.unit}, loss "
            f"{best.loss.value:.4f} ({best.loss.low:.4f} to {best.loss.high:.4f}){sure}."
        )
        half, twice = best.valley
        unit = unit_of(prediction.inputs.columns.get("loss", ""))
        parts.append(
            f"Half the size costs {half.gap.value:.4f} {unit}, twice {twice.gap.value:.4f}."
        )
    if choice := prediction.choice:
        parts.append(
            f"Of this study's models that is about width {choice.width}, depth {choice.depth}, "
            f"{choice.steps:,} steps."
        )
    if not parts:
        stands = prediction.answer == PREDICTED and prediction.back_test
        said_of = "stands" if stands else "has not been shown yet"
        parts.append(f"The law of {counted(prediction.inputs.runs, 'run')} {said_of}.")
        values = ((name, getattr(prediction.law, name)) for name in PARAMETERS)
        parameters = ", ".join(f"{name} {value.value:.4g}" for name, value in values if value)
        parts.append(f"It is L = {prediction.law.formula} with {parameters}.")
    if prediction.hours is not None:
        parts.append(f"At your largest runs' speed it takes {duration(3600 * prediction.hours)}.")
    return " ".join(parts)


def unlike_text(prediction: Prediction) -> list[str]:
    """Which runs the law was not fitted to, and what that changes."""
    unlike = prediction.inputs.unlike
    if unlike is None:
        return []
    which = {"undertrained": f"of fewer than {unlike.ratio:g} tokens a parameter"}
    which["small"] = f"of less than {unlike.flops:.3g} FLOPs"
    which["both"] = f"{which['undertrained']} or {which['small']}"
    misses = f"{100 * unlike.miss_all:.2g} %, without by {100 * unlike.miss:.2g} %"
    return [
        f"Left out: {unlike.count} of {unlike.of} runs, {which[unlike.code]}: with them plain "
        f"fits miss the farthest runs by {misses}."
    ]


def reasons_text(prediction: Prediction) -> list[str]:
    """Why nothing can be said, and the runs that would settle it, with their cost."""
    lines = [f"Why: {reason}." for reason in prediction.reasons]
    if prediction.settle:
        flops_known = prediction.inputs.flops_known
        cost = f"; {prediction.settle_flops:.3g} FLOPs together" * flops_known
        lines.append(f"{settle_text(prediction.settle, prediction.inputs.unit)}{cost}.")
    return lines


def settle_text(settle: Sequence[Proposed], unit: str) -> str:
    """The runs that would tell, by the models of a study where these are known."""
    more = f"{counted(len(settle), 'run')} more would tell"
    choices = [run.choice for run in settle]
    if all(choices):
        named = (f"width {c.width}, depth {c.depth}, {c.steps:,} steps" for c in choices if c)
        return f"{more}: {'; '.join(dict.fromkeys(named))}"
    runs = ", ".join(f"{run.params:.3g} x {run.tokens:.3g}" for run in settle)
    return f"{more} (parameters x {unit}): {runs}"


def tables(prediction: Prediction) -> list[Table]:
    """The law, and the back-test."""
    unit = unit_of(prediction.inputs.columns.get("loss", ""))
    tests = prediction.back_test
    return [*[back_test_table(tests, unit)] * bool(tests), law_table(prediction)]


def law_table(prediction: Prediction) -> Table:
    """The law's parameters, a row each."""
    table = Table(
        f"The law: L = {prediction.law.formula}",
        [Column("", left=True), Column("value", form=".4g"), Column("95 % interval", left=True)],
        legend=[f"N are parameters, D {prediction.inputs.unit}, E is the floor."],
        detail=True,
    )
    for name in PARAMETERS:
        value: Estimate | None = getattr(prediction.law, name)
        if value is not None:
            # Ends, not ±: amplitudes are known up to factors, and no interval is symmetric. A
            # floor of 1e-11 is one of 0: its log is what is fitted.
            low, high = (0.0 if end < 1e-6 else end for end in (value.low, value.high))
            table.add(name, value.value, f"{low:.3g} to {high:.3g}")
    return table


def back_test_table(tests: Sequence[LossBackTest], unit: str) -> Table:
    """What the law said of runs that it had not seen, beside what was measured."""
    table = Table(
        "Tried backwards",
        [
            Column("left out", left=True),
            Column("predicted", form=".4f"),
            Column("measured", form=".4f"),
            Column("", left=True),
            Column("off", unit=unit, form="+.4f"),
            Column("off, %", unit="of the reducible loss", form="+.1%", secondary=True),
            Column("times the compute", form=".2f", secondary=True),
            Column("runs within", left=True),
        ],
        legend=[
            "By the law of the runs before it. Off: measured less predicted. Runs within: in their "
            "own 95 % interval."
        ],
    )
    for test in tests:
        table.add(
            ", ".join(test.left_out).replace(" parameters,", ","),
            test.predicted,
            test.measured,
            answer("hit" if test.hit else "failed" if test.failed else "miss"),
            test.nats,
            test.reducible,
            test.compute,
            f"{test.within} of {test.count}",
        )
    return table


@rc_context(STYLE)
def prediction_figure(prediction: Prediction, runs: LossRuns, rungs: Rungs) -> Figure:
    """Loss over compute: the law with its band, the runs, the target."""
    figure = Figure(figsize=(6.8, 3.9), layout="constrained")
    ax = figure.subplots()
    x = [point.flops for point in prediction.curve]
    low, high = ([getattr(p.loss, end) for p in prediction.curve] for end in ("low", "high"))
    ax.fill_between(x, low, high, color=LINE_COLOR, alpha=0.18, linewidth=0, label="95 %")
    ax.plot(x, [p.loss.value for p in prediction.curve], color=LINE_COLOR, label="the law")
    for index, name in enumerate(rungs.names):
        color, marker = look_of(index, len(rungs))
        of = rungs.index == index
        look: dict[str, Any] = {"color": color, "markersize": 3.5, "linestyle": "none"}
        ax.plot(runs.flops[of], runs.loss[of], marker=marker, label=name, **look)
    if prediction.aim is not None and prediction.prediction is not None:
        aim, loss = prediction.aim.flops, prediction.prediction.estimate
        label = "the run to come" if prediction.answer == PREDICTED else "cannot say yet"
        error_bar(ax, aim, loss, color=INK, linewidth=1, capsize=3, label=label, **STAR)
        # Beyond the largest run nothing was measured: shaded.
        ax.axvspan(float(runs.flops.max()), max(*x, aim * 1.3), color=STRIP, zorder=0)
    span = _span(prediction, runs)
    # A floor far below all runs would press them together, and is told by the table.
    if (floor := prediction.law.E.value) > span[0]:
        style: dict[str, Any] = {"linestyle": DASHED, "linewidth": 0.8, "color": FAINT}
        ax.axhline(floor, label="the floor E", **style)
    what = "FLOPs" if prediction.inputs.flops_known else "in proportion"
    ax.set(xscale="log", xlabel=f"compute ({what})", ylabel="loss", ylim=span)
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles=handles, labels=labels, **BESIDE)
    return figure


def prediction_report(prediction: Prediction, figure: Figure) -> Report:
    """The answer, the law with its back-test, and what it rests on."""
    of_sizes = bool(prediction.law.A and prediction.law.B)
    best = " at the best split of each budget into size and tokens" * of_sizes
    caption = (
        f"Every mark is a run. The line is the law{best}, the band its 95 % interval. The shaded "
        "side is beyond the largest run."
    )
    more = prediction.inputs.runs - MOST_FITTED
    caption += f" {more:,} more runs are not drawn." * (more > 0)
    is_said, sentence = prediction.answer == PREDICTED, answer_text(prediction)
    lines = [*unlike_text(prediction), *reasons_text(prediction)]
    no_band = f"No band to follow the run by: {prediction.no_band}." * bool(prediction.no_band)
    post = "Post the digest before the run begins: it shows afterwards that this was said before."
    inputs = {**_inputs(prediction), "SHA-256 of prediction.json": prediction.sha256}
    strays = prediction.inputs.strays
    far = [f"far off the law, and counted less: {', '.join(strays)}"] * bool(strays)
    return Report(
        title="What the large run will reach",
        about=f"A prediction of sweeper, written {prediction.time}.",
        answer=sentence,
        sections=[
            Section(
                "Predicted" if is_said else "Cannot say yet",
                [Sentence(sentence), *(Sentence(line, listed=True) for line in lines)],
                is_answer=True,
                code="holds" if is_said else prediction.answer,
            ),
            Section(
                "Loss over compute",
                [Drawing(lambda: figure, caption=caption, wide=True), *tables(prediction)],
            ),
            rests_on(inputs, *[Sentence(no_band)] * bool(no_band), Sentence(post)),
        ],
        notes=[*prediction.notes, *far],
    )


def _inputs(prediction: Prediction) -> dict[str, Any]:
    inputs = prediction.inputs
    return {
        **table_facts(inputs.source, inputs.sha256, inputs.where, inputs.columns, inputs.runs),
        "varied": inputs.varied,
        "FLOPs per parameter and token": (
            f"{inputs.flops_per_parameter_and_token:.4g}" if inputs.flops_known else "not known"
        ),
        "noise of a run": f"{prediction.noise:.2%}".replace("%", " % of the loss"),
        "left out": "; ".join(f"{name}: {why}" for name, why in inputs.left_out),
        "command": prediction.command,
        "made": prediction.time,
    }


def _span(prediction: Prediction, runs: LossRuns) -> tuple[float, float]:
    """Losses that are drawn: the runs', the one to come, and of its interval what is near them.

    The band of a law that is not identified goes to the ends of the world.
    """
    loss = prediction.prediction
    losses = [*runs.loss, *([loss.loss] if loss else [])]
    low, high = float(min(losses)), float(max(losses))
    room = high - low
    if loss:
        low, high = min(low, max(loss.low, low - room)), max(high, min(loss.high, high + room))
    return low - 0.06 * (high - low), high + 0.06 * (high - low)


def presented(answer: PredictAnswer | TablePrediction) -> Shown:
    """The law, tried backwards, and what it predicts; the record, the page and its figure."""
    if isinstance(answer, PredictAnswer):
        return predicted_shown(answer.predicted, answer.question, answer.invocation)
    table, runs = answer.table, answer.runs
    before = (reading_text(len(runs), table.name, table.columns),)
    if isinstance(answer.prediction, NoLossLaw):
        # Why so few of a table's runs count is told by its notes alone.
        return replace(_too_few(answer.prediction, "tokens", before), notes=answer.notes)
    return _written(answer.prediction, runs, answer.folder, before)


def predicted_shown(
    result: Predicted, question: LossQuestion, invocation: Invocation | None
) -> Shown:
    """What a study's runs predict; its page links the prediction's."""
    scales, study = result.scales, result.study
    runs, before = result.runs, [_counted_text(result)]
    before += [f"Left out: {counted(n, 'run')}, {why}" for why, n in result.left_out.items()]
    settle = result.prediction.settle
    following = _following(result, settle, question, invocation)
    if isinstance(result.prediction, NoLossLaw):
        return _too_few(result.prediction, scales.unit, before, following)
    if not settle and TargetFolder(result.folder).plan.is_file():
        following = None
    made = _written(result.prediction, runs, result.folder, before, following)
    made = replace(made, folder=study.folder)
    from sweeper.report.study_page import write_report  # it loads torch, and tables have none

    write_report(study.folder)
    return made


def _counted_text(result: Predicted) -> str:
    head, scales = (f"{counted(len(result.runs), 'run')} of {result.study.name}", result.scales)
    if scales.counted:
        text = f"{head}; params are all parameters"
        if scales.unit == "steps":
            text += ". Its command takes no {batch_size}: steps stand for tokens"
        return text
    return (
        f"{head}; what a command's model has of parameters is not known: width x width x depth "
        "stands for them, in the law and in what it says"
    )


def _too_few(
    few: NoLossLaw, unit: str, before: Sequence[str], following: Next | None = None
) -> Shown:
    return Shown(
        before=before,
        items=[Sentence(f"{settle_text(few.settle, unit)}.")] if few.settle else [],
        answer=f"Cannot say yet: {few.reasons[0]}. Nothing was written.",
        document={key: value for key, value in to_json(few).items() if value is not None},
        next=(following,),
    )


def _written(
    prediction: Prediction,
    runs: LossRuns,
    folder: Path,
    before: Sequence[str],
    following: Next | None = None,
) -> Shown:
    prediction = prediction.dated(folder)
    kept = prediction.keep_earlier(folder)
    drawn = runs.spread(MOST_FITTED)
    rungs = Rungs.of(drawn, Design.of(drawn))
    private_folder(folder)
    record = prediction.write(folder)
    figure = prediction_figure(prediction, drawn, rungs)
    made = paged(
        prediction_report(prediction, figure),
        folder,
        "prediction",
        # The file's content with its digest, which the file cannot hold itself.
        {**to_json(prediction), "sha256": prediction.sha256},
        drawn={"prediction": figure},
        places={"prediction": record},
        before=before,
        next=(following,),
    )
    earlier = [f"another prediction lay there, and is kept as {kept}"] * bool(kept)
    return replace(made, notes=[*earlier, *made.notes])


def _following(
    predicted: Predicted,
    settle: Sequence[Proposed],
    question: LossQuestion,
    invocation: Invocation | None,
) -> Next | None:
    """What trains the runs that would tell, or plans the run; None where a law would be needed."""
    if invocation is None:
        return None
    settings = predicted.scales.experiment.settings
    rule, base, size = settings.transfer, settings.ladder_base, predicted.size
    choices = [run.choice for run in settle if run.choice]
    # Another number of tokens is planned by a law alone.
    lacks = bool(question.tokens) and isinstance(settings.law, NoLaw)
    law, depth = ["law=joint"] * lacks, size.depth if size.depth != settings.base.depth else None
    request = TransferRequest(
        to_width=size.width, to_depth=depth, to_tokens=question.tokens or None
    )
    if not choices:
        if question.flops is not None:
            return None
        return again(invocation, request, settings, *law, why="to plan the run")
    widths = sorted({base.width, *rule.widths, *(c.width for c in choices)})
    steps = sorted({*predicted.horizons, *(c.steps for c in choices)})
    ladders = [f"transfer.widths=[{','.join(map(str, widths))}]"]
    ladders += [f"transfer.steps=[{','.join(map(str, steps))}]"]
    request = replace(request, horizons=True)
    return again(invocation, request, settings, *law, *ladders, why="to train what would tell")
