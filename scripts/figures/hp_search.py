"""u-muP paper, Figures 2 and 5: the embedding's rate over width, and two ways to search.

python scripts/figures/hp_search.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lab import (
    AS_RULE,
    DRIFT,
    NOTHING,
    RULE,
    Document,
    Lab,
    apart,
    below,
    compared,
    curves,
    estimate,
    farthest,
    least,
    near,
    paired,
    panels,
    student,
    verdict,
    within,
)
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from spent import expected_best, independent_curve

from sweeper.report.drawing import INK, STYLE
from sweeper.search.fresh import FINAL
from sweeper.search.independent import IndependentSearch
from sweeper.stats.estimate import Estimate
from sweeper.study.setup import trials_of
from sweeper.study.study import StudyRecord
from sweeper.trial import Result

PARAMETERIZATIONS = {"mup": "muP", "umup": "u-muP"}
SMALL = ["search.runs=35", "search.seeds=1", "search.eta.points=7", "search.combine_seeds=4"]
"""The independent search where it has minutes; its defaults are the paper's."""
RANGES = {"mup": "{low:-8,high:-4,default:-6}", "umup": "{low:-3,high:1,default:-1}"}
"""Of eta at small sizes: as wide as the paper's (Table 6), around where its optimum is there."""
CONFIRMED = {
    "line": "η line alone",
    "random": "random",
    "single": "best single",
    "combined": "combined",
}
FRESH = range(1, 6)
"""Seeds of training on which what the searches found is compared: none was selected on."""
ABOUT = "Every search ran once: an interval has the spread of training, not that of searches."
COLORS = {"random": "#777777", "independent": "#31688e"}


@dataclass(kw_only=True)
class Searched:
    """Both searches of a parameterization, of `runs` each.

    `ends` are those of the independent one's phases. `losses` are, by fresh seed, of what both
    found, `combined` of what the independent one combined and of its best single change. A curve
    has the best loss after so many runs.
    """

    runs: int
    ends: Mapping[str, int]
    losses: Mapping[str, Sequence[float]]
    combined: Mapping[str, Sequence[float]]
    curves: Mapping[str, Sequence[tuple[float, float]]]

    @property
    def start(self) -> float:
        """The expected loss of one random configuration (nats)."""
        return float(self.curves["random"][0][1])

    @property
    def best(self) -> str:
        """Where the least loss was found."""
        return min(self.losses, key=lambda name: math.fsum(self.losses[name]))

    def share(self) -> Estimate:
        """What the line over eta gains from a random configuration, over all that is gained."""
        whole = zip(self.losses["line"], self.losses[self.best], strict=True)
        return student([(self.start - one) / (self.start - best) for one, best in whole])

    def less(self, first: str, second: str) -> Estimate:
        """The first's loss less the second's (nats), paired by seed."""
        return paired(self.losses[first], self.losses[second])


def main() -> None:
    """The embedding's rate over width, then both searches of both parameterizations."""
    lab = Lab.of("hp_search")
    along, rules = _embedding(lab), _rules(lab)
    _embedding_claims(lab, along, rules)
    searched = {
        name: Searched(**lab.measured(name, partial(_searched, lab, name)))
        for name in PARAMETERIZATIONS
    }
    _search_claims(lab, searched)
    lab.finish(lambda: _figure(along, rules, searched), ABOUT)


def _options(lab: Lab, parameterization: str) -> list[str]:
    """What a study is given; at the paper's size the ranges are the paper's."""
    words = [f"parameterization={parameterization}"]
    return words + [f"parameterization.space.eta={RANGES[parameterization]}"] * _small(lab)


def _small(lab: Lab) -> bool:
    return "size=paper" not in lab.words


def _embedding(lab: Lab) -> Document:
    """Curves of muP along eta_emb over width, around the base's optimum, eta held at its own."""
    line = ["search.axes=[eta_emb]", "search.runs=9", "search.seeds=1"]
    found = lab.search("mup-embedding", *_options(lab, "mup"), *line)
    more = ["transfer.seeds=8"] * _small(lab)  # the basin is flat, and its place as noisy
    return lab.transfer(
        "mup-embedding", 4 * found["base"]["width"], *more, hyperparameter="eta_emb"
    )


def _rules(lab: Lab) -> dict[bool, Document]:
    """u-muP's learning-rate curves over width with its rule for the embedding, and without."""
    validated = {}
    for rule in (True, False):
        name = f"umup-embedding-{'with' if rule else 'without'}"
        switch = f"parameterization.scaled_embedding_lr={str(rule).lower()}"
        words = [*_options(lab, "umup"), switch, "search=lr", "search.line.points=5"]
        found = lab.search(name, *words)
        validated[rule] = lab.transfer(name, 4 * found["base"]["width"])
    return validated


def _embedding_claims(lab: Lab, along: Document, rules: Mapping[bool, Document]) -> None:
    trend = along["trend"]
    slope = estimate(trend["slope"]) if trend else Estimate(value=0.0, low=-1e9, high=1e9)
    far = farthest(verdict(along, "width"))
    lab.claim(
        "u-muP, Fig. 2 (left)",
        "muP: the best η_emb falls as the width grows",
        f"as width^{within(slope)}; shift {within(estimate(far['shift_log2']))} "
        f"at width {far['size']['width']}",
        below(slope, NOTHING),
    )
    lab.claim(
        "u-muP, A.3 and Fig. 2 (left)",
        f"muP: {AS_RULE}",
        f"as width^{within(slope)}",
        near(slope, RULE, DRIFT),
    )
    ours, theirs = (farthest(verdict(rules[rule], "width")) for rule in (True, False))
    width = ours["size"]["width"]
    gain = paired(least(rules[True], ours["size"]), least(rules[False], theirs["size"]))
    lab.claim(
        "u-muP, Fig. 5",
        "u-muP: with the rule the loss at large width is lower than without",
        f"with the rule {compared(gain)} at width {width}, each at its best η",
        below(gain, NOTHING),
    )
    moved, other = estimate(ours["shift_log2"]), estimate(theirs["shift_log2"])
    lab.claim(
        "u-muP, Fig. 5",
        "u-muP: with the rule the best η itself stays better",
        f"shift {within(moved)} with, {within(other)} without, at width {width}",
        below(apart(moved), apart(other)),
    )


def _searched(lab: Lab, parameterization: str) -> Document:
    """Both searches with as many runs, and fresh runs of what each of them found."""
    words = _options(lab, parameterization)
    independent = lab.search(f"{parameterization}-independent", *words, *SMALL * _small(lab))
    runs = f"search.runs={independent['runs']}"
    random = lab.search(f"{parameterization}-random", *words, "search=random", runs)
    eta = next(line["optimum_log2"] for line in independent["lines"] if line["name"] == "eta")
    combination = independent["combination"]
    hps = {
        "line": {name: axis["default"] for name, axis in independent["space_log2"].items()}
        | {"eta": eta},
        "random": random["best_log2"],
        "single": combination["single_log2"],
        "combined": combination["combined_log2"],
    }
    tried = [result.objective for result in _results(lab, f"{parameterization}-random")]
    strategy = IndependentSearch()
    seeds = 1 if _small(lab) else strategy.seeds
    combine_seeds = 4 if _small(lab) else strategy.combine_seeds
    curve = independent_curve(
        _results(lab, f"{parameterization}-independent"),
        hps["line"],
        seeds,
        [hps["combined"], hps["single"]],
        combine_seeds,
    )
    return {
        "runs": independent["runs"],
        "ends": independent["phase_ends"],
        "losses": {name: _confirm(lab, parameterization, hps[name]) for name in CONFIRMED},
        "combined": {name: combination[f"{name}_objectives"] for name in ("combined", "single")},
        "curves": {"random": expected_best(tried), "independent": curve},
    }


def _results(lab: Lab, study: str) -> list[Result]:
    """A study's results in the order of its phases."""
    searched = trials_of(StudyRecord.read(lab.folder / study)).searched
    phases = ["eta", "lines", "combine", "retune", "compare", "random", FINAL]
    return sorted(searched, key=lambda result: phases.index(result.trial.phase))


def _confirm(lab: Lab, parameterization: str, hps: Mapping[str, float]) -> list[float]:
    """The losses of one configuration on the fresh seeds: a line of one point, with seeds."""
    study, space = f"{parameterization}-confirm", "parameterization.space"
    words = [f"{space}.{name}.default={value}" for name, value in hps.items() if name != "eta"]
    words.append(f"{space}.eta={{low:{hps['eta']},high:{hps['eta']},default:{hps['eta']}}}")
    line = ["search=lr", "search.line.points=1", "search.line.extend=0"]
    lab.search(
        study, f"parameterization={parameterization}", *words, *line, f"search.seeds={FRESH.stop}"
    )
    known = StudyRecord.read(lab.folder / study).results()
    mine = {r.trial.seed: r.objective for r in known if r.trial.log2_hps == hps}
    return [mine[seed] for seed in FRESH]


def _search_claims(lab: Lab, searched: Mapping[str, Searched]) -> None:
    mup, umup = searched["mup"], searched["umup"]
    gaps = {s: within(found.less("line", found.best), "{:+.3f}") for s, found in searched.items()}
    shares = {
        parameterization: within(found.share(), "{:.0%}")
        for parameterization, found in searched.items()
    }
    lab.claim(
        "u-muP, Fig. 2 (right)",
        "the line over η alone brings u-muP nearer to the best that is found than muP",
        f"{shares['umup']} of the gain over a random configuration, {gaps['umup']} nats left; "
        f"muP {shares['mup']}, {gaps['mup']} left",
        below(mup.share(), umup.share()),
    )
    for parameterization, found in searched.items():
        better = found.less("single", "random")
        other = parameterization == "mup"
        lab.claim(
            "u-muP, Fig. 2 (right)",
            f"{PARAMETERIZATIONS[parameterization]}: the independent search "
            + ("is no match for a random one" if other else "beats a random one of as many runs"),
            f"the independent one's loss {compared(better)}, {found.runs} runs each",
            below(NOTHING, better) if other else below(better, NOTHING),
        )
    # What combining costs (nats; below 0: gains), paired over the search's own fresh seeds.
    harm = {
        name: paired(*([*map(float, found.combined[key])] for key in ("combined", "single")))
        for name, found in searched.items()
    }
    lab.claim(
        "u-muP, Fig. 2 (right)",
        "muP: combining the optima of the lines harms",
        f"combined {compared(harm['mup'])} than the best single change",
        below(NOTHING, harm["mup"]),
    )
    lab.claim(
        "u-muP, Fig. 2 (right)",
        "u-muP: combining harms less than under muP",
        f"combined {compared(harm['umup'])} than the best single change, "
        f"muP {compared(harm['mup'])}",
        below(harm["umup"], harm["mup"]),
    )


@rc_context(STYLE)
def _figure(
    along: Document, rules: Mapping[bool, Document], searched: Mapping[str, Searched]
) -> Figure:
    """Above the embedding over width, below the two searches and what they found."""
    figure, axes = panels(2, 3)
    curves(axes[0], along, "width", "muP")
    axes[0].set_xlabel("η_emb, log2")
    axes[0].set_ylabel("training loss (nats)")
    for ax, rule in zip(axes[1:3], (True, False), strict=True):
        curves(ax, rules[rule], "width", f"u-muP {'with' if rule else 'without'} the rule")
        ax.set_xlabel("learning rate, log2 η")
    for ax in axes[:3]:
        ax.xaxis.set_major_locator(MultipleLocator(1))
    limits = [ax.get_ylim() for ax in axes[1:3]]
    for ax in axes[1:3]:
        ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        if legend := ax.get_legend():
            legend.remove()
    axes[0].set_ylim(top=axes[0].get_ylim()[1] + 0.3 * (limits[0][1] - limits[0][0]))
    axes[0].legend(title="width", ncols=2, loc="upper right")
    for ax, (parameterization, found) in zip(axes[3:5], searched.items(), strict=True):
        _costs(ax, found, PARAMETERIZATIONS[parameterization])
    axes[3].set_ylabel("best training loss (nats)")
    _found(axes[5], searched)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + 2.0, height + 0.5)
    return figure


def _costs(ax: Axes, found: Searched, title: str) -> None:
    """Best loss against runs: of the random search the expectation over its order.

    The independent one's rises where fresh seeds correct what a lucky one selected.
    """
    phases = found.ends
    last, tops = max(phases.values()), [0.0]
    for name, points in found.curves.items():
        pairs = [(float(run), float(loss)) for run, loss in points]
        shown = [(run, loss) for run, loss in pairs if math.isfinite(loss) and run <= last]
        ax.step(*zip(*shown, strict=True), where="post", color=COLORS[name], label=name)
        tops.append(shown[-1][1])
        tops += [loss for run, loss in shown if run >= phases["eta"]]
    low, high = min(tops[1:]), max(tops)
    ax.set_ylim(low - 0.1 * (high - low), high + 0.5 * (high - low))
    for name, run in phases.items():
        ax.axvline(run, color=COLORS["independent"], linewidth=0.7, linestyle=":")
        ax.text(run, 0.98, f"{name} ", transform=ax.get_xaxis_transform(), ha="right", va="top",
                rotation=90, fontsize=7)  # fmt: skip
    ax.set_xlabel("runs")
    ax.set_title(title)
    ax.legend(loc="upper right", bbox_to_anchor=(1.0, 0.75))


def _found(ax: Axes, searched: Mapping[str, Searched]) -> None:
    """Losses on fresh seeds of what was found, above the best, with intervals."""
    ticks: list[str] = []
    for parameterization, found in searched.items():
        for name, words in CONFIRMED.items():
            _bar(ax, len(ticks), found.less(name, found.best), parameterization)
            ticks.append(f"{PARAMETERIZATIONS[parameterization]}: {words}")
    ax.set_yticks(range(len(ticks)), ticks, fontsize=7)
    ax.invert_yaxis()
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_xlabel("above the best (nats)")
    ax.set_title("on fresh seeds")


def _bar(ax: Axes, place: int, found: Estimate, parameterization: str) -> None:
    reach: Sequence[Any] = [[found.value - found.low], [found.high - found.value]]
    look: dict[str, Any] = {
        "color": {"mup": "#b5651d", "umup": "#31688e"}[parameterization],
        "capsize": 3,
    }
    ax.errorbar(found.value, place, xerr=reach, fmt="o", markersize=4, **look)


if __name__ == "__main__":
    main()
