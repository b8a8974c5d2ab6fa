"""Ladders that are trained until they are settled, replayed against the results so far."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any

from sweeper.config.settings import Experiment
from sweeper.decide.settle import Judge, Run, Settling, grids_of
from sweeper.stats.ladder import LadderSize
from sweeper.sweep.study_replay import Lookup, Missing, planned_log2
from sweeper.trial import Log2Hps, Result, Trial


class SettledLadder(Settling):
    """A `Settling` of a study's trials, of which `slots` are trained at a time.

    `began_with` are the keys of those that were there, `hours` what was allowed for others.
    """

    def __init__(
        self,
        trial: Callable[[LadderSize, float, int], Trial],
        began_with: Sequence[str],
        hours: float | None,
        slots: int,
        *args: Any,
        **kw: Any,
    ):
        super().__init__(*args, **kw)
        self._trial, self.began_with, self.hours, self.slots = trial, began_with, hours, slots

    @property
    def goes_on(self) -> bool:
        """Whether any of its own runs has ended, beside those that were there."""
        own = (run for run in self.asked if self._measured(*run) is not None)
        return not {*self.began_with}.issuperset(self._trial(*run).key for run in own)

    def trials(self) -> Missing:
        """The trials that the round lacks; see `Settling.missing`."""
        return [self._trial(*run) for run in self.missing()]


def settle_ladder(
    experiment: Experiment,
    best_log2: Log2Hps,
    lookup: Lookup,
    judge: Judge,
    budget: int | None = None,
    hours: float | None = None,
    *,
    done: Iterable[Result] = (),
    began_with: Collection[str] | None = None,
) -> SettledLadder:
    """The ladders of the experiment, trained until they are settled; see `Settling`.

    As in a ladder of a fixed design, a size's line is laid around what is planned there, on the
    grid of the base's best, and its runs have the hyperparameters that its plan would have.

    `done` are the study's results: what they hold of these ladders is the first look. What is
    trained follows from it, so a command that goes on must take the same runs for it: `began_with`
    has their keys, of the command before. They count while all that is done is theirs or follows
    from them; other runs make another beginning.
    """
    settings = experiment.settings
    rule, name = settings.transfer, settings.transfer.hyperparameter
    workers = getattr(settings.launcher, "workers", 1)
    slots = workers if isinstance(workers, int) else 1
    ladders = settings.ladders()

    @cache
    def middle(size: LadderSize) -> Log2Hps:
        return rule.around(best_log2, planned_log2(experiment, size, best_log2))

    def place(size: LadderSize) -> tuple[float, float]:
        planned = planned_log2(experiment, size, best_log2)[name] - best_log2[name]
        return middle(size)[name], planned

    @cache
    def trial(size: LadderSize, value: float, seed: int) -> Trial:
        hps = Log2Hps({**middle(size), name: value})
        return experiment.trial(size, hps, seed, "validate")

    def loss(size: LadderSize, value: float, seed: int) -> float | None:
        result = lookup(trial(size, value, seed).key)
        return None if result is None else result.objective

    sizes = {experiment.spec(size): size for of_axis in ladders.values() for size in of_axis}

    def run_of(result: Result) -> Run | None:
        """Which run of these ladders a result is; None of what is none, or has no loss."""
        size, value = sizes.get(result.trial.spec), result.trial.log2_hps.get(name)
        if size is None or value is None:
            return None
        run = (size, value, result.trial.seed)
        if trial(*run).key != result.key:  # other hyperparameters differ
            return None
        objective = loss(*run)
        return None if objective is None or math.isnan(objective) else run

    runs = {result.key: run for result in done if (run := run_of(result)) is not None}

    def begun(keys: Collection[str]) -> SettledLadder:
        beginning = {key: run for key, run in runs.items() if key in keys}
        grids = grids_of(beginning.values(), rule)
        there = {run for size, grid in grids.items() for run in grid.of(size)}

        def affordable(all_runs: Sequence[Run]) -> int:
            """How many further runs `hours` allow, by the time that those so far took."""
            assert hours is not None
            own = [run for run in all_runs if run not in there]
            looked_up = (lookup(trial(*run).key) for run in own or all_runs)
            results = [result for result in looked_up if result is not None]
            mean = sum(result.seconds for result in results) / max(1, len(results))
            return len(there) + int(hours * 3600 * slots / mean) if mean > 0 else sys.maxsize

        return SettledLadder(
            trial,
            sorted(beginning),
            hours,
            slots,
            rule,
            ladders,
            settings.ladder_base,
            loss,
            judge,
            budget=budget,
            affordable=None if hours is None else affordable,
            place=place,
            before=grids,
        )

    if began_with is not None:
        ladder = begun(began_with)
        ladder.missing()
        if {*runs.values()} <= ladder.asked | {runs[key] for key in ladder.began_with}:
            return ladder
    return begun(runs)
