"""What is said of a law of the rate and the batch."""

from __future__ import annotations

from sweeper.evidence.judge.words import range_text
from sweeper.evidence.rates.decision import RateLaw, RatePrediction
from sweeper.stats.estimate import Estimate
from sweeper.table import counted

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
