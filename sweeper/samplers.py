"""sweeper's search strategies as samplers of Optuna's, for anybody's objective.

    sampler = IndependentLines({"eta": (2**-12, 2**-5), "momentum": (0.5, 2.0, 1.0)}, seed=0)

    def objective(trial):
        hps = sampler.suggest(trial)
        return train(**hps, seed=sampler.seed(trial))

    study = optuna.create_study(sampler=sampler)
    study.optimize(objective)  # ends by itself
    print(sampler.answer(study))

A strategy is a pure function of its results, so a sampler keeps no state of the search: it follows
from the trials of the study, whichever process made them. A trial belongs to the point that has its
parameters, and its seed where that is known. Only Optuna's public interface is used.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import BaseTrial, FrozenTrial, TrialState, create_trial

from sweeper.errors import BadInput, ConfigError, key_prefix, suggest
from sweeper.records import call_checked
from sweeper.search.fresh import FreshSeeds
from sweeper.search.grids import PairsStrategy
from sweeper.search.independent import IndependentSearch
from sweeper.search.line import LearningRateLine
from sweeper.search.optuna.mapping import LUCKY, is_same, plain_range
from sweeper.search.random_grid import RandomGridStrategy
from sweeper.search.replay import SearchReplay
from sweeper.search.settled import Settled
from sweeper.search.strategy import FRESH_SEEDS, Conclusion, History, Strategy
from sweeper.trial import (
    Axis,
    Choice,
    PluginSpec,
    Point,
    Result,
    Space,
    Status,
    TrainSettings,
    Trial,
    TrialSpec,
)

__all__ = [
    "IndependentLines",
    "Line",
    "Pairs",
    "RandomGrid",
    "SearchOutcome",
    "StrategySampler",
]

AxisLike = Axis | BaseDistribution | Mapping[str, Any] | tuple[float, ...] | Sequence[Choice]
"""A hyperparameter's range, as `read_space` takes it."""

SEED = "seed"
"""The parameter or attribute of a trial that is its run's seed."""
SEEDS_APART = 2**21
"""Seeds of a run lie below it: those of another `seed` of the sampler begin at its multiple."""
MOST_SEED = 2**31 // SEEDS_APART - 1
LEAST_PATIENCE = 10.0
"""Seconds below which no other process's trial is taken for dead."""
POLL_SECONDS = (0.01, 1.0)
"""The shortest and the longest pause of a worker that waits for trials of others."""
STRAYS = 3
"""Trials in a row that were not run at the point that they were for: the objective is to blame."""


@dataclass(frozen=True, kw_only=True)
class SearchOutcome:
    """What a search found: hyperparameters as the objective takes them, and their value.

    `value` is the mean over the `fresh_seeds` last runs, which nothing was chosen by, with its
    standard `error`; `basis` says so in words, or what it is instead. `finished` is False while the
    search goes on. `conclusion` has the lines, the comparisons and the curves, in log2 and to
    minimize.
    """

    params: Mapping[str, Choice]
    value: float
    error: float
    fresh_seeds: int
    basis: str
    finished: bool
    notes: tuple[str, ...]
    conclusion: Conclusion


@dataclass
class _Claim:
    """The point that a trial of this process is for; `why` the trial is not to run at all."""

    point: Point | None
    why: str = ""
    thread: int = field(default_factory=threading.get_ident)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A finished trial, as far as a strategy is concerned."""

    number: int
    status: Status
    loss: float
    params: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]
    seed: int | None


class StrategySampler(optuna.samplers.BaseSampler):
    """Any `sweeper` strategy as a sampler; the samplers below are this with a strategy each.

    Args:
        strategy: What decides which points are run (`sweeper.search.strategy.Strategy`).
        space: The hyperparameters by name. A tuple is a range in plain numbers, `(low, high)` or
            `(low, high, default)`; a mapping one in log2, `{"low": -12, "high": -5,
            "default": -8}`; a list are choices, of which the first is the default. A distribution
            of Optuna's is taken where it is logarithmic or categorical. Ranges are searched in
            log2.
        seed: Of the search: what is drawn, and from where the seeds of runs are counted, from 0 to
            1023. With 0 both are those of `sweeper search`.
        learning_rate: Its name in `space`, where strategies begin.
        fresh_seeds: Last runs of the best configuration, which give the answer's value.
        patience: Seconds after which a running trial of another process is taken for dead, and its
            point is run again; None: twice as long as the longest finished trial took.
    """

    def __init__(
        self,
        strategy: Strategy,
        space: Mapping[str, AxisLike],
        *,
        seed: int = 0,
        learning_rate: str = "eta",
        fresh_seeds: int = FRESH_SEEDS,
        patience: float | None = None,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MOST_SEED:
            raise ConfigError("seed", seed, f"a whole number from 0 to {MOST_SEED}")
        if not isinstance(fresh_seeds, int) or not 0 <= fresh_seeds <= 100:
            raise ConfigError("fresh_seeds", fresh_seeds, "a whole number from 0 to 100")
        if patience is not None and not patience >= 0:
            raise ConfigError("patience", patience, "None, or seconds")
        self._eta = _checked_name(space, learning_rate)
        self._integers = _integers(space)
        self._space = {self._ours(name): axis for name, axis in read_space(space).items()}
        self._first_seed = seed * SEEDS_APART
        self._patience = patience
        if getattr(strategy, "until", "planned") == "settled":
            strategy = Settled(strategy=strategy)
        self._strategy = FreshSeeds(strategy=strategy, seeds=fresh_seeds)
        self._strategy.plan(self._space)  # raises for a space that the strategy cannot search
        self._lock = threading.RLock()
        self._boards: WeakKeyDictionary[optuna.Study, _Board] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: what is known of studies is read from them again."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_boards")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Inverse of `__getstate__`."""
        self.__dict__.update(state)
        self._lock, self._boards = threading.RLock(), WeakKeyDictionary()

    # For an objective.

    def suggest(self, trial: BaseTrial) -> dict[str, Any]:
        """All hyperparameters of the trial, by name, in ranges with room for extended lines."""
        point = self._point(trial)
        values: dict[str, Any] = {}
        for name, axis in self._space.items():
            theirs = self._theirs(name)
            if axis.choices:
                values[theirs] = trial.suggest_categorical(theirs, axis.choices)
                continue
            here = axis.default if point is None else point.log2_hps[name]
            ends = plain_range(axis.low, axis.high, 2.0**here)
            if theirs in self._integers:
                low, high = max(1, math.floor(ends.low)), math.ceil(ends.high)
                values[theirs] = trial.suggest_int(theirs, low, high, log=True)
            else:
                values[theirs] = trial.suggest_float(theirs, ends.low, ends.high, log=True)
        return values

    def seed(self, trial: BaseTrial) -> int:
        """The seed of the trial's run, which its attribute `seed` keeps."""
        if (known := trial.user_attrs.get(SEED)) is None:
            point = self._point(trial)
            known = self._first_seed + (0 if point is None else point.seed)
            trial.set_user_attr(SEED, known)
        return int(known)

    def _point(self, trial: BaseTrial) -> Point | None:
        if not isinstance(trial, optuna.Trial):  # a `FixedTrial`
            return None
        self.before_trial(trial.study, trial)  # where another process asked for the trial
        return self._boards[trial.study].claims[trial.number].point

    # What a search found.

    def answer(self, study: optuna.Study) -> SearchOutcome:
        """What the search has found so far; BadInput before its first trial has finished.

        `study.best_params` names the luckiest run: the least of many noisy losses was chosen for
        its noise, too. That of `concluded(study)` is the answer.
        """
        with self._lock:
            board = self._whole_board(study)
            missing = board.replay.missing()
            history = board.replay.history()
        if not history.results:
            raise BadInput("no trial of this search has finished")
        found = self._strategy.conclude(self._space, history)
        sign = _sign(study)
        return SearchOutcome(
            params={
                self._theirs(name): self.value(name, value, None)
                for name, value in found.best_log2.items()
            },
            value=sign * found.objective,
            error=found.error,
            fresh_seeds=found.fresh_seeds,
            basis=found.basis,
            finished=not missing,
            notes=tuple(map(_without_keys, found.notes)),
            conclusion=found,
        )

    def concluded(self, study: optuna.Study) -> optuna.Study:
        """A copy of the study in memory whose best trial is the answer, for pictures and tables.

        The answer is a trial of its own. Runs that are not worse than it were lucky: they are shown
        as pruned, since to Optuna the best of all complete trials is the best.
        """
        answer, sign = self.answer(study), _sign(study)
        copy = optuna.create_study(study_name=study.study_name, direction=study.direction)
        alike: FrozenTrial | None = None
        for trial in study.get_trials():
            if not trial.state.is_finished():
                continue
            if trial.params and all(
                name in trial.params and is_same(trial.params[name], value)
                for name, value in answer.params.items()
            ):
                alike = trial
            if trial.state == TrialState.COMPLETE and sign * trial.values[0] <= sign * answer.value:
                trial.state = TrialState.PRUNED
                trial.set_user_attr("shown_as_pruned", LUCKY)
            copy.add_trial(trial)
        if alike is not None and math.isfinite(answer.value):
            params = {name: alike.params[name] for name in answer.params}
            attributes = {"answer": True, "error": str(answer.error), "basis": answer.basis}
            copy.add_trial(
                create_trial(
                    value=answer.value,
                    params=params,
                    distributions={name: alike.distributions[name] for name in params},
                    user_attrs=attributes,
                )
            )
        return copy

    def missing(self, study: optuna.Study) -> list[dict[str, Choice]]:
        """The hyperparameters that can be run now and that no trial is for; for ask and tell.

        Where it is empty, `study.ask()` gives a point once more that is running already.
        """
        with self._lock:
            board = self._board(study)
            free = board.free(study)[0]
        return [
            {self._theirs(n): self.value(n, v, None) for n, v in point.log2_hps.items()}
            for point in free
        ]

    def finished(self, study: optuna.Study) -> bool:
        """Whether the search has all that it asked for."""
        with self._lock:
            return not self._whole_board(study).replay.missing()

    def _whole_board(self, study: optuna.Study) -> _Board:
        """What is known of a study; one of other processes is read as it ended, failures too."""
        board = self._boards.get(study)
        if board is None or not board.claims:
            board = _Board(self, all_failures=True)
        board.read(study)
        return board

    # What Optuna calls.

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Nothing: values depend on the distribution that the objective gives."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing."""
        return {}

    def before_trial(self, study: optuna.Study, trial: FrozenTrial | optuna.Trial) -> None:
        """Choose the trial's point; where all that can be named is running, wait for a result."""
        _check_study(study)
        pause, longest = POLL_SECONDS
        while True:
            with self._lock:
                board = self._board(study)
                if trial.number in board.claims or board.claim(study, trial):
                    break
            time.sleep(pause)
            pause = min(2 * pause, longest)
        if board.claims[trial.number].why:
            with suppress(RuntimeError):  # of ask and tell
                study.stop()

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The point's value of one parameter.

        TrialPruned where it lies outside of the objective's own range: like a point that diverged,
        that bounds a line.
        """
        self.before_trial(study, trial)
        claim = self._boards[study].claims[trial.number]
        if claim.why:
            raise optuna.TrialPruned(claim.why)
        name = self._ours(param_name)
        if name in self._space:
            place = self._space[name].default if claim.point is None else claim.point.log2_hps[name]
            value = self.value(name, place, param_distribution)
        elif param_name == SEED:
            value = self._first_seed + (0 if claim.point is None else claim.point.seed)
        else:
            names = map(self._theirs, self._space)
            allowed = f"a name of the sampler's space; {suggest(param_name, names)}"
            raise ConfigError("suggest", param_name, allowed)
        if not _contains(param_distribution, value):
            claim.why = f"{param_name}={value} is outside of the objective's own range"
            raise optuna.TrialPruned(claim.why)
        return value

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop the study once the strategy has nothing more to ask."""
        with self._lock:
            board = self._board(study)
            stray = board.take(self._run(study, trial, state, values))
            board.read(study)
            done = not board.replay.missing()
        if done:
            with suppress(RuntimeError):  # of ask and tell
                study.stop()
        if stray:
            allowed = "hyperparameters that the objective asks for, each with more than one value"
            raise ConfigError("space", stray, f"{allowed}: it always sets this one by itself")

    def reseed_rng(self) -> None:
        """Do nothing: what is drawn belongs to the search, and all workers share it."""

    # Names, values and trials, theirs and ours.

    def _ours(self, name: str) -> str:
        return "eta" if name == self._eta else name

    def _theirs(self, name: str) -> str:
        return self._eta if name == "eta" else name

    def value(self, name: str, place: float, distribution: BaseDistribution | None) -> Any:
        """A value as the objective's `distribution` has it; None: as it is used."""
        axis = self._space[name]
        value: Any = axis.choices[round(place)] if axis.choices else 2.0**place
        if isinstance(distribution, CategoricalDistribution):
            equal = (choice for choice in distribution.choices if is_same(choice, value))
            return next(equal, value)
        if isinstance(value, str):
            return value
        if isinstance(distribution, IntDistribution) or (
            distribution is None and self._theirs(name) in self._integers
        ):
            value = round(value)
        if isinstance(distribution, IntDistribution | FloatDistribution):
            if distribution.step and not distribution.log:
                steps = round((value - distribution.low) / distribution.step)
                value = distribution.low + steps * distribution.step
            # 2^log2(x) may differ from x in the last digit, and lie outside of a range by that.
            for end in (distribution.low, distribution.high):
                value = end if is_same(value, end) else value
        return value

    def apart(self, run: _Run, point: Point) -> str:
        """The first name by which a trial was not run at `point`; "" where all agree.

        What the objective did not ask for agrees.
        """
        if run.seed is not None and run.seed != self._first_seed + point.seed:
            return SEED
        for name, place in point.log2_hps.items():
            if (theirs := self._theirs(name)) in run.params:
                expected = self.value(name, place, run.distributions[theirs])
                if not is_same(expected, run.params[theirs]):
                    return theirs
        return ""

    def lacking(self, run: _Run) -> list[str]:
        """The hyperparameters that the objective did not ask for."""
        return [name for name in self._space if self._theirs(name) not in run.params]

    def _board(self, study: optuna.Study) -> _Board:
        if (board := self._boards.get(study)) is None:
            board = self._boards[study] = _Board(self)
        return board

    def _run(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> _Run:
        """A trial that ended so. NaN is a failure to Optuna, and has no value."""
        loss = _sign(study) * values[0] if values else math.nan
        status: Status = "failed"
        if state == TrialState.PRUNED:
            status, loss = "pruned", loss if values else math.inf
        elif state == TrialState.COMPLETE and loss > -math.inf:
            status = "complete" if math.isfinite(loss) else "diverged"
        seed = trial.user_attrs.get(SEED)
        if seed is None and SEED not in self._space:
            seed = trial.params.get(SEED)
        return _Run(
            number=trial.number,
            status=status,
            loss=math.nan if status == "failed" else loss,
            params=dict(trial.params),
            distributions=dict(trial.distributions),
            seed=seed,
        )


class _Replay(SearchReplay[Point]):
    def __init__(self, board: _Board, strategy: Strategy, space: Space) -> None:
        super().__init__(separable=getattr(strategy, "separable", False))
        self._board, self._strategy, self._searched = board, strategy, space

    def _proposed(self, history: History) -> list[Point]:
        return self._strategy.propose(self._searched, history)

    def _key(self, asked: Point) -> Hashable:
        return asked.id

    def _result(self, asked: Point) -> Result | None:
        return self._board.result(asked)


class _Board:
    """What is known of one study: its runs, and which trials of this process are for which point.

    Each run is that of one point at most, the first that has its parameters. A failure of another
    process may be its end and not the point's: alone, it counts for nothing, but where the study is
    only read (`all_failures`).
    """

    def __init__(self, sampler: StrategySampler, *, all_failures: bool = False) -> None:
        self._sampler, self._all_failures = sampler, all_failures
        self.claims: dict[int, _Claim] = {}
        self._taken: set[int] = set()
        self._pool: dict[int, _Run] = {}  # finished, and of no point so far
        self._results: dict[Hashable, Result] = {}
        self._ranges: dict[str, dict[BaseDistribution, None]] = {}
        self._strays = 0
        self._restart()

    def _restart(self) -> None:
        self.replay = _Replay(self, self._sampler._strategy, self._sampler._space)

    def read(self, study: optuna.Study) -> list[FrozenTrial]:
        """Take in the trials that have finished since; those that are running."""
        running = []
        for trial in study.get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING:
                running.append(trial)
            elif trial.state.is_finished() and trial.number not in self._taken:
                self.take(self._sampler._run(study, trial, trial.state, trial.values))
        return running

    def take(self, run: _Run) -> str:
        """Take in a finished trial; the name of a parameter that keeps it from its point.

        Such a trial is one of the objective's own choice. Some in a row, which nobody enqueued, are
        an error: the point would be asked for for ever.
        """
        if run.number in self._taken:
            return ""
        self._taken.add(run.number)
        for name, distribution in run.distributions.items():
            self._ranges.setdefault(name, {})[distribution] = None
        claim = self.claims.get(run.number)
        if claim is None or claim.point is None:
            self._pool[run.number] = run
            return ""
        if claim.why:
            self._keep(claim.point, run, "diverged", math.inf)
            return ""
        if not (apart := self._sampler.apart(run, claim.point)):
            self._strays = 0
            if not self._keep(claim.point, run, run.status, run.loss):
                self._pool[run.number] = run
            return ""
        self._pool[run.number] = run
        self._strays += 1
        return apart if self._strays >= STRAYS else ""

    def _keep(self, point: Point, run: _Run, status: Status, loss: float) -> bool:
        """Take `run` for the result of `point`, but where there is one as good."""
        ranks = ("complete", "diverged", "pruned", "failed")
        old = self._results.get(point.id)
        if old is not None and ranks.index(old.status) <= ranks.index(status):
            return False
        trial = Trial(spec=UNTRAINED, log2_hps=point.log2_hps, seed=point.seed, phase=point.phase)
        self._results[point.id] = Result(trial=trial, status=status, objective=loss)
        self._pool.pop(run.number, None)
        if old is not None:  # the strategy went on from a failure that is none
            self._restart()
        return True

    def result(self, point: Point) -> Result | None:
        """The result of a point, looked for among the runs that belong to none."""
        if (known := self._results.get(point.id)) is not None or not self._pool:
            return known
        mine = any(
            claim.point is not None and claim.point.id == point.id and number not in self._taken
            for number, claim in self.claims.items()
        )
        failures = []
        for run in self._pool.values():
            # A run without a seed may be that of any; the point's own ends soon.
            if (mine and run.seed is None) or self._sampler.apart(run, point):
                continue
            lacking = self._sampler.lacking(run)
            if run.status == "pruned" and any(self._is_outside(name, point) for name in lacking):
                self._keep(point, run, "diverged", math.inf)
                return self._results[point.id]
            # An objective may leave a hyperparameter out where another makes it meaningless. In a
            # trial of others that says nothing, but where a seed shows that this search made it.
            if lacking and (run.seed is None or run.status in ("pruned", "failed")):
                continue
            if run.status != "failed":
                self._keep(point, run, run.status, run.loss)
                return self._results[point.id]
            failures.append(run)
        if failures and (self._all_failures or len(failures) > 1):
            self._keep(point, failures[0], "failed", math.nan)
        return self._results.get(point.id)

    def _is_outside(self, name: str, point: Point) -> bool:
        """Whether a value lies outside of all ranges that objectives gave for it so far."""
        ranges = self._ranges.get(self._sampler._theirs(name), {})
        place = point.log2_hps[name]
        inside = (_contains(range_, self._sampler.value(name, place, range_)) for range_ in ranges)
        return bool(ranges) and not any(inside)

    def free(
        self, study: optuna.Study, number: int | None = None
    ) -> tuple[list[Point], list[Point], int]:
        """What no living trial is for, of all that is missing, and how many are for no known point.

        The latter are of other processes, have a smaller number than `number`, and their objectives
        have asked for nothing yet.
        """
        claimed: set[Hashable] = set()
        others: list[FrozenTrial] = []
        for trial in self.read(study):
            if (claim := self.claims.get(trial.number)) is None:
                others.append(trial)
            elif claim.point is not None:
                claimed.add(claim.point.id)
        strangers, unknown = list[_Run](), 0
        limit = self._patience(study) if others else 0.0
        for trial in others:
            begun = trial.datetime_start
            if trial.number == number or begun is None:
                continue
            if (datetime.now() - begun).total_seconds() > limit:
                continue
            run = self._sampler._run(study, trial, TrialState.COMPLETE, [0.0])
            if not self._sampler.lacking(run):
                strangers.append(run)
            else:
                unknown += number is None or trial.number < number
        while True:
            missing = self.replay.missing()
            for point in missing:
                for run in strangers:
                    if point.id not in claimed and not self._sampler.apart(run, point):
                        claimed.add(point.id)
                        strangers.remove(run)
                        break
            free = [point for point in missing if point.id not in claimed]
            # All of the batch is running: a second call has what may be run beyond it.
            if free or not missing or len(self.replay.missing()) == len(missing):
                return free, missing, unknown

    def _patience(self, study: optuna.Study) -> float:
        if self._sampler._patience is not None:
            return self._sampler._patience
        times = (
            trial.duration.total_seconds()
            for trial in study.get_trials(deepcopy=False)
            if trial.state.is_finished() and trial.duration is not None
        )
        return max(LEAST_PATIENCE, 2 * max(times, default=0.0))

    def claim(self, study: optuna.Study, trial: FrozenTrial | optuna.Trial) -> bool:
        """Give the trial a point; False where there is none before another trial has ended."""
        number = trial.number
        if getattr(trial, "system_attrs", {}).get(
            "fixed_params"
        ):  # enqueued: a run of the user's own choice
            self.claims[number] = _Claim(None)
            return True
        free, missing, unknown = self.free(study, number)
        if not missing:
            self.claims[number] = _Claim(None, why="the search is done: ask the sampler's answer")
            return True
        if len(free) > unknown:
            # Trials of other processes that began before take what stands before.
            self.claims[number] = _Claim(free[unknown])
            return True
        me = threading.get_ident()
        mine = [
            claim.point
            for other, claim in self.claims.items()
            if claim.thread == me and other not in self._taken and claim.point is not None
        ]
        if not mine:
            return False
        # Asked and not told by this very thread: who waits for itself waits for ever.
        self.claims[number] = _Claim((free or mine)[0])
        return True


UNTRAINED = TrialSpec(
    runner={"name": "optuna"},
    parameterization=PluginSpec(name="own"),
    model=PluginSpec(name="own"),
    width=1,
    depth=1,
    base_width=1,
    base_depth=1,
    optimizer=PluginSpec(name="own"),
    data={},
    train=TrainSettings(steps=1, batch_size=1, seq_len=1),
)
"""Of trials of which nothing else is known."""


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return any(is_same(choice, value) for choice in distribution.choices)
    if isinstance(distribution, FloatDistribution | IntDistribution):
        return not isinstance(value, str) and distribution.low <= value <= distribution.high
    return True


def _sign(study: optuna.Study) -> float:
    return -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0


def _check_study(study: optuna.Study) -> None:
    """BadInput for a study that no strategy can search."""
    if len(study.directions) > 1:
        raise BadInput("a strategy searches one objective: this study has several directions")
    if isinstance(study.pruner, optuna.pruners.HyperbandPruner):
        raise BadInput(
            "HyperbandPruner shows a sampler a part of the trials: take SuccessiveHalvingPruner"
        )


def _without_keys(note: str) -> str:
    """A note of a strategy without the places of its settings in sweeper's configuration."""
    return note.replace("parameterization.space.", "the space's ").replace("search.", "")


# The strategies.


class _Named(StrategySampler):
    """A strategy of `sweeper`'s own, made from keyword arguments as its config in conf/search/."""

    _kind: ClassVar[type]
    _needs_eta: ClassVar[bool] = True

    def __init__(
        self,
        space: Mapping[str, AxisLike],
        *,
        seed: int = 0,
        learning_rate: str = "eta",
        fresh_seeds: int = FRESH_SEEDS,
        patience: float | None = None,
        **settings: Any,
    ) -> None:
        if "prune" in settings:
            raise ConfigError("prune", settings["prune"], "left to the study's own pruner")
        read_space(space)
        if self._needs_eta and learning_rate not in space:
            allowed = f"its name in the space: one of {', '.join(map(str, space))}"
            raise ConfigError("learning_rate", learning_rate, allowed)
        _checked_name(space, learning_rate)
        ours = {n: _renamed(settings[n], learning_rate) for n in settings if n in _NAMES}
        strategy = call_checked(self._kind, {**settings, **ours}, self._offered(seed))
        super().__init__(
            strategy,
            space,
            seed=seed,
            learning_rate=learning_rate,
            fresh_seeds=fresh_seeds,
            patience=patience,
        )

    def _offered(self, seed: int) -> Mapping[str, Any]:
        """Arguments of the strategy that follow from the sampler's."""
        return {}


class IndependentLines(_Named):
    """The u-muP paper's independent search (arXiv:2407.17465, F.1), `search=independent`.

    A line over the learning rate; a line for every other hyperparameter at its optimum; the
    combination of all optima against the best single change, over fresh seeds; a last line over the
    learning rate around what was kept. Keywords, beside those of `StrategySampler` but `strategy`:
    `eta`, `lines`, `runs`, `seeds`, `combine_seeds`, `retune`, `retune_seeds` and `axes`, as in
    conf/search/independent.yaml.
    """

    _kind = IndependentSearch


class Line(_Named):
    """A line over the learning rate, all else at its default: `search=lr`.

    Keywords, beside those of `StrategySampler` but `strategy`: `line` and `seeds`, as in
    conf/search/lr.yaml. With `learning_rate="dropout"` it is a line over that.
    """

    _kind = LearningRateLine


class RandomGrid(_Named):
    """Points of the grid over all hyperparameters, without replacement: `search=random`.

    Keywords, beside those of `StrategySampler` but `strategy`: `runs`, `step` and `axes`, as in
    conf/search/random.yaml.
    """

    _kind = RandomGridStrategy
    _needs_eta = False

    def _offered(self, seed: int) -> Mapping[str, Any]:
        return {"seed": seed}


class Pairs(_Named):
    """A grid over every pair of hyperparameters, and how strongly they are coupled: `search=pairs`.

    Keywords, beside those of `StrategySampler` but `strategy`: `pairs`, `points`, `step`, `seeds`,
    `eta` (None: none) and `axes`, as in conf/search/pairs.yaml.
    """

    _kind = PairsStrategy


_NAMES = ("axes", "pairs")
"""Settings of strategies that hold names of hyperparameters."""


def _renamed(value: Any, eta: str) -> Any:
    """Names of the user's as a strategy knows them."""
    if isinstance(value, list | tuple):
        return tuple(_renamed(item, eta) for item in value)
    return "eta" if value == eta else value


# A space, as it is written in a program.


def read_space(space: Mapping[str, AxisLike]) -> Space:
    """Ranges in log2 and choices, by name; ConfigError names the hyperparameter."""
    if not isinstance(space, Mapping) or not space:
        raise ConfigError("space", space, "a mapping from hyperparameter to its range")
    return {name: _axis(name, value) for name, value in space.items()}


def _axis(name: str, value: Any) -> Axis:
    key = f"space.{name}"
    if isinstance(value, Axis):
        return value
    if isinstance(value, Mapping):
        with key_prefix(key):
            axis: Axis = call_checked(Axis, value, {})
        return axis
    if isinstance(value, CategoricalDistribution):
        value = list(value.choices)
    if isinstance(value, FloatDistribution | IntDistribution):
        if not value.log:
            allowed = "a distribution with log=True: strategies search on grids in log2. Or a list "
            raise ConfigError(key, value, f"{allowed}of the values to try")
        value = (value.low, value.high)
    if isinstance(value, tuple):
        return _range(key, value)
    if not isinstance(value, list) or not value:
        allowed = "a tuple (low, high) or (low, high, default), a list of choices, a mapping "
        raise ConfigError(key, value, f"{allowed}{{low, high, default}} in log2, or a distribution")
    kinds = [(type(choice), choice) for choice in value]
    if len(set(kinds)) < len(kinds) or not all(isinstance(choice, Choice) for choice in value):
        raise ConfigError(key, value, "texts, numbers, true or false, each once")
    return Axis(low=0.0, high=len(value) - 1.0, choices=tuple(value))


def _range(key: str, ends: tuple[Any, ...]) -> Axis:
    """A range in plain numbers; the default is the middle of its grid."""
    if len(ends) not in (2, 3) or not all(
        isinstance(end, int | float) and not isinstance(end, bool) and 0 < end < math.inf
        for end in ends
    ):
        raise ConfigError(key, ends, "(low, high) or (low, high, default), positive numbers")
    low, high = (_log2(end) for end in ends[:2])
    default = _log2(ends[2]) if len(ends) == 3 else low + (high - low) // 2
    with key_prefix(key):
        return Axis(low=low, high=high, default=default)


def _log2(value: float) -> float:
    """With whole powers exact, and no last digits that differ."""
    return round(math.log2(value), 12)


def _integers(space: Mapping[str, AxisLike]) -> frozenset[str]:
    return frozenset(name for name, axis in space.items() if isinstance(axis, IntDistribution))


def _checked_name(space: Mapping[str, AxisLike], learning_rate: str) -> str:
    """The learning rate's name; ConfigError where the space has another eta."""
    if learning_rate != "eta" and "eta" in space:
        allowed = "eta itself: the space has one, which is the learning rate to strategies"
        raise ConfigError("learning_rate", learning_rate, allowed)
    return learning_rate
