"""A comparison in sentences: which variant wins, what that rests on, and how training ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sweeper.errors import Text
from sweeper.evidence.compare.decision import TAIL, SizePlace, VariantAnswer, Winner
from sweeper.stats.line import FLAT
from sweeper.table import counted, listed

if TYPE_CHECKING:
    from sweeper.evidence.compare.deciding import Deciding, DecidingEnd

COUNTS = {"params": "parameters"}
NOT_RUN = "not run at "


def place_text(place: SizePlace) -> str:
    """A size by its counts: 1.2e+09 parameters, 2.4e+10 tokens."""
    parts = [
        f"{value:.4g} {COUNTS.get(role, role)}" if role != "width" else f"width {value:.0f}"
        for role, value in place.counts.items()
        if role != "flops" or len(place.counts) == 1
    ]
    return ", ".join(parts) or "the size that was run"


def winner_sentence(winner: Winner) -> str:
    """Which variants are better at the target, and which are not."""
    where = place_text(winner.target)
    by_answer: dict[str, list[str]] = {}
    for each in winner.variants:
        by_answer.setdefault(each.answer, []).append(each.name)
    parts = []
    for answer, phrase in (("better", "better than"), ("worse", "worse than")):
        if names := by_answer.get(answer):
            parts.append(
                f"{listed(names)} {'is' if len(names) == 1 else 'are'} {phrase} {winner.baseline}"
            )
    if names := by_answer.get("cannot say"):
        parts.append(f"cannot say of {listed(names)}")
    text = "; ".join(parts)
    return f"At {where}: {text}."


def rests_text(winner: Winner) -> str:
    """What intervals are of, the noise, what differences do with size, and the back-test."""
    unit = winner.unit
    prior = (
        "told by its seeds"
        if winner.by == "seeds"
        else "no seeds are told apart: learned around the prior of tuned runs, "
        f"{winner.prior_noise:.2g}"
    )
    fades = f"{1 - 2**-winner.fading:.0%}".replace("%", " %")
    # What the model gives a little more counts as 95 %.
    level = f"{100 * (1 - 2 * winner.tail * 0.05 / (2 * TAIL)):.4g} %"
    two = f"{1.96 * math.sqrt(2) * winner.noise:.2g} {unit}"
    text = (
        f"Intervals, {level}, are of the expected difference: one run of each shows it with {two} "
        f"to either side. A run's noise is {winner.noise:.2g} {unit} ({prior}). Differences shrink "
        f"by {fades} an octave of compute, and drift by {winner.drift:.2g} {unit} for the root of "
        "one."
    )
    if winner.scale == 1:
        return text
    how = "wider" if winner.scale > 1 else "narrower"
    times = winner.scale if winner.scale > 1 else 1 / winner.scale
    return f"{text} The largest size, left out, makes intervals {times:.2g} times {how}."


def notes_of(winner: Winner) -> list[str | Text]:
    """What stands against single answers."""
    notes: list[str | Text] = []
    if winner.baseline_bound:
        notes.append(
            f"{winner.baseline}, the baseline, {bound_text(winner.baseline_bound)}: tuned, it may "
            "be better than it looks, and no variant is called better"
        )
    if alike := [each.name for each in winner.variants if each.same_rate]:
        notes.append(
            f"at every size the learning rate of {listed(alike)} is that of {winner.baseline}: if "
            f"{'it was' if len(alike) == 1 else 'they were'} not tuned, tuning may gain more"
        )
    # What holds of many is one note: an answer must not drown in them.
    named: dict[str, list[str]] = {}
    for each in winner.variants:
        for what in _of_variant(each):
            named.setdefault(what, []).append(each.name)
    places = [what for what in named if what.startswith(NOT_RUN)]
    if len(places) > 2:
        names = [name for what in places for name in named.pop(what)]
        named[f"not run at every size of {winner.baseline}"] = names
    return [*notes, *(f"{listed(names)}: {what}" for what, names in named.items())]


def bound_text(bound: str) -> str:
    """Why a loss is a bound."""
    if bound == "end":
        return "has its best learning rate at an end of those tried"
    return "was run once where others were tuned"


def _of_variant(each: VariantAnswer) -> list[str]:
    notes = []
    if each.missing:
        notes.append(f"{NOT_RUN}{'; '.join(map(place_text, each.missing[:3]))}")
    if each.bound:
        notes.append(f"{bound_text(each.bound)}: the loss is a bound from above")
    if each.diverged:
        decides = {
            "diverged": ", which decides it"
            if each.answer != "cannot say"
            else ", which leaves it open"
        }
        notes.append(f"{counted(each.diverged, 'run')} diverged{decides.get(each.code, '')}")
    if each.code == "wall_clock" and each.answer == "worse" and each.loss_difference.value < 0:
        notes.append("the loss is lower, and costs more time than that is worth")
    return notes


def deciding_text(deciding: Deciding) -> str:
    """The last look in a line: what is said of each variant."""
    assert deciding.winner is not None
    answers = "; ".join(f"{each.name}: {each.answer}" for each in deciding.winner.variants)
    return f"{deciding.runs} runs now; {answers}"


def outcome_text(outcome: DecidingEnd) -> str:
    """How it ended, and by what."""
    looks = f"{outcome.looks} time{'s' * (outcome.looks != 1)}"
    spent = f"{outcome.runs} runs, looked at {looks}"
    match outcome.ended:
        case "stuck" if outcome.failed:
            return f"Not decided: runs of {listed(outcome.failed)} failed, and none stands for it"
        case "stuck":
            return f"Not decided: all runs of {listed(outcome.diverged)} diverged"
        case "decided":
            return f"Decided with {spent}"
        case "alike":
            alike = f"what is open differs by less than {100 * FLAT:g} % of the loss for sure"
            return f"Settled with {spent}: {alike}"
        case "budget":
            return f"Not decided with {spent}: the budget of {outcome.budget} runs is spent"
    return f"Not decided with {spent}, and the budget of {outcome.budget} runs would hardly do"
