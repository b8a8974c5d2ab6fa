"""Everett et al. (arXiv:2407.05872): exponents of width, alignment, constants and epsilon.

python scripts/figures/exponents.py [size=paper] [OVERRIDES]

Any `size=` also trains what `MORE` lists.
"""

from __future__ import annotations

import math
from typing import Any

from lab import (
    NOTHING,
    Answer,
    Document,
    Lab,
    apart,
    below,
    by_eta,
    curves,
    estimate,
    farthest,
    forest,
    least,
    near,
    paired,
    panels,
    verdict,
    within,
)
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.report.drawing import STYLE
from sweeper.stats.estimate import Estimate

Found = dict[str, Document]

ONE_RATE = "standard, one rate"
FULL = ("standard", "NTK", "muP", "mean-field")
"""The four parameterizations with full alignment, under Adam."""
NONE, ADAFACTOR, SGD = "standard, no alignment", "Adafactor, one rate", "muP, SGD"
SETTINGS = {
    ONE_RATE: "parameterization=standard",
    "standard": "parameterization=standard parameterization.alignment=full",
    "NTK": "parameterization=ntk",
    "muP": "parameterization=mup",
    "mean-field": "parameterization=mean_field",
    NONE: "parameterization=standard parameterization.alignment=none",
    ADAFACTOR: "parameterization=standard optimizer=adafactor",
    SGD: "parameterization=mup optimizer=sgd",
}
MORE = {
    f"{parameterization}, {optimizer}, {alignment} alignment": (
        f"parameterization={parameterization} parameterization.alignment={alignment} "
        f"optimizer={optimizer}"
    )
    for parameterization in ("standard", "ntk", "mup", "mean_field")
    for optimizer in ("adamw", "adafactor", "sgd")
    for alignment in ("full", "none")
    if (optimizer, alignment) != ("adamw", "full")
}
"""The rest of Table 1."""
SPACES = {
    "sgd": "parameterization.space.eta={low: -8, high: 2, default: -3}",
    "adafactor": "parameterization.space.eta={low: -8, high: 0, default: -4}",
}
ALONE = ("transfer.depths=[]", "transfer.batches=[]", "transfer.steps=[]")

SMALL, SCALED, FIXED, ATAN2 = "mean-field", "eps 1e-3, scaled", "eps 1e-3, fixed", "atan2"
EPSILONS = {
    SCALED: "parameterization.epsilon=scaled optimizer.eps=1e-3",
    FIXED: "parameterization.epsilon=fixed optimizer.eps=1e-3",
    ATAN2: "optimizer.atan2=true",
}
"""All mean-field, whose gradients shrink fastest; it has 1e-8 itself, which is as good as none.

1e-3 is chosen to be too large at small widths, as 1e-8 is at very large ones."""

DRAWN = {ONE_RATE: "", NONE: "", "standard": "NTK", "muP": "mean-field"}
"""What has a panel of whole curves, and what should train alike."""
TUNED = "tuned constants"
AGAINST = {"standard": "muP", TUNED: "standard", FIXED: SMALL, SCALED: SMALL, ATAN2: SMALL}
"""Whose losses are compared with whose, at the largest width."""
GAMMAS = [f"parameterization.space.gamma_{role}" for role in ("embedding", "hidden", "readout")]
ROUNDING = 1e-6
"""Nats: what rounding in float64 may grow to in a run."""
ALIKE = 0.01
"""The share of a loss by which two may differ and still be called alike."""


def main() -> None:
    """A search of eta and a validation over width for every setting."""
    lab = Lab.of("exponents")
    sized = any(word.startswith("size=") for word in lab.words)
    wanted = {**SETTINGS, **(MORE if sized else {})}
    found = {name: _setting(lab, name, words) for name, words in wanted.items()}
    for name, words in EPSILONS.items():
        found[name] = _setting(lab, name, f"parameterization=mean_field {words}")
    found[TUNED] = _tuned(lab)
    judge(lab, found, [name for name in MORE if sized])
    lab.finish(lambda: draw(found))


@rc_context(STYLE)
def draw(found: Found) -> Figure:
    """Four panels of curves; at the largest width all shifts, and differences in loss."""
    figure, axes = panels(2, 3)
    figure.set_figwidth(9.5)
    shifted, differing = axes.pop(2), axes.pop(4)
    for ax, (name, twin) in zip(axes, DRAWN.items(), strict=True):
        curves(ax, found[name], "width", f"{name} (rings: {twin})" if twin else name)
        ax.set_xlabel("learning rate, log2 η")
        ax.set_ylabel("training loss (nats)")
        if twin:
            _rings(ax, found[twin])
    far = {name: farthest(verdict(found[name], "width")) for name in SETTINGS}
    width = far[ONE_RATE]["size"]["width"]
    moved = {name: estimate(one["shift_log2"]) for name, one in far.items()}
    forest(shifted, moved, f"shift of the best η, width {width}")
    shifted.set_xlabel("log2")
    gaps = {f"{a}\nless {b}": _gap(a, b, found)[0] for a, b in AGAINST.items()}
    forest(differing, gaps, f"loss, width {width}, by seed")
    differing.set_xlabel("nats")
    return figure


def _setting(lab: Lab, name: str, words: str) -> Document:
    """A study of its own, from the words of its command line."""
    study = "".join(letter if letter.isalnum() else "-" for letter in name)
    spaces = [SPACES[key] for key in SPACES if f"optimizer={key}" in words.split()]
    searched = lab.search(study, *words.split(), *spaces, *ALONE)
    span = ["transfer.span=2.0"] if name in DRAWN else []
    return lab.transfer(study, 4 * searched["base"]["width"], *span)


def _tuned(lab: Lab) -> Document:
    """Standard with full alignment, and the constants of the layer types tuned at the base."""
    ranges = [f"{gamma}={{low: -3, high: 3, default: 0}}" for gamma in GAMMAS]
    search = [
        "search=independent",
        "search.runs=63",
        "search.retune=false",
        "parameterization.alignment=full",
    ]
    searched = lab.search("tuned", "parameterization=standard", *search, *ranges, *ALONE)
    return lab.transfer("tuned", 4 * searched["base"]["width"])


def judge(lab: Lab, found: Found, more: list[str]) -> None:
    """All claims."""
    lab.moves("Everett et al.; u-muP, 2.1", ONE_RATE, verdict(found[ONE_RATE], "width"))
    for name in (*FULL, ADAFACTOR, SGD, *more):
        words = f"{name}, full alignment" if name in FULL else name
        lab.stays("Everett et al., Table 1", words, verdict(found[name], "width"))
    _steadier(lab, found)
    _same(lab, "standard", "NTK", found)
    _same(lab, "muP", "mean-field", found)
    _less(lab, "Everett et al.", found, ("standard", "muP"), "standard (full) does better than muP")
    tuned = "constants of the layer types tuned at the base pay off at large width (standard, full)"
    _less(lab, "Everett et al., constants", found, (TUNED, "standard"), tuned)
    fixed = (
        "a fixed eps that is too large (1e-3) costs loss at large width (mean-field; against 1e-8)"
    )
    _less(lab, "Everett et al., epsilon", found, (FIXED, SMALL), fixed, more=True)
    for name in (SCALED, ATAN2):
        _alike(lab, name, found)


def _steadier(lab: Lab, found: Found) -> None:
    """For Adam and the standard parameterization the paper recommends full alignment."""
    full, none = (farthest(verdict(found[name], "width")) for name in ("standard", NONE))
    ours, theirs = estimate(full["shift_log2"]), estimate(none["shift_log2"])
    lab.claim(
        "Everett et al.",
        "standard, Adam: the best η moves less under full alignment's exponents than under none's",
        f"shift {within(ours)} under full's, {within(theirs)} under none's, at width "
        f"{full['size']['width']}",
        below(apart(ours), apart(theirs)),
    )


def _same(lab: Lab, first: str, second: str, found: Found) -> None:
    """Whether two train alike at their best rates; at a rate that is too high rounding grows."""
    sizes = [one["size"] for one in verdict(found[first], "width")["sizes"]]
    losses = [(least(found[first], size), least(found[second], size)) for size in sizes]
    gaps = [abs(one - other) for pair in losses for one, other in zip(*pair, strict=True)]
    noise, worst = paired(*losses[-1]), max(gaps)
    equal: Answer = "cannot say" if noise.low <= 0 <= noise.high else "not reproduced"
    lab.claim(
        "Everett et al., equivalence",
        f"{first} and {second} train alike: one optimum, one loss",
        f"losses at the best rate differ by {'less than' if worst < ROUNDING else 'up to'} "
        f"{max(worst, ROUNDING):.0e} nats in {len(gaps)} pairs of runs",
        "reproduced" if worst < ROUNDING else equal,
    )


def _gap(first: str, second: str, found: Found) -> tuple[Estimate, Document]:
    """First less second at the best eta of each, paired by seed; the size, the farthest."""
    size = farthest(verdict(found[first], "width"))["size"]
    return paired(least(found[first], size), least(found[second], size)), size


def _less(
    lab: Lab, source: str, found: Found, pair: tuple[str, str], claim: str, *, more: bool = False
) -> None:
    """Whether the first of two trains to the lower loss; `more`: to the higher one."""
    gap, size = _gap(*pair, found)
    lab.claim(
        source,
        claim,
        f"{' less '.join(pair)}: {within(gap, '{:+.4f}')} nats at width {size['width']}, "
        "paired by seed",
        below(NOTHING, gap) if more else below(gap, NOTHING),
    )


def _alike(lab: Lab, name: str, found: Found) -> None:
    """Two ways around an eps that is too large, against an eps that is as good as none."""
    gap, size = _gap(name, SMALL, found)
    room = ALIKE * math.fsum(least(found[SMALL], size)) / len(least(found[SMALL], size))
    lab.claim(
        "Everett et al., epsilon",
        f"{name} does as well as an eps of 1e-8 (mean-field; within 1 %)",
        f"{name} less {SMALL}: {within(gap, '{:+.4f}')} nats at width {size['width']}, "
        "paired by seed",
        near(gap, 0.0, room),
    )


def _rings(ax: Axes, found: Document) -> None:
    """The curves of the parameterization that should train alike."""
    for judged in verdict(found, "width")["sizes"]:
        curve = by_eta(found, judged["size"])
        means = [math.fsum(losses) / len(losses) for losses in curve.values()]
        look: dict[str, Any] = {"markersize": 8, "markerfacecolor": "none", "markeredgewidth": 0.8}
        ax.plot(list(curve), means, "o", color="#222222", linestyle="none", zorder=4, **look)


if __name__ == "__main__":
    main()
