"""What a table of runs says, in sentences: its record has them beside the numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sweeper.decide.ladder_verdict import WORST_FIRST, SizeVerdict, TargetAnswer, Verdict
from sweeper.errors import SHELL, Keyword, Spelling, spelled
from sweeper.evidence.judge.decision import SIDES, UNDECIDED, NextReason, NextRuns, TableVerdict
from sweeper.evidence.runs.sizes import axis_name, name_size
from sweeper.report.sentences_transfer import (
    SAID,
    advice_parts,
    hopeless_text,
    listed_sizes,
    seeds_text,
    target_text,
    worded,
    worded_trend,
)
from sweeper.stats.estimate import Estimate
from sweeper.table import counted

WHY: dict[NextReason, str] = {
    "edge": "the optimum is not bracketed",
    "one_seed": "one seed shows no noise",
    "sizes": "a ladder takes sizes",
    "no_noise": "nothing shows the noise",
    "seeds": "its interval reaches beyond a threshold",
    "longer_ladder": "a longer ladder",
    "errors": "smaller errors",
    "finer": "a finer grid",
    "longer_curves": "longer curves",
    "past_end": "an optimum may lie past the curve's end",
}


def worded_judged(judged: TableVerdict, spelling: Spelling = SHELL) -> TableVerdict:
    """The verdict on a table with all that its record says in words."""
    if not judged.finding:
        return judged
    if judged.ladders:
        return replace(
            judged,
            sentences=(several_text(judged),),
            ladders=tuple(worded_judged(each, spelling) for each in judged.ladders),
            notes=tuple(spelled(remark, spelling) for remark in judged.remarks),
        )
    next_runs = tuple(
        replace(proposed, why=WHY.get(proposed.code, proposed.why)) for proposed in judged.next_runs
    )
    judged = replace(judged, next_runs=next_runs)
    axes = tuple(
        worded(verdict, judged.unit) if judged.ours else plain_verdict(judged, verdict, spelling)
        for verdict in judged.axes
    )
    bits = [f"{judged.bits!r} is in bits per byte, and so is what is lost"]
    return replace(
        judged,
        axes=axes,
        trend=judged.trend and worded_trend(judged.trend, judged.unit),
        sentences=tuple(_sentences(judged)),
        ends=tuple(_ends(judged)),
        notes=(
            *(spelled(remark, spelling) for remark in judged.remarks),
            *(bits if judged.bits else ()),
        ),
    )


def key_text(judged: TableVerdict) -> str:
    """The sizes that a ladder has beside its own."""
    return ", ".join(f"{axis_name(role)} {value}" for role, value in judged.key.items())


def several_text(judged: TableVerdict) -> str:
    """How many ladders have which answer."""
    counts = Counter(verdict.answer for verdict in judged.ladders)
    verbs = {"holds": ("holds", "hold"), "fails": ("fails", "fail")}
    of_open = SAID["cannot say yet"]
    answers = [
        f"{counts[answer]} {verbs.get(answer, (of_open, of_open))[counts[answer] > 1]}"
        for answer in WORST_FIRST[::-1]
        if counts[answer]
    ]
    keys = " and ".join(axis_name(role) for role in judged.ladders[0].key)
    target = f", to {axis_name(judged.axis)} {judged.to}" if judged.to is not None else ""
    return (
        f"{len(judged.ladders)} ladders over {axis_name(judged.axis)}, one for each value "
        f"of {keys}{target}: {', '.join(answers)}"
    )


def value_text(log2: float, *, plain: bool = True) -> str:
    """A learning rate as the table has it: 0.05, or 2^-4.3."""
    return f"{2.0**log2:.3g}" if plain else f"2^{log2:.4g}"


def runs_text(next_runs: Sequence[NextRuns]) -> str:
    """How many runs, of which sizes, in a clause; empty without any."""
    if not next_runs:
        return ""
    sizes = dict.fromkeys(
        " ".join(f"{axis_name(key)} {value}" for key, value in proposed.size.items())
        for proposed in next_runs
    )
    return f"{_count_text(next_runs)}, at {listed_sizes([*sizes])}"


def _count_text(next_runs: Sequence[NextRuns]) -> str:
    total = sum(proposed.runs * len(proposed.etas) for proposed in next_runs)
    return f"{counted(total, 'run')} more"


def _sentences(judged: TableVerdict) -> list[str]:
    if judged.finding != "one_size":
        return []
    axis = axis_name(judged.axis)
    only = name_size(judged.curves[0].size, judged.axis)
    sentence = [f"There is one {axis}, so nothing transfers: {only} alone"]
    noise = "There is one seed a cell: nothing shows the noise"
    return sentence if judged.noise else [*sentence, noise]


def _ends(judged: TableVerdict) -> list[str]:
    places = dict[str, list[str]]()
    for edge in judged.edges:
        where = value_text(edge.log2, plain=judged.plain) + ", the only value" * (not edge.side)
        name = name_size(edge.size, judged.axis)
        places.setdefault(f"{SIDES[edge.side]} {where}", []).append(name)
    sentences = [
        f"the optimum at {listed_sizes(names)} is not bracketed: it lies {place}"
        for place, names in places.items()
    ]
    if len(places) > 1:
        sentences.append(
            f"{len(judged.edges)} of {len(judged.curves)} curves have their best in the first or "
            "last value"
        )
    return sentences


def plain_verdict(judged: TableVerdict, verdict: Verdict, spelling: Spelling = SHELL) -> Verdict:
    """The verdict in words without the settings of a study, and what a lack of noise means."""
    no_noise = verdict.answer == UNDECIDED and not judged.noise and verdict.advice.code != "edge"

    def plain_size(size: SizeVerdict) -> SizeVerdict:
        if size.code == "noise_unknown" and not judged.noise:
            return replace(size, reason="nothing shows the noise: there is one run a cell")
        return size

    todo = _plain_advice(judged, verdict, spelling, no_noise=no_noise)
    worded_verdict = worded(verdict, judged.unit)
    target = worded_verdict.target and _plain_target(judged, worded_verdict.target)
    sizes = tuple(map(plain_size, worded_verdict.sizes))
    return replace(worded_verdict, todo=todo, sizes=sizes, target=target)


def _plain_advice(
    judged: TableVerdict, verdict: Verdict, spelling: Spelling, *, no_noise: bool
) -> str:
    advice, runs = verdict.advice, runs_text(judged.next_runs)
    if no_noise:
        key = spelling.keyword(Keyword("noise", ...))
        return (
            f"nothing shows the noise: {runs} would (the cells are listed), or {key} with the "
            f"standard deviation of a run in {judged.unit}"
        )
    todo, _ = advice_parts(advice)
    if runs and advice.code == "seeds":
        # The list has the cells near the optimum alone, a study's ladder all.
        todo = seeds_text(advice)
    if todo and judged.rounded and any(size.code == "same_seeds" for size in verdict.sizes):
        return f"losses with more digits: rounded to {judged.rounded:g}, seeds cannot be told apart"
    if runs and advice.code == "noisy":
        # What the list has: a finer grid. Runs with less noise are no cells of it.
        return (
            f"{hopeless_text(advice)}. A finer grid helps ({runs}), and so do runs with less noise "
            "(more steps, larger batches)"
        )
    if todo and runs and verdict.answer == UNDECIDED:
        # The advice names the sizes itself where their curves are too short.
        is_named = advice.code in ("edge", "not_measured")
        todo += f" ({_count_text(judged.next_runs) if is_named else runs})"
    return todo


def _plain_target(judged: TableVerdict, target: TargetAnswer) -> TargetAnswer:
    if target.code == "wrong_rate" and judged.predicted is not None:
        return replace(target, sentence=_wrong_rate(judged, judged.predicted, target))
    todo, _ = advice_parts(target.advice)
    if target.advice.code == "correct":
        todo = "train with the learning rate that the trend predicts"
    sentence = target.sentence
    if target.code:
        sentence = target_text(target, judged.unit, planned="the transferred learning rate")
    return replace(target, todo=todo, sentence=sentence)


def _wrong_rate(judged: TableVerdict, best: Estimate, target: TargetAnswer) -> str:
    asked, off, gap = value_text(judged.transferred_log2_eta), target.off_log2, target.loss_gap
    side, axis = "below" if off.value > 0 else "above", axis_name(target.axis)
    costs = (
        f"about {gap.value:.2g} {judged.unit}"
        if math.isfinite(gap.value)
        else "the run: it diverges"
    )
    return (
        f"At {axis} {target.size}, no: the best is predicted at {range_text(best)}; "
        f"{asked} lies {abs(off.value):.1f} octaves {side} it and costs {costs}"
    )


def range_text(estimate: Estimate) -> str:
    """A learning rate of which log2 is given, with its interval."""
    low, high = value_text(estimate.low), value_text(estimate.high)
    return f"{value_text(estimate.value)} ({low} to {high})"


def gap_text(gap: Estimate, unit: str) -> str:
    """A loss gap, with its interval."""
    if not math.isfinite(gap.high):
        return f"{gap.value:.4f} {unit} or more, beyond what was measured"
    return f"{gap.value:.4f} {unit} ({max(0.0, gap.low):.4f} to {gap.high:.4f})"
