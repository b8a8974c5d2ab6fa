"""u-muP paper, Figures 10 and 11: are u-muP's hyperparameters less coupled than muP's?

python scripts/figures/coupling.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lab import NOTHING, Answer, Document, Lab, below, panels, within
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.report.drawing import INK, LOSS_LABEL, STRIP, STYLE
from sweeper.search.grids import row_optima, transfer_error
from sweeper.stats.estimate import Estimate

PARAMETERIZATIONS = {"mup": "muP", "umup": "u-muP"}
PRINTED = {"mup": 0.08, "umup": 0.03}
NAMED = (("eta_emb", "sigma_init"), ("eta", "alpha_attn"))
"""The pairs of muP that the caption of Figure 10 calls strongly coupled."""
SHOWN = 4
DRAWS = 10_000


def main() -> None:
    """Grids over all pairs of both parameterizations, around the best learning rate of each."""
    lab = Lab.of("coupling")
    found = {s: _grids(lab, s) for s in PARAMETERIZATIONS}
    errors = {s: _errors(found[s]) for s in PARAMETERIZATIONS}
    cut = {
        s: {tuple(g["names"]) for g in found[s] if cut_off(g["losses"])} for s in PARAMETERIZATIONS
    }
    _less_coupled(
        lab, errors, {parameterization: len(pairs) for parameterization, pairs in cut.items()}
    )
    for pair in NAMED:
        _stands_out(lab, pair, errors["mup"], cut=pair in cut["mup"])
    lab.finish(lambda: _figure(found, errors))


def _grids(lab: Lab, parameterization: str) -> Sequence[Document]:
    """The losses of every pair's grid, +inf where one diverged."""

    def measure() -> object:
        pairs = lab.search(parameterization, f"parameterization={parameterization}")["pairs"]
        return [{key: grid[key] for key in ("names", "values_log2", "losses")} for grid in pairs]

    kept = lab.measured(parameterization, measure)
    return [{**grid, "losses": [[*map(float, row)] for row in grid["losses"]]} for grid in kept]


def _errors(grids: Sequence[Document]) -> dict[tuple[str, ...], float]:
    """Transfer error (nats) by pair; without pairs of which nothing can be told."""
    every = {tuple(grid["names"]): transfer_error(grid["losses"]) for grid in grids}
    return {pair: error for pair, error in every.items() if math.isfinite(error)}


def cut_off(losses: Sequence[Sequence[object]]) -> bool:
    """Whether most optima of a grid's rows, or of its columns, lie at an end.

    Then the grid does not reach the optimum, and how that moves cannot be seen on it.
    """
    rows = [[float(loss) for loss in row] for row in losses]
    for lines in (rows, [list(column) for column in zip(*rows, strict=True)]):
        last = len(lines[0]) - 1
        found = [place for place in row_optima(range(last + 1), lines) if place is not None]
        if 2 * sum(place in (0, last) for place in found) > len(found):
            return True
    return False


def resampled(values: Sequence[float], seed: int) -> Any:
    """Means of `values` [DRAWS], each drawn with replacement."""
    generator = np.random.default_rng(seed)
    return generator.choice(values, (DRAWS, len(values))).mean(axis=1)


def over_pairs(values: Sequence[float]) -> Estimate:
    """The mean over pairs, its interval by drawing the pairs anew."""
    return Estimate.from_draws(math.fsum(values) / len(values), resampled(values, 0))


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """The mean of the first less that of the second; the two have other pairs."""
    value = over_pairs(first).value - over_pairs(second).value
    return Estimate.from_draws(value, resampled(first, 0) - resampled(second, 1))


def _less_coupled(
    lab: Lab, errors: Mapping[str, Mapping[tuple[str, ...], float]], cut: Mapping[str, int]
) -> None:
    """The mean transfer error of u-muP against that of muP."""
    values = {
        parameterization: list(errors[parameterization].values())
        for parameterization in PARAMETERIZATIONS
    }
    less = difference(values["umup"], values["mup"])
    means = {
        parameterization: within(over_pairs(values[parameterization]), "{:.3f}")
        for parameterization in PARAMETERIZATIONS
    }
    lab.claim(
        "u-muP, Fig. 10 and 11",
        "taking an optimum from where another hyperparameter has another value costs less under "
        f"u-muP ({PRINTED['umup']} nats in the paper) than under muP ({PRINTED['mup']})",
        f"u-muP {means['umup']} nats over {len(values['umup'])} pairs, muP {means['mup']} over "
        f"{len(values['mup'])}; difference {within(less, '{:+.3f}')}. Grids that do not reach the "
        f"optimum: u-muP {cut['umup']}, muP {cut['mup']}",
        below(less, NOTHING),
    )


def _stands_out(
    lab: Lab, pair: tuple[str, ...], errors: Mapping[tuple[str, ...], float], *, cut: bool
) -> None:
    """Whether a pair of muP lies above where 95 % of the others do; not judged if `cut` off."""
    mine = errors.get(pair, math.nan)
    rest = over_pairs([error for other, error in errors.items() if other != pair])
    rank = 1 + sum(error > mine for error in errors.values())
    itself = Estimate(value=mine, low=mine, high=mine)
    spread = [error for other, error in errors.items() if other != pair]
    low, high = np.percentile(spread, (2.5, 97.5)) if spread else (-math.inf, math.inf)
    single = Estimate(value=rest.value, low=float(low), high=float(high))
    judged = math.isfinite(mine) and not cut
    answer: Answer = below(single, itself) if judged else "cannot say"
    lab.claim(
        "u-muP, Fig. 10",
        f"muP: {pair[0]} and {pair[1]} are strongly coupled",
        f"{mine:.3f} nats, number {rank} of {len(errors)}; the others "
        f"{within(rest, '{:.3f}')} on average" + "; its grid does not reach the optimum" * cut,
        answer,
    )


@rc_context(STYLE)
def _figure(
    found: Mapping[str, Sequence[Document]],
    errors: Mapping[str, Mapping[tuple[str, ...], float]],
) -> Figure:
    """The most coupled pairs as heat maps by parameterization, all transfer errors as bars."""
    figure, axes = panels(len(PARAMETERIZATIONS), SHOWN + 1)
    largest = max(max(mine.values()) for mine in errors.values())
    for row, parameterization in enumerate(PARAMETERIZATIONS):
        first, *maps = axes[row * (SHOWN + 1) : (row + 1) * (SHOWN + 1)]
        _bars(first, errors[parameterization], largest)
        mean = over_pairs([*errors[parameterization].values()])
        first.set_title(f"{PARAMETERIZATIONS[parameterization]}: mean {mean.value:.3f}")
        for ax, pair in zip(
            maps, _telling(parameterization, errors[parameterization]), strict=False
        ):
            grid = next(one for one in found[parameterization] if tuple(one["names"]) == pair)
            drawn = _map(ax, grid)
            ax.set_title(f"{errors[parameterization][pair]:.3f} nats", fontsize=8)
        figure.colorbar(drawn, ax=maps, label=f"{LOSS_LABEL}, above the least", extend="max")
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + 1.2, height + 0.4)
    return figure


def _telling(
    parameterization: str, errors: Mapping[tuple[str, ...], float]
) -> list[tuple[str, ...]]:
    """The pairs that the paper names, then the most coupled ones."""
    ranked = sorted(errors, key=lambda pair: -errors[pair])
    named = [pair for pair in NAMED if parameterization == "mup" and pair in errors]
    return list(dict.fromkeys([*named, *ranked]))[:SHOWN]


def _bars(ax: Axes, errors: Mapping[tuple[str, ...], float], largest: float) -> None:
    """Every pair's transfer error, the largest on top."""
    ranked = sorted(errors, key=lambda pair: errors[pair])
    mean = over_pairs([*errors.values()])
    ax.axvspan(mean.low, mean.high, color="#dddddd", zorder=0)
    ax.axvline(mean.value, color=INK, linewidth=1)
    ax.barh(range(len(ranked)), [errors[pair] for pair in ranked], color="#31688e", height=0.7)
    names = [", ".join(_short(name) for name in pair) for pair in ranked]
    ax.set_yticks(range(len(ranked)), names, fontsize=5.5)
    ax.set_xlim(0, 1.05 * largest)
    ax.set_xlabel("transfer error (nats)")


def _map(ax: Axes, grid: Document) -> Any:
    """One pair's losses above their least, each row's optimum a ring, each column's a cross."""
    losses = np.array([[float(loss) for loss in row] for row in grid["losses"]])
    losses[~np.isfinite(losses)] = np.nan
    ax.set_facecolor(STRIP)
    ax.grid(visible=False)
    drawn = ax.pcolormesh(losses - np.nanmin(losses), cmap="viridis_r", vmin=0, vmax=0.3)
    rows = np.where(np.isnan(losses), math.inf, losses)
    places = range(rows.shape[1]), range(rows.shape[0])
    for row, best in enumerate(row_optima(places[0], rows.tolist())):
        if best is not None:
            ax.plot(best + 0.5, row + 0.5, "o", color="white", markeredgecolor=INK, markersize=6)
    for column, best in enumerate(row_optima(places[1], rows.T.tolist())):
        if best is not None:
            ax.plot(column + 0.5, best + 0.5, "x", color="#e6550d", markersize=4)
    for axis, values, name in zip(
        (ax.yaxis, ax.xaxis), grid["values_log2"], grid["names"], strict=True
    ):
        axis.set_ticks(np.arange(len(values)) + 0.5, [f"{float(v):.3g}" for v in values])
        axis.set_label_text(_short(name))
    return drawn


def _short(name: str) -> str:
    """A hyperparameter's name in the paper's letters."""
    letters = {"eta": "η", "alpha": "\N{GREEK SMALL LETTER ALPHA}"}
    letters["sigma"] = "\N{GREEK SMALL LETTER SIGMA}"
    head, _, tail = name.partition("_")
    tail = {"residual_attn_ratio": "ratio", "loss_softmax": "loss"}.get(tail, tail)
    return f"{letters[head]} {tail.replace('_', ' ')}".strip()


if __name__ == "__main__":
    main()
