"""The runs that a law is fitted to: parameters, tokens, compute and final loss of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.errors import BadInput
from sweeper.prediction.loss_law import ADDITIVE, COMPUTE, COUPLED, SIZE, TOKENS, Array, Form

FLOPS_PER_PARAMETER_AND_TOKEN = 6.0
"""Forward and backward multiply-adds of a dense model (Kaplan et al., arXiv:2001.08361, 2.1)."""
SAME = 0.02
"""Sizes, horizons and budgets that differ by less, in log, are one: budgets are met but roughly."""
ON_A_LINE = 0.05
"""Spread in log of D around a line in log N below which alpha and beta cannot be told apart."""
MOST_RUNGS = 16
"""More groups than this are no rungs but scatter, and are cut into bins of compute."""
BIN = math.log(3.0)
"""The width of a bin, in log compute, where runs have no rungs of their own."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Finished runs: `params` N, `tokens` D, `loss` L, all [runs], positive and finite.

    `flops` are those of each run, counted where somebody counted them, else 6 N D. Runs of one
    `cluster` are not independent, such as checkpoints of one training: they are resampled together.
    `labels` name runs to people.
    """

    params: Array
    tokens: Array
    loss: Array
    flops: Array
    cluster: np.ndarray[tuple[int], np.dtype[np.int64]]
    labels: Sequence[str]

    def __len__(self) -> int:
        """How many."""
        return len(self.loss)

    def only(self, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Runs:
        """Those where `kept` is true."""
        labels = [label for label, keep in zip(self.labels, kept, strict=True) if keep]
        params, tokens, loss = self.params[kept], self.tokens[kept], self.loss[kept]
        return Runs(params, tokens, loss, self.flops[kept], self.cluster[kept], labels)

    @property
    def flops_per_product(self) -> float:
        """FLOPs for a parameter and a token: 6, or what the runs' own counts say."""
        return float(np.exp(np.median(np.log(self.flops / (self.params * self.tokens)))))

    @property
    def cells(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Of every run the number of its (N, D): runs of one cell differ in their seed alone."""
        keys = np.round(np.log(np.stack([self.params, self.tokens])) / 1e-6).T
        return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Design:
    """What runs were varied in, and so which `forms` of the law can be fitted.

    `line`: N and D were varied together, log D = line[0] + line[1] log N: a law along it alone.
    """

    forms: tuple[Form, ...]
    varied: str
    line: tuple[float, float] | None = None

    @classmethod
    def of(cls, runs: Runs) -> Design:
        """BadInput where nothing was varied."""
        params, tokens = np.log(runs.params), np.log(runs.tokens)
        sizes, horizons = np.ptp(params) > SAME, np.ptp(tokens) > SAME
        if not sizes and not horizons:
            raise BadInput(
                f"all {len(runs)} runs have {runs.params[0]:.4g} parameters and "
                f"{runs.tokens[0]:.4g} tokens: a law needs three sizes or three horizons at least"
            )
        if not horizons:
            return cls((SIZE,), "parameters, at fixed tokens")
        if not sizes:
            return cls((TOKENS,), "tokens, at a fixed size")
        slope, level = np.polyfit(params, tokens, 1)
        off = tokens - (level + slope * params)
        if float(np.sqrt(np.mean(off**2))) < ON_A_LINE:
            ratio = np.exp(tokens - params)
            what = (
                f"size and tokens together, at {np.exp(np.mean(np.log(ratio))):.3g} tokens per "
                "parameter"
                if np.ptp(np.log(ratio)) < 4 * ON_A_LINE
                else f"size and tokens together, tokens as parameters^{slope:.2f}"
            )
            return cls((COMPUTE,), what, (float(level), float(slope)))
        return cls((ADDITIVE, COUPLED), "parameters and tokens")

    def tokens_on_line(self, params: float) -> float:
        """D that belongs to N, of a law along a line."""
        assert self.line is not None
        return math.exp(self.line[0] + self.line[1] * math.log(params))

    def check_target(self, runs: Runs, params: float, tokens: float) -> None:
        """BadInput for a target at which the law says nothing."""
        if self.forms == (SIZE,) and abs(math.log(tokens / runs.tokens[0])) > ON_A_LINE:
            raise BadInput(
                f"all runs saw {runs.tokens[0]:.4g} tokens: nothing tells what {tokens:.4g} do. "
                "Predict at these, or add runs of two other horizons"
            )
        if self.forms == (TOKENS,) and abs(math.log(params / runs.params[0])) > ON_A_LINE:
            raise BadInput(
                f"all runs have {runs.params[0]:.4g} parameters: nothing tells what {params:.4g} "
                "do. Predict at these, or add runs of two other sizes"
            )
        if self.line is not None:
            there = self.tokens_on_line(params)
            if abs(math.log(tokens / there)) > 4 * ON_A_LINE:
                raise BadInput(
                    f"the runs varied {self.varied}, so that alpha and beta cannot be told apart: "
                    f"the law goes along that line alone, where {params:.4g} parameters see "
                    f"{there:.4g} tokens, not {tokens:.4g}. Predict there, or add runs with other "
                    "numbers of tokens per parameter"
                )


@dataclass(frozen=True, eq=False)
class Rungs:
    """Runs grouped into rungs of a ladder, the last the farthest: `index` [runs], 0 the nearest."""

    index: np.ndarray[tuple[int], np.dtype[np.int64]]
    kind: str
    names: tuple[str, ...]

    def __len__(self) -> int:
        """How many."""
        return len(self.names)

    @classmethod
    def of(cls, runs: Runs, design: Design) -> Rungs:
        """By budget where runs share budgets, else by size, by horizon, or by bins of compute."""
        budgets = _groups(np.log(runs.flops), 0.1)
        sizes = _groups(np.log(runs.params), SAME)
        horizons = _groups(np.log(runs.tokens), SAME)
        if design.forms == (TOKENS,):
            return cls._named(horizons, runs.tokens, "tokens", "{:.3g} tokens")
        if len(design.forms) == 1:
            return cls._named(sizes, runs.params, "size", "{:.3g} parameters")
        # IsoFLOPs: several sizes at each of a few budgets, which are no sizes of a grid.
        count = int(budgets.max()) + 1
        if 3 <= count <= MOST_RUNGS and len(runs) >= 3 * count and sizes.max() + 1 > count:
            return cls._named(budgets, runs.flops, "budget", "{:.3g} FLOPs")
        if 2 <= sizes.max() <= MOST_RUNGS - 1 and len(runs) >= 2 * (sizes.max() + 1):
            return cls._named(sizes, runs.params, "size", "{:.3g} parameters")
        if 2 <= horizons.max() <= MOST_RUNGS - 1 and len(runs) >= 2 * (horizons.max() + 1):
            return cls._named(horizons, runs.tokens, "tokens", "{:.3g} tokens")
        log = np.log(runs.flops)
        bins = np.floor((log - log.max() - 1e-9) / BIN)
        index = np.unique(bins, return_inverse=True)[1].astype(np.int64)
        return cls._named(index, runs.flops, "compute", "about {:.2g} FLOPs")

    @classmethod
    def _named(
        cls,
        index: np.ndarray[tuple[int], np.dtype[np.int64]],
        values: Array,
        kind: str,
        form: str,
    ) -> Rungs:
        middles = [float(np.exp(np.log(values[index == i]).mean())) for i in range(index.max() + 1)]
        return cls(index, kind, tuple(form.format(middle) for middle in middles))


def distinct(values: Array) -> int:
    """How many different sizes, or numbers of tokens, there are."""
    return int(_groups(np.log(values), SAME).max()) + 1


def _groups(logs: Array, gap: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The group of each value: a new one begins where sorted values are further apart than gap."""
    order = np.argsort(logs, kind="stable")
    steps = np.diff(logs[order], prepend=logs[order[0]]) > gap
    index = np.empty(len(logs), np.int64)
    index[order] = np.cumsum(steps)
    return index
