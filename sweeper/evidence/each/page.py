"""Carry, retune or leave, one hyperparameter at a time: the table, its sentences, the page."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sweeper.evidence.each.decision import EachAnswer, EachCode, HyperparameterGain, TellingRuns
from sweeper.plan.plan import value_text
from sweeper.report.sections import Item, Sentence
from sweeper.stats.estimate import Estimate
from sweeper.table import Cell, Column, Table, Tone, counted, interval, listed

TONE: Mapping[EachCode, Tone] = {
    "carry": "good",
    "retune": "good",
    "leave": "",
    "cannot say": "open",
}
LACKING = {
    "": "",
    "noise": "nothing shows the noise of a run",
    "seeds": "the gain is within the noise",
    "sizes": "one size alone was run",
    "seeds at sizes": "larger sizes do not tell yet whether it lasts",
    "fades": "what it gains at the base is gone at the largest size",
    "runs around": "its default was not run, or diverged",
}


def each_sentence(each: EachAnswer) -> str:
    """Which hyperparameters to carry, to retune and to leave."""
    clauses: Mapping[EachCode, str] = {
        "carry": "carry {}",
        "retune": "retune {}",
        "leave": "leave {} at the default",
        "cannot say": "cannot say of {}",
    }
    parts = [
        text.format(listed(names))
        for answer, text in clauses.items()
        if (names := each.named(answer))
    ]
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def each_table(each: EachAnswer) -> Table:
    """A row a hyperparameter, those that are carried first."""
    several = len(each.sizes) > 1
    # Unknown where nothing shows the noise.
    seen = f" Below {each.seen:.2g} one run of each would not show it."
    seen *= math.isfinite(each.seen)
    table = Table(
        "One hyperparameter at a time",
        [
            Column("hyperparameter", left=True),
            Column("answer", left=True),
            Column("gain", unit=each.unit, left=True),
            Column("best"),
            Column("default"),
            *[Column("octaves a doubling", left=True)] * several,
        ],
        legend=[
            f"Gain: over the default at the base, {each.unit}, by runs that did not choose it; its "
            f"low end holds for all hyperparameters at once.{seen}"
        ],
    )
    for gain in each.hyperparameters:
        table.add(
            gain.name,
            Cell(gain.answer, tone=TONE[gain.answer]),
            Cell(gain.gain.value, ends_text(gain.gain, "+.4f")),
            Cell(gain.best, _value(gain.best)),
            Cell(gain.default, _value(gain.default)),
            *[Cell(gain.octaves_per_doubling.value, ends_text(gain.octaves_per_doubling, "+.2f"))]
            * several,
        )
    return table


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else value_text(value)


def ends_text(estimate: Estimate, form: str) -> str:
    """A value with both ends of its interval; "-" where nothing is known."""
    if math.isnan(estimate.value):
        return "-"
    value, ends = interval(estimate, form)
    return f"{value} ({ends})" if value != "none" else "-"


def why_text(gain: HyperparameterGain) -> str:
    """The reason for an answer, and which runs would tell."""
    parts = [LACKING[gain.lacking]]
    # Where the best lies of what gains nothing tells nobody anything.
    if gain.at_end and gain.answer != "leave":
        parts.append("its best value is the last one that was run")
    return "; ".join(filter(None, [*parts, *map(telling_text, gain.next)]))


def telling_text(runs: TellingRuns) -> str:
    """Runs that would tell, in words."""
    values = ", ".join(map(_value, runs.values))
    sizes = f" at {', '.join(f'{size:g}' for size in runs.sizes)}" if runs.sizes else ""
    return f"would tell: {values}{sizes}, {counted(runs.seeds, 'seed')} each"


def each_items(each: EachAnswer) -> list[Item]:
    """The table of an answer, and its reasons."""
    whys = [f"{gain.name}: {why}" for gain in each.hyperparameters if (why := why_text(gain))]
    return [each_table(each), *(Sentence(why, listed=True) for why in whys)]


def each_text(each: EachAnswer) -> str:
    """The answer as text: the table, and which to carry."""
    return f"{each_table(each)}\n{each_sentence(each)}"
