"""The rate and the batch for any model and horizon: sentences, tables, the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweeper.evidence.judge.decision import SIDES
from sweeper.evidence.judge.words import range_text
from sweeper.evidence.rates.decision import RateLaw, RatePrediction
from sweeper.evidence.runs.words import reading_text, table_facts
from sweeper.records import to_json
from sweeper.report.page import paged
from sweeper.report.sections import Report, Section, Sentence, Shown, rests_on
from sweeper.stats.estimate import Estimate
from sweeper.table import Column, Table, counted

NAMES = {"params": "parameters", "batch_size": "batch"}


def axis_text(axis: str) -> str:
    """A size's name as it is read."""
    return NAMES.get(axis, axis)


def sized(axis: str, value: float) -> str:
    """A size with its name."""
    return f"width {value:.0f}" if axis == "width" else f"{value:.4g} {axis_text(axis)}"


def target_text(law: RateLaw, prediction: RatePrediction) -> str:
    """The run that is asked about."""
    return (
        f"{sized(law.model, prediction.model)}, {prediction.horizon:.4g} {axis_text(law.horizon)}"
    )


def batch_text(estimate: Estimate) -> str:
    """A batch of which log2 is given, with its interval."""
    value, low, high = (2.0**log2 for log2 in (estimate.value, estimate.low, estimate.high))
    return f"{value:.0f} ({low:.0f} to {high:.0f})"


def rates_lines(law: RateLaw) -> list[str]:
    """The sentences of a law, the answer last."""
    if law.code == "too_few_cells":
        inside = counted(law.usable, "size")
        return [
            f"Cannot say: {inside} of {len(law.cells)} have their best inside what was run, and a "
            f"law takes {law.needed}. Runs beyond the ends that are told would add some."
        ]
    if law.code == "bounds_contradict":
        return [
            "Cannot say: the sizes whose best lies at an end of what was run contradict the law of "
            "the others. Runs beyond these ends would tell."
        ]
    lines = [_powers_text(law)] if law.powers else []
    if law.prediction is None:
        return [*lines, f"{counted(law.usable, 'size')} tell the law; a target is not asked for."]
    lines.append(_prediction_text(law, law.prediction))
    if law.code == "too_wide":
        octaves = law.prediction.eta.high - law.prediction.eta.low
        lines.append(
            f"Cannot say yet: the rate at the target is open by {octaves:.0f} octaves. Runs of "
            "further sizes, or nearer to it, would tell."
        )
    return lines


def _powers_text(law: RateLaw) -> str:
    clauses = []
    for of, what in (("eta", "rate"), ("batch", "batch")):
        powers = [
            f"{axis_text(power.axis)}^{power.exponent.value:+.2f} ({power.exponent.low:+.2f} to "
            f"{power.exponent.high:+.2f})"
            for power in law.powers
            if power.of == of
        ]
        if powers:
            clauses.append(f"the best {what} goes as {' '.join(powers)}")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _prediction_text(law: RateLaw, prediction: RatePrediction) -> str:
    answer = f"At {target_text(law, prediction).replace(', ', ' and ')} the learning rate is "
    answer += range_text(prediction.eta)
    if prediction.at_batch is not None:
        answer += f" at the batch of {prediction.at_batch:.0f}"
    if prediction.batch is not None:
        answer += " at a batch of " if prediction.at_batch is None else "; the best batch is "
        answer += batch_text(prediction.batch)
    return f"{answer}."


def rates_shown(law: RateLaw, facts: Mapping[str, Any], place: Path) -> Shown:
    """The answer with its tables; the page is written to `place`."""
    return paged(
        rates_report(law, facts),
        place,
        "rates",
        rates_record(law, facts),
        kind="verdict",
        before=(reading_text(law.runs, facts["source"], law.columns),),
    )


def rates_record(law: RateLaw, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Plain JSON, with what it says in sentences."""
    record: dict[str, Any] = to_json(law)
    return {"answer": law.answer, **record, **facts, "sentences": rates_lines(law)}


def rates_report(law: RateLaw, facts: Mapping[str, Any]) -> Report:
    """The answer, its tables, and what it rests on."""
    rests = {
        **table_facts(facts["source"], facts["sha256"], facts["where"], law.columns, law.runs),
        "noise": f"{law.noise:.4g} {law.unit} a run" if math.isfinite(law.noise) else "unknown",
        "command": facts["command"],
    }
    lines = rates_lines(law)
    sentences = [Sentence(line, listed=True) for line in lines]
    code = "holds" if law.answer == "predicted" else law.answer
    return Report(
        title="The rate and the batch for any size",
        about=f"A law of sweeper of {law.runs} runs. Nothing was trained.",
        answer=lines[-1],
        sections=[
            Section("The answer", sentences, is_answer=True, code=code),
            Section("What was measured", rates_tables(law)),
            rests_on(rests),
        ],
        notes=law.notes,
    )


def rates_tables(law: RateLaw) -> list[Table]:
    """The batches that may be chosen at the target, and every size that was run."""
    prediction = law.prediction
    return [
        *([ridge_table(law, prediction)] if prediction is not None and prediction.ridge else []),
        cells_table(law),
    ]


def ridge_table(law: RateLaw, prediction: RatePrediction) -> Table:
    """A row a batch: the rate that goes with it, and what it costs."""
    planned = prediction.at_batch
    if planned is None and prediction.batch is not None:
        planned = 2.0**prediction.batch.value
    steps = all(math.isfinite(each.steps) for each in prediction.ridge)
    table = Table(
        f"At {target_text(law, prediction)}",
        [
            Column("batch", left=True),
            Column("learning rate", left=True),
            Column("loss more", unit=law.unit, form="+z.4f", left=True),
            *[Column("steps", form=",.0f")] * steps,
        ],
        legend=[f"Loss more than at a batch of {planned:.0f}."],
    )
    for each in prediction.ridge:
        taken = [each.steps] * steps
        table.add(f"{each.batch:.0f}", range_text(each.eta), each.loss, *taken)
    return table


def cells_table(law: RateLaw) -> Table:
    """A row a size: its best rate, its best batch, its loss."""
    axes = list(law.cells[0].sizes) if law.cells else []
    batches = any(cell.batch is not None for cell in law.cells)
    table = Table(
        "The best of every size that was run",
        [
            *(Column(axis_text(axis), form=".4g") for axis in axes),
            Column("learning rate", left=True),
            *[Column("batch", left=True)] * batches,
            Column("loss", unit=law.unit, form=".4f"),
        ],
        legend=["At or above, at or below: the best lies at an end of what was run."],
        detail=law.prediction is not None,
    )
    for cell in law.cells:
        batch = [] if cell.batch is None else [_told(cell.batch, cell.batch_end, batch_text)]
        rate = _told(cell.eta, cell.eta_end, range_text)
        table.add(*cell.sizes.values(), rate, *batch, cell.loss)
    return table


def _told(estimate: Estimate, end: int, text: Callable[[Estimate], str]) -> str:
    if not math.isfinite(estimate.value):
        return "-"
    if end:
        return f"{SIDES[end]} {text(estimate).partition(' (')[0]}"
    return text(estimate) if math.isfinite(estimate.low) else text(estimate).partition(" (")[0]
