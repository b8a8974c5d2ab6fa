"""Decisions in sentences: what `decide/` says by codes and numbers, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sweeper.decide.ladder_verdict import MissedOptimum, NoiseLeft, Verdict
from sweeper.decide.settle import Ending, Settling
from sweeper.decide.trend import Trend
from sweeper.report.sentences_transfer import (
    ladder_end,
    ladder_progress,
    missed_text,
    noise_text,
    worded,
    worded_trend,
)
from sweeper.trial import Result

if TYPE_CHECKING:
    from sweeper.check.judge import CheckRule, CoordinateCheck
    from sweeper.study.setup import Failure

T = TypeVar("T")


def failure_notes(failures: Iterable[Failure]) -> list[str]:
    """Why trials failed, a sentence for each reason."""
    return [
        f"{each.count} trial{'s' * (each.count > 1)} failed and will be tried again next time: "
        f"{each.error}"
        for each in failures
    ]


def unfinished_notes(trials: int) -> list[str]:
    """A note that a search goes on, of which an answer takes what its `trials` so far say."""
    if not trials:
        return []
    return [f"the search is not finished; this is its best of {trials} trials."]


def check_sentence(check: CoordinateCheck, rule: CheckRule) -> str:
    """The answer, and the module that it rests on."""
    sizes = ", ".join(map(str, check.sizes))
    start = f"Coordinate check over {check.axis} {sizes}: "
    if check.answer == "pass":
        return f"{start}pass."
    if check.unseen and check.answer == "cannot say":
        return f"{start}cannot say: {check_todo(check, rule)}."
    # The module where a failure begins, by the change that its own parameters make; else the worst.
    at_fault = [m for m in check.modules if m.answer == check.answer] or list(check.modules)
    module = max(at_fault, key=lambda module: module.worst.deviation)
    slope = module.worst
    for origin in (module for module in at_fault if module.name in check.origins):
        direct = [s for s in origin.slopes if s.quantity == "direct" and s.answer == "fail"]
        if direct:
            module, slope = origin, direct[0]
            break
    if check.answer == "cannot say":
        others = len(at_fault) - 1
        more = f" and {others} more module{'s' * (others > 1)}" if others else ""
        why = f"{module.name}{more} ({slope.reason})"
        return f"{start}cannot say yet for {why}; {check_todo(check, rule)}."
    what = {
        "output": "its output at initialization",
        "change": f"the change of its output by step {slope.step}",
        "direct": "the change that its own parameters make",
    }[slope.quantity]
    if slope.reason not in ("grows", "vanishes"):
        return f"{start}fail at {module.name}: {what} is {slope.reason}."
    power = f"{check.axis}^{slope.slope.value:.2f}"
    theory = f", theory's is {check.axis}^{slope.expected:g}" if slope.expected else ""
    two = f". Two {check.axis}s cannot tell whether it goes on so; {check.third_size} would"
    two *= bool(check.third_size)
    return f"{start}fail at {module.name}: {what} {slope.reason} as {power}{theory}{two}."


def check_todo(check: CoordinateCheck, rule: CheckRule) -> str:
    """What may settle a check that cannot say."""
    if (settled := check.settled_by(rule)) and settled.startswith("transfer."):
        return f"two {check.axis}s cannot tell: {settled} may settle it"
    if not check.unseen:
        return f"{settled} may settle it"
    return (
        f"no output shows what {', '.join(check.unseen)} change: use each by calling the module "
        "that holds it, or put it in a module of its own"
    )


def diverged(results: Iterable[Result]) -> list[str]:
    """How many trials diverged, and the lowest eta of these: there a line has no point."""
    runs = [result for result in results if result.status == "diverged"]
    if not runs:
        return []
    etas = [run.trial.log2_hps["eta"] for run in runs if "eta" in run.trial.log2_hps]
    where = f", the lowest at eta 2^{min(etas):g}" if etas else ""
    return [f"{len(runs)} trial{'s' * (len(runs) > 1)} diverged{where}; such a loss is infinite"]


SENTENCES: Mapping[type, Callable[[Any], str]] = {
    Settling: ladder_progress,
    Ending: ladder_end,
    MissedOptimum: missed_text,
    NoiseLeft: noise_text,
}
WORDED: Mapping[type, Callable[[Any], Any]] = {
    Verdict: worded,
    Trend: worded_trend,
}


class Wording:
    """Makes sentences of decisions, for records that keep them beside the codes."""

    @property
    def sentences(self) -> Mapping[type, Callable[[Any], str]]:
        """What makes a sentence of a decision, by its class."""
        return SENTENCES

    def sentence(self, decision: object) -> str:
        """What a record says of a decision; of what goes on, where it stands. None has no words."""
        return "" if decision is None else str(_told(self.sentences, decision))

    def worded(self, decision: T) -> T:
        """The same decision, its reasons and advice in words, as its record has them."""
        return cast(T, _told(WORDED, decision))


def _told(by_class: Mapping[type, Callable[[Any], Any]], decision: object) -> Any:
    for kind, text in by_class.items():
        if isinstance(decision, kind):
            return text(decision)
    raise TypeError(f"no words are known for {type(decision).__name__}")
