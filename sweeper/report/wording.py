"""The words that records keep beside the codes of decisions: asked for from below, made here."""

from __future__ import annotations

from typing import TypeVar, cast

from sweeper.decide.diagnosis import Ablation, Diagnosis
from sweeper.decide.ranking import Ranking, RankingOutcome, TargetRanking
from sweeper.decide.settle import Ending, Settling
from sweeper.decide.transfer import MissedOptimum, NoiseLeft, Verdict
from sweeper.decide.trend import Trend
from sweeper.report.sentences import ranking_end, ranking_progress, target_progress
from sweeper.report.sentences_diagnosis import worded_ablation, worded_diagnosis
from sweeper.report.sentences_transfer import (
    ladder_end,
    ladder_progress,
    missed_text,
    noise_text,
    worded,
    worded_trend,
)

T = TypeVar("T")


class Wording:
    """Makes sentences of decisions, for records that keep them beside the codes."""

    def sentence(self, decision: object) -> str:
        """What a record says of a decision; of what goes on, where it stands. None has no words."""
        match decision:
            case None:
                return ""
            case Ranking():
                return ranking_progress(decision)
            case TargetRanking():
                return target_progress(decision)
            case RankingOutcome():
                return ranking_end(decision)
            case Settling():
                return ladder_progress(decision)
            case Ending():
                return ladder_end(decision)
            case MissedOptimum():
                return missed_text(decision)
            case NoiseLeft():
                return noise_text(decision)
        raise TypeError(f"no sentence is known for {type(decision).__name__}")

    def worded(self, decision: T) -> T:
        """The same decision, its reasons and advice in words, as its record has them."""
        made: object
        match decision:
            case Verdict():
                made = worded(decision)
            case Trend():
                made = worded_trend(decision)
            case Ablation():
                made = worded_ablation(decision)
            case Diagnosis():
                made = worded_diagnosis(decision)
            case _:
                raise TypeError(f"no words are known for {type(decision).__name__}")
        return cast(T, made)
