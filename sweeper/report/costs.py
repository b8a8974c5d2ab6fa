"""What work would take, before it is begun: tables of costs, and what is said beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.command.command_runner import Command
from sweeper.command.metrics import describe_source
from sweeper.config.settings import Settings
from sweeper.decide.settle import SEEDS
from sweeper.records import to_json
from sweeper.report import console
from sweeper.report.sections import Commands, Item, Sentence
from sweeper.report.sentences_transfer import ladder_end, ladder_progress
from sweeper.stats.ladder import JOINT_AXIS, describe_size
from sweeper.sweep.ladder_cost import LadderCost, SizeCost
from sweeper.sweep.settled_ladder import SettledLadder
from sweeper.verbs.transfer import LadderCostAnswer


def ladder_items(answer: LadderCostAnswer) -> list[Item]:
    """A row a size of the ladders, what they train, and the command of a trial."""
    settings, cost = answer.settings, answer.cost
    rule = settings.transfer
    rows = [(_size_name(settings, size), size.cost) for size in cost.sizes]
    # One size whose time nobody knows leaves that of all of them unknown.
    if math.isnan(sum(size.cost.seconds for size in cost.sizes)):
        time = "not known here"
    elif settings.raw["runner"].get("command"):
        time = (
            "by the runs that the study has finished, as many at once; of a size that has none, "
            "a guess by the root of width^2 x depth x tokens"
        )
    else:
        time = "measured here"
    ranges = {(f"{v[0]:g}", f"{v[-1]:g}") for size in cost.sizes if (v := size.values_log2)}
    where = "around what the law plans there"  # for each size another range
    if len(ranges) == 1:
        where = "from {} to {}".format(*ranges.pop())
    if cost.settle is not None:
        sentence = settled_text(cost.settle, cost.missing)
        facts = f"{sentence} Values of log2 {rule.hyperparameter} {where}. Time: {time}."
    else:
        facts = (
            f"Each size: {len(cost.sizes[0].values_log2)} values of log2 {rule.hyperparameter}, "
            f"{rule.step:g} apart, {where}, {rule.seeds} seed{'s' * (rule.seeds != 1)} each; a "
            f"curve whose lowest point is at its end grows there by up to {rule.extend}. Time: "
            f"{time}."
        )
    facts += branches_text(cost.steps, cost.branches)
    if math.isfinite(cost.share):
        share, of = (cost.share, "times") if cost.share >= 1 else (100 * cost.share, "% of")
        facts += f" All of it takes {share:.2g} {of} the compute of the target's run."
    items = console.dry_run("This would train", "size", rows, "runs", facts)
    if cost.command:
        items += trial_command(settings, cost.command, at="at the base's defaults")
    return items


def ladder_document(answer: LadderCostAnswer) -> dict[str, Any]:
    """The same in numbers."""
    settings, cost = answer.settings, answer.cost
    rule, settle, missing = settings.transfer, cost.settle, cost.missing
    begins: dict[str, Any] = {}
    if settle is not None:
        sentence = settled_text(settle, missing)
        begins = {"sentence": sentence, "runs": missing, "most": settle.budget}
    return {
        "study": settings.name,
        "share_of_target": cost.share,
        **({"settle": begins} if begins else {}),
        "branches": {"runs": len(cost.branches), "steps": sum(cost.branches.values())},
        "hyperparameter": rule.hyperparameter,
        "seeds": rule.seeds if settle is None else SEEDS,
        "sizes": [_size_record(size) for size in cost.sizes],
        **({"command": cost.command} if cost.command else {}),
    }


def ladder_answer(cost: LadderCost) -> str:
    """How much is to be trained, in a sentence."""
    missing, runs, settle = cost.missing, cost.runs, cost.settle
    if settle is None:
        return f"{missing} of {runs} run{'s' * (runs != 1)} are to be trained; nothing was written."
    next_round = " next" if settle.looks else " to begin with"
    trained = f"{missing} run{'s' * (missing != 1)} are to be trained{next_round * bool(missing)}"
    return f"{trained}; nothing was written."


def _size_name(settings: Settings, cost: SizeCost) -> str:
    size, axis = cost.size, cost.axis
    if size == settings.ladder_base:
        return f"{describe_size(size, axis)} (base)"
    if axis == JOINT_AXIS:
        return str(size)
    return describe_size(size, axis) + f", {size.steps} steps" * (settings.steps_of is not None)


def _size_record(size: SizeCost) -> dict[str, Any]:
    cost = to_json(size.cost)
    planned = {"size": to_json(size.size), "values_log2": size.values_log2, "runs": size.runs}
    return {**planned, "missing": cost.pop("trials"), **cost}


def settled_text(ladder: SettledLadder, missing: int) -> str:
    """What ladders train next and may take."""
    most = f"at most {ladder.budget} runs in all"
    if ladder.hours is not None:
        most += f" and {ladder.hours:g} hours"
    if not ladder.looks:
        count, there = missing, len(ladder.asked) - missing
        have = f", of which it has {there}" * bool(there)
        count += there
        return (
            f"To settle it, it begins with {count} runs at {len(ladder.started)} sizes, its ends"
            f"{have}, and goes on until it is settled, {most}."
        )
    if missing:
        return (
            f"To settle it, the runs that are there are looked at: {ladder_progress(ladder)}. "
            f"It goes on until it is settled, {most}."
        )
    return (
        f"To settle it nothing is trained: {ladder_progress(ladder)}. {ladder_end(ladder.ending)}."
    )


def branches_text(total: int, branches: Mapping[str, int]) -> str:
    """What branches save of `total` steps that are missing, to append; empty without any."""
    if not branches:
        return ""
    return (
        f" {len(branches)} runs branch off longer ones where they begin to decay: "
        f"{sum(branches.values()) / total:.0%} of all {total:,} steps are saved, and not counted "
        "here."
    )


def trial_command(settings: Settings, command: Sequence[str], *, at: str) -> list[Item]:
    """A user's command for a trial, where its losses are looked for, how trials share a machine."""
    losses = describe_source(settings.raw["runner"].get("metric"))
    items: list[Item] = [
        Commands(f"The command of a trial, {at}:", [command]),
        Sentence(f"Its losses: {losses}."),
    ]
    runner = settings.runner
    if isinstance(runner, Command) and (how := runner.sharing(settings.launcher)):
        items.append(Sentence(f"On this machine: {how}."))
    return items
