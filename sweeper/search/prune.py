"""Early stopping: which trials of a batch need not train to their end.

The rules are those of Optuna's median and successive halving, asked at a few rungs among all trials
of one specification and seed that reached the rung. What a line search rests on is kept whatever
they say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal, get_args

from sweeper.errors import ConfigError
from sweeper.trial import Choice, Log2Hps, Result, Trial

PrunerKind = Literal["none", "median", "halving"]

RUNG_FRACTIONS: Mapping[str, tuple[float, ...]] = {
    "none": (),
    "median": (0.25, 0.5, 0.75),
    "halving": (0.125, 0.25, 0.5),
}
"""Where trials are compared, as fractions of the steps after the warm-up."""

MIN_TRIALS_AT_RUNG = 5
"""Fewer trials at a rung than this (Optuna's own number for its median) stop none of them."""

HALVING_FACTOR = 2
"""Successive halving keeps one trial in this many at every rung."""

KEPT_NEIGHBOURS = 2
"""Points of a line, on either side of a best one at the rung, that are kept."""

KEPT_DISTANCE = 2.0
"""Points of a line within this of a best one at the rung, in log2, are kept."""

LOSS_TOLERANCE = 0.01
"""Points of a line whose loss is within this fraction of the least at the rung are best ones."""


@dataclass(frozen=True, kw_only=True)
class RungLosses:
    """A trial at the rungs it reached: its smoothed losses there, in the rungs' order."""

    log2_hps: Log2Hps
    seed: int
    losses: tuple[float, ...]
    choices: Mapping[str, Choice] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pruner:
    """Decides at rungs, by the losses there of other trials of the same specification.

    `steps`, `warmup` and `window` are the specification's: the run, its warm-up and the stretch
    over which losses are averaged, in steps. `others` are its other trials: those trained before,
    and with no losses those still to be trained, which only tell what lies on a line.
    """

    kind: PrunerKind
    steps: int
    warmup: int
    window: int
    others: tuple[RungLosses, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in (kinds := get_args(PrunerKind)):
            raise ConfigError("search.prune", self.kind, f"one of {', '.join(kinds)}")

    @classmethod
    def from_trials(
        cls,
        results: Iterable[Result],
        planned: Iterable[Trial] = (),
        *,
        kind: PrunerKind,
        steps: int,
        warmup: int,
        window: int,
    ) -> Pruner:
        """A pruner that knows `results` and the trials `planned`, all of one specification."""
        pruner = cls(kind=kind, steps=steps, warmup=warmup, window=window)
        trials = [(result.trial, losses_at(result, pruner.rungs, window)) for result in results]
        trials += [(trial, ()) for trial in planned]
        others = (
            RungLosses(log2_hps=t.log2_hps, seed=t.seed, losses=each, choices=t.choices)
            for t, each in trials
        )
        return replace(pruner, others=tuple(others))

    @property
    def rungs(self) -> tuple[int, ...]:
        """The steps of the rungs, rising; the warm-up and one window lie before them."""
        # A smoothed loss is a mean over `window` steps, which must lie behind the rung.
        first = max(self.warmup, self.window)
        fractions = RUNG_FRACTIONS[self.kind]
        steps = {first + math.ceil(fraction * (self.steps - first)) for fraction in fractions}
        return tuple(sorted(step for step in steps if step < self.steps))

    def trials_to_stop(
        self, step: int, losses: Mapping[str, float], trials: Sequence[Trial]
    ) -> set[str]:
        """Keys of the trials to stop, of those in `losses` (key: smoothed loss at `step`).

        `trials` are the batch's; only those in `losses` are still training. A trial whose loss is
        not finite is never named: it has diverged, which is another thing.
        """
        rung, keys = self.rungs.index(step), set[str]()
        for seed in {trial.seed for trial in trials}:
            batch = {trial.key: trial for trial in trials if trial.seed == seed}
            training = {key: losses[key] for key in batch if key in losses}
            keys |= self._to_stop_of_seed(rung, training, batch, seed)
        return keys

    def _to_stop_of_seed(
        self, rung: int, losses: Mapping[str, float], batch: Mapping[str, Trial], seed: int
    ) -> set[str]:
        """`trials_to_stop` among the trials of one seed, which see the same batches."""
        at_rung = [
            (other, other.losses[rung] if rung < len(other.losses) else None)
            for other in self.others
            if other.seed == seed
        ]
        other_losses = [loss for _, loss in at_rung if loss is not None]
        if not losses or len(other_losses) + len(losses) < MIN_TRIALS_AT_RUNG:
            return set()
        trials: list[AtRung] = [*at_rung, *((t, losses.get(key)) for key, t in batch.items())]
        stop = should_stop(self.kind, other_losses, list(losses.values()))
        return {
            key
            for (key, loss), worse in zip(losses.items(), stop, strict=True)
            if worse
            and math.isfinite(loss)
            # Kept where it may be the optimum of any line that it lies on.
            and not any(
                self._is_near_optimum(batch[key].log2_hps[name], line)
                for name, line in _lines_through(batch[key], trials)
            )
        }

    @staticmethod
    def _is_near_optimum(value: float, line: Mapping[float, float]) -> bool:
        """Whether `value` may yet be the optimum of `line` (log2 value: loss) or next to it.

        A point whose loss is within `LOSS_TOLERANCE` of the least may be the optimum, and what
        lies around it is kept: else the search would end beside an optimum that it stopped. A
        line of fewer than three points at the rung says nothing yet.
        """
        if len(line) < 3:
            return True
        values, least = sorted(line), min(line.values())
        best = [v for v in values if line[v] <= least + LOSS_TOLERANCE * abs(least)]
        return any(
            abs(values.index(value) - values.index(v)) <= KEPT_NEIGHBOURS
            or abs(value - v) <= KEPT_DISTANCE + 1e-9
            for v in best
        )


def losses_at(result: Result, rungs: Sequence[int], window: int) -> tuple[float, ...]:
    """The smoothed losses of a finished trial at the rungs it reached, from its curve.

    Each is the mean over the `window` steps before the rung, the curve's stretches weighted by
    the steps they share with it. A diverged trial has +inf at the rungs after its end.
    """
    if result.status == "failed" or not result.curve:
        return ()
    # At later rungs a diverged trial has lost; of a pruned one nothing is known there.
    reached = [_mean_loss(result, rung - window, rung) for rung in rungs if rung <= result.steps]
    missing = len(rungs) - len(reached) if result.status == "diverged" else 0
    return tuple(reached + [math.inf] * missing)


def _mean_loss(result: Result, start: int, end: int) -> float:
    total, begin = 0.0, 0
    # The curve's stretches are equal but for one step: the first ones take what is left over.
    longer = result.steps % len(result.curve)
    for index, loss in enumerate(result.curve):
        stop = begin + result.steps // len(result.curve) + (index < longer)
        overlap = min(stop, end) - max(begin, start)
        if overlap > 0:
            total += overlap * loss
        begin = stop
    return total / (end - start)


AtRung = tuple[Trial | RungLosses, float | None]
"""A trial, and its loss at a rung if it has one."""


def _lines_through(
    trial: Trial, trials: Sequence[AtRung]
) -> Iterator[tuple[str, dict[float, float]]]:
    """The lines through `trial`: a hyperparameter, and the losses at the rung by its value.

    A line is all `trials` of the same choices that differ from it in one hyperparameter alone,
    those included that are still to be trained or were stopped before; by itself it is none.
    """
    lines: dict[str, dict[float, float]] = {}
    loss_here: float | None = None
    hps = trial.log2_hps
    for other, loss in trials:
        if other.choices != trial.choices:
            continue
        differing = [name for name in hps if abs(other.log2_hps[name] - hps[name]) > 1e-9]
        if not differing:
            loss_here = loss if loss_here is None else loss_here
        elif len(differing) == 1:
            line = lines.setdefault(differing[0], {})
            if loss is not None:
                line[other.log2_hps[differing[0]]] = loss
    for name, line in lines.items():
        yield name, line if loss_here is None else line | {hps[name]: loss_here}


def should_stop(kind: PrunerKind, others: Sequence[float], losses: Sequence[float]) -> list[bool]:
    """Whether the trials with `losses` at a rung are worse than those that go on.

    All of them, and `others`, have reached it. `median`: above the median of all. `halving`: not
    among the best one in HALVING_FACTOR. These are Optuna's MedianPruner and
    SuccessiveHalvingPruner. Optuna is made for trials that come one after the other, and compares
    a trial with the past alone. Trials of a batch reach a rung together: each is compared with all.
    """
    if kind == "none" or not losses:
        return [False] * len(losses)
    ranked = sorted([*others, *losses])
    # Of an odd number the smaller half goes on, of a single trial that one.
    best = ranked[max(1, len(ranked) // HALVING_FACTOR) - 1]
    limit = median(ranked) if kind == "median" else best
    return [loss > limit for loss in losses]
