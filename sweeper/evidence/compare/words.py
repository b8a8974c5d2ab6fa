"""A ranking of studies in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sweeper.evidence.compare.ranking import Ranking, RankingOutcome, TargetRanking
from sweeper.stats.line import FLAT


def ranking_progress(ranking: Ranking) -> str:
    """The last look in a line: what leads, by how much, and who is still in it."""
    parts = [f"{ranking.places[0].name} leads"]
    for place in ranking.places[1:]:
        known = math.isfinite(place.gap.low) and math.isfinite(place.gap.high)
        above = f"{place.gap.value:.4f} [{place.gap.low:.4f}, {place.gap.high:.4f}] above"
        parts.append(f"{place.name} {above if known else 'not known'}{', out' * place.out}")
    return f"{sum(place.seeds for place in ranking.places)} runs; {'; '.join(parts)}"


def target_progress(ranking: TargetRanking) -> str:
    """The last look in a line: what is said of each variant."""
    assert ranking.winner is not None
    said = "; ".join(f"{each.name}: {each.answer}" for each in ranking.winner.variants)
    return f"{ranking.runs} runs now; {said}"


def ranking_end(outcome: RankingOutcome) -> str:
    """How a ranking ended, and what would have decided it."""
    looks = f"{outcome.looks} time{'s' * (outcome.looks != 1)}"
    spent = f"{outcome.runs} runs, looked at {looks}"
    match outcome.ended:
        case "stuck" if outcome.failed:
            names = " and ".join(outcome.failed)
            return f"Not decided: runs of {names} failed, and none stands for it"
        case "stuck":
            return "Not decided: all runs diverged"
        case "decided":
            return f"Decided with {spent}"
        case "alike":
            names = " and ".join(outcome.left)
            return (
                f"Settled with {spent}: {names} differ by less than {100 * FLAT:g} % of the loss "
                "for sure"
            )
        case "budget":
            why = f": the budget of {outcome.budget} runs is spent"
        case "hopeless":
            why = f", and the budget of {outcome.budget} runs would hardly do"
    return f"Not decided with {spent}{why}{_diverged(outcome)}{_would_decide(outcome.needed)}"


def _diverged(outcome: RankingOutcome) -> str:
    """Why a ranking stays open where runs diverged; empty where none did."""
    if not outcome.diverged:
        return ""
    wild = [
        f"{name} diverged with {count} of {seeds} seeds"
        for name, (count, seeds) in outcome.diverged.items()
    ]
    return (
        f"; {', '.join(wild)}, and by how much it lost there nobody knows: such seeds tell by "
        f"their number, {outcome.least} of {outcome.least} at least"
    )


def _would_decide(needed: int | None) -> str:
    return "" if needed is None else f"; about {needed} would, if the losses stay as they are now"


SENTENCES: Mapping[type, Callable[[Any], str]] = {
    Ranking: ranking_progress,
    TargetRanking: target_progress,
    RankingOutcome: ranking_end,
}
