"""Horizons that share their trunk, one run up to where the shorter ones decay.

It is so under a schedule with a stable part, and a warm-up of as many steps. One job trains such
trials of all horizons, the longest first. It is saved where each of the others begins to decay, and
these start there. A branch is a run from zero bit for bit: weights, moments, losses and all that is
random are those of the step of the trunk, in the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from sweeper.schedule import built_in
from sweeper.trial import Trial, digest


@dataclass(frozen=True, kw_only=True)
class Branching:
    """What a run of batched trials has to do with those of other horizons.

    It is saved when it comes to the steps `saved_at`, and at its end where it `keeps_end`, so that
    what follows in its job is not undone by a kill. It `starts_from` a step of other trials.
    """

    saved_at: tuple[int, ...] = ()
    keeps_end: bool = False
    starts_from: tuple[tuple[Trial, ...], int] = ((), 0)


NO_BRANCHES = Branching()


def trunk_key(trial: Trial) -> str:
    """Equal for trials that differ in their horizon alone; "" where no other run can be shared."""
    schedule = built_in(trial.spec.train.schedule)
    if schedule is None or not schedule.steady or trial.measurement:
        return ""
    spec = trial.spec
    # All that may differ is blanked before the key is made; the steps of the warm-up go in beside
    # it.
    train = replace(spec.train, steps=1, warmup=0.0)
    same = replace(trial, spec=replace(spec, train=train))
    return digest([same.key, trial.train.span.warmup])


def horizons(trials: Sequence[Trial]) -> list[tuple[Trial, ...]]:
    """A job's trials as batches of one specification, in their order."""
    groups = groupby(trials, key=lambda trial: trial.spec.digest)
    return [tuple(group) for _, group in groups]


def branchings(batches: Sequence[tuple[Trial, ...]]) -> list[Branching]:
    """What each batch of a job saves and starts from; the first is the longest."""
    trunk, *others = batches
    starts = [shared_steps(trunk, batch) for batch in others]
    if not any(starts):
        return [NO_BRANCHES] * len(batches)
    first = Branching(saved_at=tuple(sorted({*starts} - {0})), keeps_end=True)
    return [first, *(Branching(keeps_end=True, starts_from=(trunk, step)) for step in starts)]


def shared_steps(trunk: Sequence[Trial], batch: Sequence[Trial]) -> int:
    """The steps at which `batch` can start from `trunk`: until it decays; 0 where it cannot."""
    keys = [trunk_key(trial) for trial in trunk]
    if "" in keys or keys != [trunk_key(trial) for trial in batch]:
        return 0
    pairs = [(long.train, short.train) for long, short in zip(trunk, batch, strict=True)]
    step = min(short.decay_start for _, short in pairs)
    # A batch's trials may differ in their warm-up: until all of them would be elsewhere.
    spans = {(long.span, short.span): (long, short) for long, short in pairs}.values()
    steps = range(step)
    same = all(long.lr_factors(steps) == short.lr_factors(steps) for long, short in spans)
    return step if same and step <= pairs[0][0].steps else 0


def taken_alike(
    trials: Sequence[Trial], begun: Sequence[tuple[Trial, ...]]
) -> tuple[list[tuple[Trial, ...]], tuple[Trial, ...]]:
    """Batches of `trials`, all of one specification, that can branch off `begun`; and the rest.

    A batch is a run from zero to the last bit only in the trunk's own composition.
    """
    by_key = {key: trial for trial in trials if (key := trunk_key(trial))}
    batches = list[tuple[Trial, ...]]()
    for batch in begun if by_key else ():
        keys = [trunk_key(trial) for trial in batch]
        # The whole batch or none: dropping one trial would change how the others round.
        if all(key in by_key for key in keys):
            batches.append(tuple(by_key.pop(key) for key in keys))
    taken = {trial.key for batch in batches for trial in batch}
    return batches, tuple(trial for trial in trials if trial.key not in taken)


def joined(batches: Sequence[tuple[Trial, ...]]) -> list[tuple[Trial, ...]]:
    """Batches that share a trunk as one, the longest horizon first; the others as they are."""
    families: dict[str, list[tuple[Trial, ...]]] = {}
    for batch in batches:
        keys = [trunk_key(trial) for trial in batch]
        name = digest(keys) if all(keys) else digest([trial.key for trial in batch])
        families.setdefault(name, []).append(batch)
    return [
        tuple(
            trial
            for batch in sorted(family, key=lambda batch: -batch[0].spec.train.steps)
            for trial in batch
        )
        for family in families.values()
    ]


def shared(trials: Sequence[Trial]) -> dict[str, int]:
    """Steps that trials take from a longer one's run, as planned, by key; of no other trial."""
    families: dict[str, list[Trial]] = {}
    for trial in trials:
        if name := trunk_key(trial):
            families.setdefault(name, []).append(trial)
    steps_taken = dict[str, int]()
    for family in families.values():
        longest = max(family, key=lambda trial: trial.spec.train.steps)
        others = [trial for trial in family if trial.spec != longest.spec]
        steps_taken |= {trial.key: shared_steps([longest], [trial]) for trial in others}
    return {key: steps for key, steps in steps_taken.items() if steps}
