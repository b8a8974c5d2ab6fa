"""Batches that are trained in tests, comparisons of their results, and what stops them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sweeper.data.corpus import Corpus
from sweeper.engine.batched import BatchedTrials
from sweeper.engine.train import train
from sweeper.launch.job import Control
from sweeper.trial import Result, Trial
from tests.engine.tiny_trials import tokens, tree, trial
from tests.specs import spec_of


def train_trials(trials: Sequence[Trial], **options: Any) -> list[Result]:
    return train(BatchedTrials(trials=tuple(trials), corpus=tokens()), **options)


def same_result(result: Result, other: Result) -> bool:
    """Whether two results are the same but for their times."""
    timeless = {"seconds": 0.0, "finished_at": 0.0}
    return replace(result, **timeless) == replace(other, **timeless)


def close_results(result: Result, other: Result) -> bool:
    return result.objective == pytest.approx(other.objective, rel=1e-10) and (
        result.heldout == pytest.approx(other.heldout, rel=1e-10)
    )


def assert_as_alone(
    trials: Sequence[Trial],
    where: Corpus | None = None,
    *,
    rel: float = 1e-10,
    alone: Sequence[int] = (),
) -> list[Result]:
    """Results of a batch, of which each trial (or those `alone`) ends as it does by itself."""
    where = where or tokens()
    together = train(BatchedTrials(trials=tuple(trials), corpus=where))
    for i in alone or range(len(trials)):
        [single] = train(BatchedTrials(trials=(trials[i],), corpus=where))
        batched = together[i]
        assert (batched.key, batched.status) == (single.key, "complete")
        assert batched.objective == pytest.approx(single.objective, rel=rel)
        assert batched.heldout == pytest.approx(single.heldout, rel=rel)
        assert batched.accuracy == single.accuracy
        assert batched.curve == pytest.approx(single.curve, abs=1e-4)
    assert len({result.objective for result in together}) == len(trials)
    return together


class StopTrials:
    """A pruner that stops the trials of these keys."""

    def __init__(self, step: int, *keys: str) -> None:
        self.rungs, self.keys = (step,), set(keys)
        self.losses: dict[str, float] = {}

    def trials_to_stop(
        self, step: int, losses: Mapping[str, float], trials: Sequence[Trial]
    ) -> set[str]:
        assert step == self.rungs[0] and {t.key for t in trials} >= losses.keys()
        self.losses = dict(losses)
        return self.keys


def leave_at(step: int) -> Control:
    """Control that tells the batch to save itself and leave after so many steps."""
    remaining = [step]

    def should_leave() -> bool:
        remaining[0] -= 1
        return remaining[0] == 0

    return Control(should_leave=should_leave)


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def diverging_trial(**changed: Any) -> Trial:
    """A trial that becomes not finite within some steps."""
    return trial("standard", eta=60.0, train={"precision": "float32", "steps": 40, **changed})


def trial_of(name: str, *, steps: int = 12) -> Trial:
    """A trial of one of `tests.toy_models`."""
    made = tree("standard", steps=steps)
    made["model"] = {"_target_": f"tests.toy_models.{name}", "width": 32, "depth": 2}
    return Trial(spec=spec_of(made), log2_hps=trial("standard").log2_hps, seed=0)


def trials_of(name: str) -> list[Trial]:
    base = trial_of(name)
    return [base, replace(base, seed=1), replace(base, log2_hps={**base.log2_hps, "eta": -6.0})]


def others(batched: BatchedTrials, by: int) -> BatchedTrials:
    """A batch of the same shape: other seeds, rates and warm-ups smaller by so many octaves."""

    def other(trial: Trial) -> Trial:
        changed = {"eta": trial.log2_hps["eta"] - by, "warmup": -float(by)}
        return replace(trial, seed=trial.seed + 9 * by, log2_hps={**trial.log2_hps, **changed})

    return replace(batched, trials=tuple(map(other, batched.trials)))
