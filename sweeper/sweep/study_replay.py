"""Searches and ladders replayed against the results so far: what they have, and what they lack.

No file holds a search's state. A strategy is a pure function of its history, so the state follows
from the results, which are recorded anyway: after a kill at any moment, a restart replays the
search to where it was, and no second record could contradict the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from sweeper.config.settings import Experiment
from sweeper.errors import SHELL, ConfigError
from sweeper.laws.law import (
    FACTORS,
    AppliedLaw,
    Factors,
    NoLaw,
    OutsideLaw,
    Scale,
    ask,
    decay_notes,
    is_of_ladders,
)
from sweeper.scaling.prescription import held_norms
from sweeper.scaling.spec import Update
from sweeper.search.replay import SearchReplay
from sweeper.search.strategy import History
from sweeper.stats.ladder import LadderPoint, LadderSize, LadderSoFar, Size, SizeCurve
from sweeper.trial import Log2Hps, Point, Result, Trial, plain


def example_length(experiment: Experiment) -> int | None:
    """Tokens of an example; None where an example is no sequence, or nobody knows its length."""
    settings = experiment.settings
    sequences = "input_shape" not in experiment.corpus.identity()
    if not sequences or not (settings.runner.takes("data") or settings.runner.takes("seq_len")):
        return None
    return int(settings.raw["train"]["seq_len"])


def token_unit(experiment: Experiment) -> str:
    """What the tokens of a scale are."""
    return "examples" if example_length(experiment) is None else "tokens"


def scale_of(experiment: Experiment, size: Size, log2_hps: Log2Hps) -> Scale:
    """What a law looks at, of a run of `size` with hyperparameters tuned at the base."""
    settings = experiment.settings
    base = settings.ladder_base
    batch, steps = (int(getattr(size, k, getattr(base, k))) for k in ("batch_size", "steps"))
    tokens = batch * steps * (example_length(experiment) or 1)
    scale = Scale(width=size.width, depth=size.depth, batch=batch, steps=steps, tokens=tokens)
    if settings.scaled_by_user:
        # None, not empty: a command has betas, and keeps them to itself.
        return replace(scale, betas=None)
    prepared = experiment.prepared(size)
    hps = prepared.optimizer.settings(plain(log2_hps))
    betas = {name: value for name, value in hps.items() if name.startswith("beta")}
    norms = held_norms(prepared.optimizer, prepared.trained_specs)
    return replace(scale, parameters=prepared.parameters(), betas=betas, held=norms)


RATIO_SLACK = 0.05
"""So far, as a fraction, the base's tokens a parameter may be from the ladder's: a round number."""


def at_fixed_ratio(experiment: Experiment) -> Experiment:
    """The experiment with the steps of every size at `transfer.tokens_per_parameter`, if it is set.

    tokens = steps x batch x the length of an example; steps are rounded to three digits.
    ConfigError where the base's own ratio is another one, or nobody knows a model's parameters.
    """
    settings, ratio = experiment.settings, experiment.settings.transfer.tokens_per_parameter
    if ratio is None:
        return experiment
    length, base = example_length(experiment) or 1, settings.ladder_base

    def steps_of_one(size: LadderSize) -> float:
        """Steps at one token a parameter."""
        parameters = settings.runner.parameters(experiment.spec(size))
        if not parameters:
            allowed = "nothing with a command: nobody here counts the parameters of its model"
            raise ConfigError("transfer.tokens_per_parameter", ratio, allowed)
        return parameters / (size.batch_size * length)

    def steps_of(size: LadderSize) -> int:
        return max(1, int(float(f"{ratio * steps_of_one(size):.3g}")))

    wanted, own = steps_of(base), base.steps / steps_of_one(base)
    if abs(own / ratio - 1) > RATIO_SLACK and base.steps != wanted:
        raise ConfigError(
            "train.steps",
            base.steps,
            f"the base has {own:.3g} tokens a parameter then, and the ladder {ratio:g}. Search "
            f"with train.steps={wanted}, or keep the base as it is, with "
            f"transfer.tokens_per_parameter={own:.3g}",
        )
    return replace(experiment, settings=replace(settings, steps_of=steps_of))


def apply_law(experiment: Experiment, size: Size, log2_hps: Log2Hps) -> AppliedLaw | None:
    """The law from the base to `size`, None without one; `OutsideLaw` where it says nothing."""
    settings = experiment.settings
    base = scale_of(experiment, settings.base, log2_hps)
    target = scale_of(experiment, size, log2_hps)
    spec = settings.plugin_spec("law")
    # Without a law it is asked, too: it raises `OutsideLaw` where batch or tokens change.
    applied = ask(settings.law, spec, base, target, counted=token_unit(experiment))
    if isinstance(settings.law, NoLaw):
        return None
    cautions = _cautions(experiment, applied.factors, base, target)
    return replace(applied, notes=(*applied.notes, *cautions))


USUAL_BETAS = {"beta1": 0.9, "beta2": 0.999}
"""By these a law's change of betas is shown where a user command keeps its own to itself."""


def _cautions(experiment: Experiment, factors: Factors, base: Scale, target: Scale) -> list[str]:
    """Sentences about what a law changes and sweeper does not set, or not alone.

    A user command takes the hyperparameters of its space alone: any other it must set by itself.
    Otherwise the parameterization may have a factor of its own on decay.
    """
    settings = experiment.settings
    if settings.scaled_by_user:
        changed = [key for key in FACTORS if key != "eta" and getattr(factors, key) != 1]
        unset = [key for key in changed if not _takes(experiment, key)]
        # Of betas alone, so that any kind of weight of fixed norm will do.
        usual, there = (
            replace(scale, betas=USUAL_BETAS, held=(str(Update.HYPERBALL),))
            for scale in (base, target)
        )
        betas = settings.law.factors(usual, there).betas
        done = {k: f"multiply it by {getattr(factors, k):.4g}" for k in unset}
        done |= {k: f"{USUAL_BETAS[k]} becomes {v:.6g}" for k, v in betas.items()}
        return [f"the command is not given {k}: {what}" for k, what in done.items()]
    rule = settings.raw["parameterization"].get("decay", "independent")
    return decay_notes(rule, factors)


def _takes(experiment: Experiment, name: str) -> bool:
    """Whether a user command is given the hyperparameter `name` as a number that a law can move."""
    axis = experiment.settings.space.get(name)
    return axis is not None and not axis.choices


def planned_log2(experiment: Experiment, size: Size, log2_hps: Log2Hps) -> Log2Hps:
    """The hyperparameters at `size`: as they are where the law says nothing of it."""
    if isinstance(experiment.settings.law, NoLaw):
        return log2_hps
    try:
        applied = apply_law(experiment, size, log2_hps)
    except OutsideLaw:
        return log2_hps
    return log2_hps if applied is None else after_law(experiment, applied, log2_hps)


def after_law(experiment: Experiment, applied: AppliedLaw, log2_hps: Log2Hps) -> Log2Hps:
    """Hyperparameters as a law leaves them; a user command takes those of its space alone."""
    moved = applied.apply(log2_hps)
    if not experiment.settings.scaled_by_user:
        return moved
    return Log2Hps({n: moved[n] if _takes(experiment, n) else v for n, v in log2_hps.items()})


def describe_law(experiment: Experiment, sizes: Sequence[Size], log2_hps: Log2Hps) -> str:
    """What the law says of a ladder, for its verdict; empty without a law."""
    if isinstance(experiment.settings.law, NoLaw):
        return ""
    name, outside = experiment.settings.plugin_spec("law").name, []
    for size in sizes:
        try:
            apply_law(experiment, size, log2_hps)
        except OutsideLaw as error:
            outside.append(error.spelled(SHELL))
    if not outside:
        fitted = is_of_ladders(experiment.settings.law)
        return f"law={name}" + ", fitted to these very curves: no independent test" * fitted
    return f"law={name}, but as at the base at {len(outside)} of {len(sizes)} sizes: {outside[0]}"


Lookup = Callable[[str], Result | None]
"""A finished result by its trial's key."""
Missing = list[Trial]


class Replay(SearchReplay[Trial]):
    """A search of an experiment replayed against its study.

    A study also holds trials of earlier settings and of ladders: these are not asked for.
    """

    def __init__(self, experiment: Experiment, lookup: Lookup) -> None:
        super().__init__(separable=getattr(experiment.settings.search, "separable", False))
        self._experiment, self._lookup = experiment, lookup

    def _proposed(self, history: History) -> list[Trial]:
        settings = self._experiment.settings
        return [
            self._experiment.trial(settings.base, point.log2_hps, point.seed, point.phase)
            for point in settings.search.propose(settings.space, history)
        ]

    def _key(self, asked: Trial) -> str:
        return asked.key

    def _result(self, asked: Trial) -> Result | None:
        return self._lookup(asked.key)

    def _seen(self, asked: Trial, result: Result) -> Result:
        # A key knows no phase: the result has that of who asks for it, and choices by their places.
        space = self._experiment.settings.space
        places = {name: space[name].place(value) for name, value in asked.choices.items()}
        log2_hps = Log2Hps({**asked.log2_hps, **places})
        return replace(result, trial=replace(asked, log2_hps=log2_hps) if places else asked)


def replay_search(experiment: Experiment, lookup: Lookup) -> tuple[History, Missing]:
    """The strategy's history so far, and the trials that it lacks; see `Replay`."""
    replay = Replay(experiment, lookup)
    missing = replay.missing()
    return replay.history(), missing


def replay_ladder(
    experiment: Experiment, best_log2: Log2Hps, sizes: Iterable[Size], lookup: Lookup
) -> tuple[list[SizeCurve], int, Missing]:
    """Curves measured so far at every size, how many trials they hold, and those they lack."""
    curves, missing, count = list[SizeCurve](), Missing(), 0
    name = experiment.settings.transfer.hyperparameter
    for size in sizes:
        points, lacking = _points(experiment, best_log2, size, lookup)
        curve = SizeCurve(
            size=points[0].size,
            # A curve, unlike the line, has no point where a run failed: nothing was measured there.
            # Where one diverged it has +inf, which bounds its optimum.
            losses={
                point.value: point.losses
                for point in points
                if point.complete and not any(map(math.isnan, point.losses))
            },
            failed=sum(math.isnan(loss) for point in points for loss in point.losses),
            planned_log2=planned_log2(experiment, size, best_log2)[name] - best_log2[name],
        )
        curves.append(curve)
        count += sum(len(point.losses) for point in points)
        missing += lacking
    return curves, count, missing


def ladder_so_far(
    experiment: Experiment, best_log2: Log2Hps, sizes: Iterable[Size], lookup: Lookup
) -> LadderSoFar:
    """What is planned and measured of the curves of all `sizes`."""
    every = (_points(experiment, best_log2, size, lookup)[0] for size in sizes)
    rule = experiment.settings.transfer
    return LadderSoFar(hyperparameter=rule.hyperparameter, points=tuple(chain(*every)))


def _points(
    experiment: Experiment, best_log2: Log2Hps, size: Size, lookup: Lookup
) -> tuple[list[LadderPoint], Missing]:
    """The points of one size's curve, and the trials that they lack.

    The runs are what the size's plan would be: the study's law changes their hyperparameters. So
    the line is laid around what is planned there, on the grid of the base's best; without a law
    that is the base's best itself.
    """
    rule, base = experiment.settings.transfer, experiment.settings.ladder_base
    middle = rule.around(best_log2, planned_log2(experiment, size, best_log2))

    def trial(point: Point) -> Trial:
        return experiment.trial(size, point.log2_hps, point.seed, point.phase)

    def loss(point: Point) -> float | None:
        """Measured; NaN where the run failed, +inf where it diverged, None where it is missing."""
        result = lookup(trial(point).key)
        return None if result is None else result.objective

    def loss_for_line(point: Point) -> float | None:
        """A line goes on past a failed run as past one that diverged: it has lost, too."""
        value = loss(point)
        return math.inf if value is not None and math.isnan(value) else value

    # A check's ladder has plain sizes, which are trained with the base's batch and steps.
    whole = replace(base, width=size.width, depth=size.depth)
    whole = size if isinstance(size, LadderSize) else whole
    state, points, missing = rule.line(middle, loss_for_line), list[LadderPoint](), Missing()
    for value in (*state.losses, *state.missing):
        runs = rule.runs_at(middle, value)
        losses = [loss(run) for run in runs]
        measured = tuple(loss for loss in losses if loss is not None)
        points.append(LadderPoint(size=whole, value=value, runs=len(runs), losses=measured))
        missing += [trial(run) for run, loss in zip(runs, losses, strict=True) if loss is None]
    return points, missing
