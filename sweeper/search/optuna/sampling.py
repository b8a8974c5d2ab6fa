"""`search=optuna` and `search=tpe`: samplers of Optuna's as strategies."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar

import optuna
from optuna.samplers import BaseSampler

from sweeper.errors import ConfigError, key_prefix
from sweeper.records import user_code
from sweeper.registry import TARGET, build_plugin, import_plugin
from sweeper.search.optuna.mapping import log2_range, quiet
from sweeper.search.strategy import (
    Conclusion,
    History,
    Phase,
    StrategySettings,
    best_of_one_phase,
    chosen_axes,
)
from sweeper.trial import ONE_OR_MORE, Log2Hps, Point, Result, Space, defaults, hps_key

TPE_SAMPLER = "optuna.samplers.TPESampler"
_CMAES = "optuna.samplers.CmaEsSampler"
"""It imports when it is first asked what Optuna itself does not install."""
_PINNED: Mapping[str, Any] = {"constant_liar": True, "multivariate": True}
"""Of TPE: Optuna 4 and 5 have other defaults."""


@dataclass(frozen=True, kw_only=True)
class OptunaSearch(StrategySettings):
    """`runs` trials in batches of `batch`, asked of a sampler of Optuna's.

    `sampler` names its class and holds its arguments; the seed follows from `seed`. TPE is
    multivariate, with a constant liar for the trials of a batch that have no loss yet. A sampler
    may keep a state, so it is asked for every batch anew, and told the results in between: with its
    seed fixed it asks for the same again. A diverged trial has a loss worse than any, and one that
    was stopped early is pruned at its last step.
    """

    sampler: Mapping[str, Any] = field(default_factory=lambda: {TARGET: TPE_SAMPLER})
    runs: Annotated[int, ONE_OR_MORE] = 100
    batch: Annotated[int, ONE_OR_MORE] = 10
    seed: int = 0
    axes: tuple[str, ...] | None = None

    phase: ClassVar[str] = "optuna"
    tells_again: ClassVar[bool] = True
    """Whether the sampler hears the loss of a point again that it asks for again."""

    def plan(self, space: Space) -> list[Phase]:
        """One phase; ConfigError for a sampler that cannot be had."""
        _Session(self, space).missing(History())  # what it cannot search, it says when it is asked
        return [Phase(name=self.phase, trials=self.runs)]

    def made(self, space: Space, done: int) -> BaseSampler | None:
        """The sampler for what comes after `done` trials; None: the one before goes on."""
        if done:
            return None
        names, config = chosen_axes(space, self.axes), self.sampler
        grid = {name: space[name].grid(1.0) for name in names}
        offered = {"seed": self.seed % 2**32, "search_space": grid, **_PINNED}
        # What the user says of these goes before; a seed of its own would be a second one.
        offered = {n: v for n, v in offered.items() if n == "seed" or n not in config}
        with key_prefix("sampler"):
            target = config.get(TARGET)
            if target == _CMAES and not find_spec("cmaes"):
                raise ConfigError(TARGET, target, "it needs cmaes: pip install cmaes")
            kind = import_plugin(target)
            if not (isinstance(kind, type) and issubclass(kind, BaseSampler)):
                allowed = "a sampler, as optuna.samplers.CmaEsSampler; this is none"
                raise ConfigError(TARGET, target, allowed)
            with user_code(TARGET, target, "a sampler that takes these values"), quiet():
                sampler: BaseSampler = build_plugin(_built(config), offered)
        return sampler

    def propose(self, space: Space, history: History) -> list[Point]:
        """The next batch, once every trial of the last one has a result."""
        # The sampler's state follows from the history: what was told one before it goes on.
        session: _Session | None = self.__dict__.get("_session")
        if session is None or not session.goes_on(space, history):
            session = self.__dict__["_session"] = _Session(self, space)
        return session.missing(history)

    def conclude(self, space: Space, history: History) -> Conclusion:
        """The best trial."""
        return best_of_one_phase(history, self.phase)


@dataclass(frozen=True, kw_only=True)
class TPE(OptunaSearch):
    """`search=tpe`: Optuna's tree-structured Parzen estimator, a reference.

    It has no state but its random numbers, seeded by (`seed`, trials so far).
    """

    sampler: Mapping[str, Any] = field(default_factory=lambda: {TARGET: TPE_SAMPLER}, init=False)

    phase: ClassVar[str] = "tpe"
    tells_again: ClassVar[bool] = False

    def made(self, space: Space, done: int) -> BaseSampler:
        """A new one for every batch."""
        seed = random.Random(f"{self.seed} {done}").getrandbits(31)
        return optuna.samplers.TPESampler(seed=seed, **_PINNED)


def _built(config: Mapping[str, Any]) -> dict[str, Any]:
    """A sampler's configuration with what it names within, such as another sampler, built."""
    return {
        key: build_plugin(_built(value))
        if isinstance(value, Mapping) and TARGET in value
        else value
        for key, value in config.items()
    }


class _Session:
    """A study in memory whose sampler was asked for a history's points, and told their losses."""

    def __init__(self, search: OptunaSearch, space: Space) -> None:
        self._search, self._space = search, space
        # In log2, as everywhere in the search: no `log=True`.
        names = chosen_axes(space, search.axes)
        self._ranges = {name: log2_range(space[name]) for name in names}
        with quiet():
            self._study = optuna.create_study(sampler=search.made(space, 0))
        self._batches: list[list[Point]] = []
        self._asked: list[tuple[optuna.Trial, Point]] = []  # of the last batch, not told yet
        self._done: dict[Hashable, tuple[str, float]] = {}
        self._exhausted = False

    def goes_on(self, space: Space, history: History) -> bool:
        """Whether nothing in `history` is otherwise than it was told."""
        return space == self._space and all(
            self._done.get(_point_id(result), outcome) == outcome
            for result in history.results
            for outcome in [(result.status, result.objective)]
        )

    def missing(self, history: History) -> list[Point]:
        """What the sampler asks for and `history` lacks; empty at the end."""
        results = {_point_id(result): result for result in history.results}
        target = self._search.sampler.get(TARGET)
        with user_code(f"sampler.{TARGET}", target, "a sampler for this space"), quiet():
            for batch in self._batches:  # a search that starts again is asked again
                if missing := [point for point in batch if point.id not in results]:
                    return missing
            while True:
                self._tell(results)
                done = len(self._done)
                if done >= self._search.runs or self._exhausted:
                    return []
                if (sampler := self._search.made(self._space, done)) is not None and done:
                    self._study.sampler = sampler
                count = min(self._search.batch, self._search.runs - done)
                self._asked = [self._ask() for _ in range(count)]
                # Axes of a single value leave few points to ask: each is trained once.
                points = {point.id: point for _, point in self._asked if point.id not in self._done}
                self._exhausted = not points
                self._batches.append(list(points.values()))
                if missing := [point for point in points.values() if point.id not in results]:
                    return missing

    def _ask(self) -> tuple[optuna.Trial, Point]:
        trial = self._study.ask(dict(self._ranges))
        hps = Log2Hps({**defaults(self._space), **trial.params})
        return trial, Point(log2_hps=hps, seed=0, phase=self._search.phase)

    def _tell(self, results: Mapping[Hashable, Result]) -> None:
        state = optuna.trial.TrialState
        asked, self._asked = self._asked, []
        for trial, point in asked:
            # GridSampler stops the study at its last point, which raises outside of `optimize`.
            with suppress(RuntimeError):
                result = results[point.id]
                if point.id in self._done and not self._search.tells_again:
                    self._study.tell(trial, state=state.FAIL)
                    continue
                self._done[point.id] = (result.status, result.objective)
                if result.status == "pruned":
                    trial.report(result.curve[-1], result.steps)
                    self._study.tell(trial, state=state.PRUNED)
                else:
                    self._study.tell(trial, result.objective)


def _point_id(result: Result) -> Hashable:
    return hps_key(result.trial.log2_hps), result.trial.seed
