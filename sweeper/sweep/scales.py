"""A study's runs as a law of the loss needs them: parameters, tokens and FLOPs of its models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sweeper.config.settings import Experiment
from sweeper.decide.loss import SizeChoice
from sweeper.engine.branches import trunk_key
from sweeper.errors import BadInput, Call
from sweeper.runs.loss_runs import LossRuns
from sweeper.stats.ladder import LadderSize, Size
from sweeper.sweep.replay import example_length, token_unit
from sweeper.trial import Result


class Scales:
    """Parameters and FLOPs of a study's models: counted, or of commands width x width x depth."""

    def __init__(
        self, experiment: Experiment | None, base: LadderSize, length: int | None = None
    ) -> None:
        """Of the models of `experiment`; None: of runs whose models nobody here can build.

        Examples have `length` tokens, if the experiment does not say it.
        """
        self.experiment, self.base = experiment, base
        self.counted = experiment is not None and not experiment.settings.scaled_by_user
        self.length, self.unit, self.flops_known = length or 1, "tokens", self.counted
        if experiment is not None:
            runner = experiment.settings.runner
            self.length, self.unit = example_length(experiment) or 1, token_unit(experiment)
            # The batch and the sequence of a command that takes neither are its own affair.
            if not runner.takes("batch_size"):
                self.length, self.unit = 1, "steps"
            ours = self.unit == "examples" and runner.takes("data")
            self.flops_known &= self.unit == "tokens" or ours
        self._known: dict[tuple[int, int], float] = {}

    def per_step(self, batch: int) -> int:
        """Tokens of a step, or of what stands for them."""
        return 1 if self.unit == "steps" else batch * self.length

    def params(self, size: Size) -> float:
        """Of a model of `size`, all of them."""
        key = size.width, size.depth
        if key not in self._known:
            self._known[key] = (
                float(self.experiment.prepared(size).parameters())
                if self.experiment is not None and self.counted
                else float(size.width**2 * size.depth)
            )
        return self._known[key]

    def flops(self, size: LadderSize, tokens: float) -> float:
        """Of a whole run, for the `tokens` that it is said to see; in proportion if not known."""
        if self.experiment is not None and self.counted:
            prepared = self.experiment.prepared(size)
            flops = float(prepared.flops())
            return flops if self.flops_known else flops / prepared.tokens() * tokens
        return 6.0 * self.params(size) * tokens

    def choice(self, params: float, tokens: float, depth: int) -> SizeChoice | None:
        """The width whose model has `params` parameters at `depth`, and the steps of `tokens`."""
        base = self.base
        # For a depth, parameters are a polynomial of the second degree in the width.
        widths = [base.width, 2 * base.width, 4 * base.width]
        counts = [self.params(Size(width=width, depth=depth)) for width in widths]
        curve = np.polyfit(widths, counts, 2)
        curve[-1] -= params
        roots = [float(root.real) for root in np.roots(curve) if abs(root.imag) < 1e-6 * abs(root)]
        wanted = max(roots, default=0.0)
        if wanted < 1:
            return None
        step = min(base.width, 64)
        width = max(step, step * round(wanted / step))
        steps = max(1, round(tokens / self.per_step(base.batch_size)))
        return SizeChoice(width=width, depth=depth, steps=steps)


def law_runs_of(trained: Sequence[Result], scales: Scales) -> LossRuns:
    """The runs of a study as points of a law; BadInput where there is none that serves."""
    if not trained:
        raise BadInput("the study has no finished run: ", Call("search"), " makes them")
    params, tokens, flops, labels, trunks, seconds = [], [], [], [], [], []
    for result in trained:
        spec = result.trial.spec
        size = LadderSize(
            width=spec.width,
            depth=spec.depth,
            batch_size=spec.train.batch_size,
            steps=spec.train.steps,
        )
        seen = float(size.steps * scales.per_step(size.batch_size))
        params.append(scales.params(size))
        tokens.append(seen)
        flops.append(scales.flops(size, seen))
        labels.append(f"{size}, seed {result.trial.seed}")
        # Horizons that are branches of one trunk are points of one training.
        trunks.append(trunk_key(result.trial) if scales.counted else "")
        # A branch took what its trunk did not.
        seconds.append(math.nan if trunks[-1] else result.seconds)
    losses = np.array([result.objective for result in trained])
    if not (losses > 0).all():
        raise BadInput("a law of losses needs positive ones: the study's objective is no such loss")
    cells = [t or f"{n}\0{d}" for n, d, t in zip(params, tokens, trunks, strict=True)]
    cluster = np.unique(cells, return_inverse=True)[1].reshape(-1).astype(np.int64)
    found = LossRuns(np.array(params), np.array(tokens), losses, np.array(flops), cluster, labels)
    return replace(found, unit=scales.unit, seconds=np.array(seconds))
