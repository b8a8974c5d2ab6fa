"""What is decided of a transfer, in sentences: sizes, ladders, targets, and what would settle them.

`decide/` says why by codes and numbers. Records have the words beside the numbers: `worded` and
`worded_trend` fill them in, before a record is written or shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sweeper.decide.ladder_verdict import (
    MORE_SEEDS,
    Advice,
    Answer,
    MissedOptimum,
    NoiseLeft,
    PastEnd,
    SizeVerdict,
    TargetAnswer,
    Verdict,
)
from sweeper.decide.settle import Ending, Look, Settling
from sweeper.decide.trend import MIN_TREND_SIZES, Exponent, Trend
from sweeper.plan.plan import value_text
from sweeper.stats.ladder import LadderSize, describe_size
from sweeper.stats.rounds import LOOKS
from sweeper.table import counted, listed
from sweeper.trial import Choice

SAID: Mapping[Answer, str] = {
    "holds": "holds",
    "fails": "fails",
    "cannot say yet": "can neither be confirmed nor refuted yet",
}
BELIEFS = {
    "theory": (
        "half that something is wrong and the optimum drifts by about ±0.5 a doubling, half as "
        "theory says: it stays, or converges as 1/width"
    ),
    "no_theory": (
        "nine in ten that the optimum drifts by about ±0.5 a doubling, one in ten that it stays or "
        "converges"
    ),
    "turning": (
        "45 % each that the optimum drifts by about ±0.5 a doubling, and that it rises and then "
        "falls, by 0.1 more a doubling squared; one in ten that it stays or converges"
    ),
}


def worded(verdict: Verdict, unit: str = "nats") -> Verdict:
    """The verdict with reasons, notes and advice in words as in its record, losses in `unit`."""
    rule = verdict.rule
    limits = verdict.limits
    if rule is not None:
        limits = (
            f"a shift of at most {rule.max_shift:g} in log2 and a loss gap of at most "
            f"{100 * rule.max_loss_gap:g} % of the least loss"
        )
    return replace(
        verdict,
        sizes=tuple(replace(size, reason=size_reason(size, unit)) for size in verdict.sizes),
        todo=advice_text(verdict.advice) or verdict.todo,
        note=". Also, ".join(
            filter(None, (_worse_note(verdict, unit) or verdict.note, _cliffs(verdict)))
        ),
        limits=limits,
        target=None if verdict.target is None else worded_target(verdict.target, unit),
    )


def noise_text(noise: NoiseLeft) -> str:
    """Where the noise of a ladder of one seed is from."""
    low, high = f"{noise.low:.2g}", f"{noise.high:.2g}"
    level = low if low == high else f"{low} to {high}"
    return f"one seed: the noise is {level} nats a run, by what a smooth curve leaves of each size"


def unjudged_text(values: Mapping[str, Choice], judged: Collection[str]) -> str:
    """Which `values` a plan carries beside what was `judged`; empty where there are none."""
    if not values:
        return ""
    each = [f"{name} {value_text(value)}" for name, value in values.items()]
    first = next(iter(values))
    return (
        f"Of {' and '.join(judged)} alone: carried as tuned at the base, without a curve at any "
        f"other size, {'is' if len(each) == 1 else 'are'} {', '.join(each)}; "
        f"transfer.hyperparameter={first} judges {first}."
    )


def size_reason(size: SizeVerdict, unit: str) -> str:
    """Why one size has its answer."""
    shift, gap = size.shift_log2, size.loss_gap
    match size.code:
        case "within":
            return "shift and loss gap are within the thresholds"
        case "same_seeds":
            return (
                "all seeds lost the same to the last digit: the seed changes nothing, and no noise "
                "shows"
            )
        case "noise_unknown":
            return "too few seeds or finite runs to estimate the noise"
        case "failed" | "base_failed":
            whose = "of the base " * (size.code == "base_failed")
            runs = "run" if size.failed == 1 else "runs"
            return f"{size.failed} {runs} {whose}failed: that is no divergence"
        case "missed_optimum" if size.missed is not None:
            return missed_text(size.missed, unit)
        case "diverged":
            return "every run diverged"
        case "base_diverged":
            return "every run of the base diverged"
        case "diverges_at_base_optimum":
            return "training at the base's optimum diverges"
        case "gross" if size.gross is not None:
            at = f"at {2**size.gross.log2:.3g} "
            if math.isinf(size.gross.share):
                return f"{at}training diverges, where the base's own curve goes on"
            share = f"{100 * size.gross.share:.0f} %"
            return f"{at}it loses {share} more than at its best rate, beyond any noise"
        case "loses":
            return f"training at the base's optimum loses at least {gap.low:.4f} {unit}"
        case "shifts":
            least = max(0.0, shift.low, -shift.high)
            return f"the optimum shifts by at least {least:.2f} in log2"
        case "edge":
            return "the optimum is at the end of the curve or beyond"
        case "not_measured":
            return f"the base's optimum may lie {' or '.join(map(_past_text, size.past))}"
        case "may_lose":
            return f"training at the base's optimum may lose {gap.high:.4f} {unit}"
        case "may_shift":
            own = [
                f": the optimum {'here' if past.size == size.size else 'of the base'} may lie "
                f"{_past_text(past)}"
                for past in size.past
            ]
            return f"the shift may be {shift.low:+.2f} to {shift.high:+.2f} in log2{''.join(own)}"
    return size.reason


def _past_text(past: PastEnd) -> str:
    far, last, diverged = (2**x for x in (past.reach, past.last, past.diverged))
    way = "above" if past.diverged > past.last else "below"
    ends = f"the next run, at {diverged:.3g}, diverged"
    ends = ends if math.isfinite(past.diverged) else "there is no run"
    return f"as far as {far:.3g}: {way} {last:.3g} {ends}"


def missed_text(missed: MissedOptimum, unit: str = "nats") -> str:
    """What the base's own curve says against the value that is transferred."""
    loses = f"loses {missed.loss:.4f} {unit}" if math.isfinite(missed.loss) else "diverges"
    return (
        f"at the base itself, {missed.hyperparameter}=2^{missed.transferred_log2:.4g} {loses} "
        f"against the optimum 2^{missed.optimum_log2:.2f}"
    )


def suspects_text(verdict: Verdict) -> str:
    """What may be wrong where a transfer of eta fails, by the numbers that the verdict has."""
    at_end = [size.size for size in verdict.sizes if size.at_end]
    seeds = verdict.rule.seeds if verdict.rule else 0
    suspects = []
    if at_end:
        suspects.append(
            f"curves whose lowest point is at their end, at {names(at_end, verdict.axis)} "
            "(transfer.extend, transfer.span)"
        )
    if 0 < seeds < FEW_SEEDS and not any(size.gross for size in verdict.sizes):
        many = f"{seeds} seed{'s' * (seeds != 1)} a point"
        suspects.append(f"the noise of {many} (transfer.seeds={FEW_SEEDS})")
    if verdict.axis in ("width", "depth"):
        suspects.append("exponents that are off (`sweeper check` names the modules)")
        suspects.append("an eps that gradients shrink below (a smaller optimizer.eps)")
    return f"What to look at: {'; '.join(suspects)}." if suspects else ""


FEW_SEEDS = 4
"""With fewer seeds a point the noise may be at fault."""


def _worse_note(verdict: Verdict, unit: str) -> str:
    if verdict.worse is None:
        return ""
    size, loss = verdict.worse
    return (
        f"{describe_size(size, verdict.axis)} is worse than the base by {loss:.4f} {unit}, each at "
        "its optimum. A larger model should be better: `sweeper check` shows whether a module "
        "grows or vanishes with the size"
    )


def _cliffs(verdict: Verdict) -> str:
    sides = {
        True: "losses that jump beyond the range within 1 % count as those of runs that diverged: ",
        False: "a jump or a steep side, and intervals hold both: ",
    }
    remarks = {
        sure: [
            f"from {2.0**size.cliff.log2:.3g} on at {describe_size(size.size, verdict.axis)} "
            f"({size.cliff.below:.4g}, then {size.cliff.above:.4g})"
            for size in verdict.sizes
            if size.cliff is not None and size.cliff.sure == sure
        ]
        for sure in sides
    }
    return ". Also, ".join(sides[sure] + ", ".join(each) for sure, each in remarks.items() if each)


def advice_text(advice: Advice) -> str:
    """What would settle an open answer; empty where there is no advice."""
    texts, keys = advice_parts(advice)
    return texts + keys


def advice_parts(advice: Advice) -> tuple[str, str]:
    """The advice, and the settings at its end that mean something to a study alone."""
    overrides = " ".join(advice.overrides)
    where = names(advice.sizes, advice.axis)
    axis, last = advice.axis.replace("_", " "), max(advice.ladder, default=0)
    match advice.code:
        case "failed":
            return "mend what made runs fail, and run this again: it trains them anew", ""
        case "same_seeds":
            return "let a run's seed change its initial weights or its batches", ""
        case "missed_optimum" if advice.missed is not None:
            if advice.settings:
                return "plan with the base's optimum", f": {overrides}"
            name, better = advice.missed.hyperparameter, f"{advice.missed.optimum_log2:.2f}"
            return f"tune {name} again, with more runs: its optimum is at 2^{better}", ""
        case "edge":
            return f"extend the curves of {where}", ": raise transfer.extend"
        case "one_seed" if advice.seeds is not None:
            runs = counted(advice.seeds.runs, "more run")
            return f"train at least two seeds a point, {runs}", f": {overrides}"
        case "few_finite":
            finite = f"measure more points whose runs are all finite at {where}"
            return finite, ": lower transfer.step"
        case "not_measured":
            each = [
                f"{describe_size(size, advice.axis)} at {listed([f'{2**e:.3g}' for e in etas])}"
                for size, etas in advice.etas.items()
            ]
            return f"train {' and '.join(each)}", f": {overrides}"
        case "noisy":
            taken = [name for name in ("steps", "batch_size") if name not in advice.fixed]
            first, last_key = [f"train.{name}" for name in taken], "train.objective_window"
            raised = f"{', '.join(first)} or {last_key}" if first else last_key
            return (
                f"{hopeless_text(advice)}. Runs with less noise help",
                f": raise {raised}, or lower transfer.step",
            )
        case "seeds" if advice.seeds is not None:
            runs = counted(advice.seeds.runs, "more run")
            return f"{seeds_text(advice)}, {runs} on this ladder", f": {overrides}"
        case "correct":
            return "plan with the trend", f": {overrides}"
        case "longer_ladder":
            return f"a ladder to {axis} {last} {_tells(advice)}", f": {overrides}"
        case "more_seeds":
            to = f"a ladder to {axis} {last} with " if advice.ladder else ""
            return f"{to}{MORE_SEEDS} times the seeds {_tells(advice)}", f": {overrides}"
        case "longer_curves":
            return "measure the curves further to both sides", f": {overrides}"
        case "narrower":
            return f"a ladder to {axis} {last} would narrow it", f": {overrides}"
        case "less_noise":
            return "no ladder below it would tell with these errors: train runs with less noise", ""
    return "", ""


def _tells(advice: Advice) -> str:
    runs = f", with about {counted(sum(advice.runs.values()), 'more run')}" if advice.runs else ""
    return f"would likely tell{runs}"


def hopeless_text(advice: Advice) -> str:
    """Say that seeds are the wrong means, and at which sizes."""
    extra = max(advice.needed.values()) - advice.seeds_now
    where = names(advice.sizes, advice.axis)
    return f"do not count on seeds: {where} would take more than {extra} more a point"


def seeds_text(advice: Advice) -> str:
    """How many seeds more a point, and at which sizes."""
    each = ", ".join(
        f"{count - advice.seeds_now} at {describe_size(size, advice.axis)}"
        for size, count in advice.needed.items()
    )
    extra = max(advice.needed.values()) - advice.seeds_now
    return f"train about {counted(extra, 'more seed')} a point ({each})"


def names(sizes: Sequence[LadderSize], axis: str) -> str:
    """Sizes of a ladder, by name."""
    return listed_sizes([describe_size(size, axis) for size in sizes])


def listed_sizes(names: Sequence[str]) -> str:
    """Sizes in words, what they are sizes of once: width 128, 256 and 512."""
    if not names:
        return ""
    first, *others = names
    what = f"{first.rpartition(' ')[0]} "
    if all(re.fullmatch(f"{re.escape(what)}\\d+", name) for name in others):
        others = [name.removeprefix(what) for name in others]
    return " and ".join(filter(None, (", ".join([first, *others[:-1]]), *others[-1:])))


def worded_target(target: TargetAnswer, unit: str = "nats") -> TargetAnswer:
    """The answer with its sentence and advice in words."""
    if not target.code:
        return target
    return replace(target, sentence=target_text(target, unit), todo=advice_text(target.advice))


def target_text(target: TargetAnswer, unit: str, planned: str = "the plan's eta") -> str:
    """What is expected at the target; `planned` is what its optimum is measured from."""
    name, answer = target.axis.replace("_", " "), SAID[target.answer]
    match target.code:
        case "within":
            return f"At {name} {target.size}, within the ladder, the transfer {answer}"
        case "joint_within" | "joint_as_on_ladder" | "joint_beyond":
            why = {
                "joint_within": "within the ladder",
                "joint_as_on_ladder": "as on the ladder",
                "joint_beyond": (
                    "nothing is extrapolated from a ladder along which several sizes change"
                ),
            }[target.code]
            return f"At the target the transfer {answer}, {why}"
    where = f"At {name} {target.size}, {target.times:.3g} times {_further(target)} than measured,"
    if target.code in ("as_on_ladder", "too_few_optima"):
        few = "too few sizes have an optimum"
        why = few if target.code == "too_few_optima" else "as on the ladder"
        return f"{where} the transfer {answer}, {why}"
    expected = _expected(target, unit, planned)
    sentence = f"{where} the transfer {answer}: {expected}"
    if (missed := target.missed) is not None:
        sentence += (
            f"; the others predict {missed.predicted.low:+.2f} to {missed.predicted.high:+.2f} "
            f"(log2) at {name} {missed.size}, where the optimum is {missed.measured:+.2f}"
        )
    return sentence


def _further(target: TargetAnswer) -> str:
    comparatives = {"width": ("wider", "narrower"), "depth": ("deeper", "shallower")}
    return comparatives.get(target.axis, ("more", "less"))[not target.wider]


def _expected(target: TargetAnswer, unit: str, planned: str) -> str:
    off, gap, answer = target.off_log2, target.loss_gap, target.answer
    may = "may lie" if answer == "cannot say yet" else "lies"
    sentence = f"its optimum {may} {off.low:+.2f} to {off.high:+.2f} octaves from {planned}"
    if answer == "fails" and math.isfinite(gap.low):
        return f"{sentence}, which costs at least {gap.low:.4f} {unit}"
    if not math.isfinite(gap.high):
        return f"{sentence}, beyond what the widest curve measured"
    costs = "may cost" if answer == "cannot say yet" else "costs at most"
    return f"{sentence}, which {costs} {gap.high:.4f} {unit}"


NOTHING = 5e-5
"""A loss that is none where losses have four digits."""


def worded_trend(trend: Trend, unit: str = "nats") -> Trend:
    """The trend with its prior, and why it is followed or not, in words."""
    if trend.belief is None:
        return trend
    if len(trend.sizes) < MIN_TREND_SIZES:
        reason = f"{len(trend.sizes)} sizes cannot show a trend; it takes {MIN_TREND_SIZES}"
    elif trend.warranted:
        reason = "the prediction is nearer to the optimum than the transferred value is"
    else:
        gain = trend.gain
        reason = "no curve reaches far enough to tell what it would save"
        if math.isfinite(gain.high - gain.low):
            saved = f"{gain.value:z.4f} {unit} ({gain.low:z.4f} to {gain.high:z.4f})"
            reason = f"it would save {saved}, and so may cost instead"
        if abs(gain.high) < NOTHING:
            reason = "it would save nothing"
    return replace(trend, reason=reason, prior=BELIEFS[trend.belief])


def exponent_text(exponent: Exponent) -> str:
    """A measured exponent beside those that laws print, in a line."""
    measured = exponent.measured
    text = (
        f"{exponent.direction}: {measured.value:+.2f} [{measured.low:+.2f}, {measured.high:+.2f}]"
    )
    for heading, side in (("inside: ", True), ("outside: ", False)):
        laws = [f"{p.law} {p.exponent:+.2f}" for p in exponent.published if p.inside is side]
        text += f"; {heading}{', '.join(laws)}" if laws else ""
    return text


def ladder_end(ending: Ending | None) -> str:
    """Why a ladder is trained no further; empty before its end."""
    if ending is None:
        return ""
    there = "all" if ending.there == ending.runs else f"{ending.there}"
    were = f", {there} of which were there" * bool(ending.there)
    looks = f"{ending.looks} time{'s' * (ending.looks != 1)}"
    spent = f"{ending.runs} runs{were}, looked at {looks}"
    match ending.ended:
        case "settled":
            sentence = f"Settled with {spent}"
        case "budget":
            limit = f"the budget of {ending.budget} runs, or of {LOOKS} looks, is spent"
            if ending.timed and ending.looks < LOOKS:
                limit = f"the hours are spent, which have room for about {ending.budget} such runs"
            sentence = f"Not settled with {spent}: {limit}"
        case "hopeless":
            sentence = f"Not settled with {spent}, and no number of these runs would likely do"
            if ending.likely > 0:
                room = max(0, ending.budget - ending.runs)
                sentence = (
                    f"Not settled with {spent}, and no affordable number would do: about "
                    f"{ending.likely} more are needed, and the budget has {room}"
                )
        case "stuck":
            sentence = f"Not settled with {spent}, and no more of these runs would do"
    todo = advice_text(ending.advice)
    todo += ", and not tell; longer runs, which have less noise, may" * (
        ending.advice.code == "narrower"
    )
    return f"{sentence}: {todo}" if todo else sentence


def ladder_progress(settling: Settling) -> str:
    """The last look in a line: every size's answer, runs so far, those of the next round."""
    look: Look = settling.looks[-1]
    parts = [
        f"{describe_size(size.size, judged.verdict.axis)}: {size.answer}"
        for judged in look.judged
        for size in judged.verdict.sizes
        if not size.is_base or size.answer != "base"
    ]
    parts += [
        f"at the target: {judged.verdict.target.answer}"
        for judged in look.judged
        if judged.verdict.target is not None
    ]
    remaining = f", then {look.likely} more" if look.likely else ""
    return f"{look.runs} runs{remaining}; {', '.join(parts)}"
