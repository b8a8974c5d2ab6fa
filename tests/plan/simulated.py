"""A world without training in which the best learning rate is where muP says it is.

The optimum of a model moves by what its parameterization, as the trial's own specification
prescribes it, lacks to muP: so an experiment that mends the parameterization mends the transfer,
and no other does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from sweeper.config.compose import compose_tree
from sweeper.config.settings import Experiment, placeholder_data, resolve
from sweeper.engine.measurements import MEASUREMENTS
from sweeper.engine.prepare import prepare
from sweeper.launch.job import UNCONTROLLED, Control, Job, JobOutcome
from sweeper.report.sentences import Wording
from sweeper.scaling.relative import MuP
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, Update
from sweeper.stats.ladder import Size
from sweeper.trial import Log2Hps, PlainHps, Trial, defaults
from sweeper.verbs.diagnose import AblationTrainer, TwoSizes
from tests.search.fakes import noise, result
from tests.sweep.test_sweep import MadeUp, Study, Trainer, Watcher

LARGE = Size(width=64, depth=1)
WEIGHTS = {Role.HIDDEN: 0.8, Role.READOUT: 0.7, Role.EMBEDDING: 0.1, Role.VECTOR: 0.1}
"""How far, in log2, the optimum moves by a factor of 2 in a role's rate."""
WORDS = [
    "model.width=16",
    "model.head_size=8",
    "model.depth=1",
    "transfer.widths=[16,64]",
    "transfer.extend=8",
]


@dataclass(frozen=True, kw_only=True)
class WrongReadout(MuP):
    """MuP, but the readout's multiplier is m too large."""

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        found = super().scale(spec, hps, update)
        wrong = spec.width_ratio if spec.role is Role.READOUT else 1.0
        return replace(found, multiplier=found.multiplier * wrong)


def optimum(trial: Trial) -> float:
    """Where the best log2 eta is: at the space's default, but for what is lacking."""
    prepared, moved = prepare(trial.spec), 0.0
    for role, weight in WEIGHTS.items():
        off = []
        for spec in (spec for spec in prepared.specs if spec.role is role):
            mine, base = (
                prepared.prescription(spec, trial.hps),
                prepared.prescription(spec.at_base(), trial.hps),
            )
            grown = mine.multiplier * mine.lr / (base.multiplier * base.lr)
            right = spec.width_ratio ** (-1.0 if role in (Role.HIDDEN, Role.READOUT) else 0.0)
            off.append(log2(grown / right))
        moved -= weight * fmean(off or [0.0])
    wide = trial.spec.width / trial.spec.base_width
    if trial.spec.model.arguments["norm_gain"]:
        moved -= 0.9 * log2(wide)
    if trial.spec.optimizer.arguments["weight_decay"] > 0.1:
        hidden = [spec for spec in prepared.specs if spec.role is Role.HIDDEN]
        ratio = [
            prepared.prescription(s, trial.hps).weight_decay
            / prepared.prescription(s.at_base(), trial.hps).weight_decay
            for s in hidden
        ]
        moved += 0.9 * abs(log2(fmean(ratio)))
    return moved


class World(Trainer):
    """Trains nothing: a parabola around `optimum`, with some noise. What is measured is real."""

    corpus: Any

    def open(self, corpus: Any, *_: Any) -> World:
        self.corpus = corpus
        return self

    def identity(self) -> dict[str, Any]:
        return {"name": "simulated"}

    def objective(self, trial: Trial) -> float:
        away = trial.log2_hps["eta"] + 6 - optimum(trial)
        return 3 + 0.05 * away**2 + 0.002 * noise(trial.log2_hps, trial.seed)

    def job(self, batch: tuple[Trial, ...], pruner: Any) -> Job:
        if batch[0].measurement:
            return Job(task=Measured(batch, 3.0, self.corpus))
        return super().job(batch, pruner)


@dataclass(frozen=True)
class Measured(MadeUp):
    """The task of one trial that measures something."""

    corpus: Any

    def run(self, control: Control) -> JobOutcome:
        (trial,) = self.trials
        found = MEASUREMENTS[trial.measurement](trial, self.corpus, "cpu", UNCONTROLLED)
        return JobOutcome(results=(replace(result(trial, self.objective), measurements=found),))


class Parts(Watcher):
    """Hears of the parts, too: their names, what lies before each, and how much after."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[str, int, int]] = []

    def part(self, name: str, before: int, after: Sequence[Trial]) -> None:
        self.parts.append((name, before, len(after)))


def simulate(*words: str, study: Study | None = None) -> tuple[AblationTrainer, World]:
    """What diagnoses a study with these overrides, in the world."""
    settings, world = resolve(compose_tree([*WORDS, *words])), World(lambda hps, seed: math.nan)
    settings = replace(settings, runner=world, launcher=world)
    corpus = SimpleNamespace(identity=lambda: placeholder_data(settings))
    experiment = Experiment(settings=settings, corpus=corpus, precision="float32")  # type: ignore[arg-type]
    best = Log2Hps({**defaults(settings.space), "eta": -6.0})
    pair = TwoSizes(
        experiment=experiment, best_log2=best, axis="width", large=LARGE, words=Wording()
    )
    return AblationTrainer(pair, study or Study(), Parts()), world  # type: ignore[arg-type]
