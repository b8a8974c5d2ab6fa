"""u-muP paper, Figures 3, 8 and 9: how large the operands of matrix products are, and become.

Every number is over three seeds of `sweeper check --scales`, at the best eta of a search.

python scripts/figures/rms.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import yaml
from lab import NOTHING, Document, Lab, below, student, within
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.engine.measurements import RANGES
from sweeper.files import read_json
from sweeper.report.drawing import STYLE
from sweeper.scaling.spec import layer_of, with_layer
from sweeper.stats.estimate import Estimate

PARAMETERIZATIONS = {"umup": "u-muP", "mup": "muP"}
OPERANDS = {"weight": "#31688e", "input": "#4c9f70", "gradient": "#c44e52"}
SEEDS = range(3)
OUT, DOWN, HEAD = "layers.*.attention.out", "layers.*.ffn.down", "head"
FREE = (OUT, DOWN)
"""Products whose input no norm holds."""
NORMAL, LARGEST = -6.0, math.log2(RANGES["e4m3"][1])
"""log2 of E4M3's smallest normal and of its largest number."""
CLOSE, LITTLE = 2.0, 1.0
"""In log2: RMS within a factor of 4 are close to 1, changes within a factor of 2 are little."""
RIGHT = 2.0
"""log2 of how far to the right of the best eta its effect is measured."""
TENSORS = {(HEAD, "weight"): "head's weight", (DOWN, "input"): "last FFN down's input"}
TENSORS |= {(DOWN, "gradient"): "last FFN down's gradient"}
KEYS = {"width": "model.width", "depth": "model.depth"}
KEYS |= {"batch_size": "train.batch_size", "steps": "check.scale_steps"}


@dataclass(frozen=True, kw_only=True)
class Operand:
    """One operand of one product in a run: log2 of its RMS, and the share E4M3 makes 0."""

    product: str
    start: float
    end: float
    lost: float

    @property
    def kind(self) -> str:
        """The product without its layer."""
        return with_layer(self.product, "*")


Run = Mapping[str, Sequence[Operand]]
"""Of one seed the operands of all products with a weight: "input", "weight", "gradient"."""
Runs = Sequence[Run]


def main() -> None:
    """A search and three runs each; then u-muP's with one thing larger at a time."""
    lab, found = Lab.of("rms"), {}
    best, trained, ends = lab.measured("searched", lambda: _searched(lab)).values()
    steps = f"check.scale_steps={trained}"
    for parameterization in PARAMETERIZATIONS:
        found[parameterization] = _runs(
            lab, parameterization, parameterization, best[parameterization], steps
        )
    _starts(lab, found)
    for parameterization, name in PARAMETERIZATIONS.items():
        _grows(lab, name, found[parameterization])
    changed = {f"η x {2**RIGHT:g}": _runs(lab, "eta", "umup", best["umup"] + RIGHT, steps)}
    for axis, (small, large) in ends.items():
        runs = _runs(lab, axis, "umup", best["umup"], steps, f"{KEYS[axis]}={large}")
        changed[f"{axis.replace('_size', '')} x {large / small:g}"] = runs
    effects = {tensor: _effects(found["umup"], changed, tensor) for tensor in TENSORS}
    for tensor, effect in effects.items():
        _depends(lab, TENSORS[tensor], effect)
    lab.finish(lambda: _figure(found, effects))


def _searched(lab: Lab) -> Document:
    """The best eta of each; the steps of the searches, and both ends of what is made larger."""
    best = {
        name: lab.search(name, f"parameterization={name}")["best_log2"]["eta"]
        for name in PARAMETERIZATIONS
    }
    config = yaml.safe_load((lab.folder / "umup" / "config.yaml").read_text())
    return {"best": best, "steps": config["train"]["steps"], "ends": _ends(config)}


def _runs(lab: Lab, name: str, parameterization: str, eta: float, *changed: str) -> Runs:
    """The runs of every seed, of those that are held against others as much as that takes."""

    def measure() -> object:
        every = _scales(lab, name, parameterization, eta, *changed)
        if name not in PARAMETERIZATIONS:
            every = [{t[1]: [_last(run, t)] for t in TENSORS} for run in every]
        return [
            {
                operand: {one.product: [one.start, one.end, one.lost] for one in own}
                for operand, own in run.items()
            }
            for run in every
        ]

    return [
        {
            operand: [
                Operand(product=product, start=float(start), end=float(end), lost=float(lost))
                for product, (start, end, lost) in own.items()
            ]
            for operand, own in run.items()
        }
        for run in lab.measured(name, measure)
    ]


def _scales(lab: Lab, name: str, parameterization: str, eta: float, *changed: str) -> Runs:
    """`sweeper check --scales` of every seed; what is there already is not run again."""
    runs = []
    for seed in SEEDS:
        folder = lab.folder / "scales" / f"{name}-{seed}"
        shared = [
            f"experiment={lab.name}",
            f"parameterization={parameterization}",
            *lab.passed,
            *changed,
        ]
        words = [*shared, f"check.eta={eta:g}", f"check.seed={seed}"]
        if not (folder / "check/scales.json").exists() or _asked(folder) != words:
            place = ["--root", str(folder.parent), f"study={folder.name}"]
            lab.sweeper("check", "--scales", *place, *words)
            (folder / "asked.json").write_text(json.dumps(words))
        runs.append(operands(read_json(folder / "check/scales.json")))
    return runs


def _asked(folder: Any) -> object:
    path = folder / "asked.json"
    return json.loads(path.read_text()) if path.exists() else None


def operands(record: Sequence[Document]) -> Run:
    """The products with a weight, of a record of `check --scales`, in their order."""
    own = {(one["product"], one["operand"], one["step"]): one for one in record}
    last = max(one["step"] for one in record)
    products = [name for name in dict.fromkeys(one["product"] for one in record) if _linear(name)]
    return {
        operand: [
            Operand(
                product=product,
                start=log2(own[product, operand, 0]["rms"]),
                end=log2(own[product, operand, last]["rms"]),
                lost=float(own[product, operand, 0]["e4m3"]["underflow"]),
            )
            for product in products
        ]
        for operand in OPERANDS
    }


def _linear(product: str) -> bool:
    """Not one of attention's two products of activations."""
    return not product.endswith((".logits", ".values"))


def log2(value: object) -> float:
    """Log2 of an RMS; that of 0 is -inf, and what is not finite stays so."""
    size = float(value)
    return math.log2(size) if size > 0 else -math.inf if size == 0 else size


def over(runs: Runs, measure: Callable[[Run], float]) -> Estimate:
    """A number of every seed: its mean with its interval."""
    return student([measure(run) for run in runs])


def at(value: float) -> Estimate:
    """A threshold, to hold an estimate against."""
    return Estimate(value=value, low=value, high=value)


def _starts(lab: Lab, found: Mapping[str, Runs]) -> None:
    """u-muP near 1 and within E4M3's range, muP's weights and gradients near its lower end."""
    for operand in OPERANDS:
        far = student([max(abs(one.start) for one in run[operand]) for run in found["umup"]])
        lab.claim(
            "u-muP, Fig. 3",
            f"u-muP: every {operand} starts with an RMS near 1 (within a factor of {2**CLOSE:g})",
            f"the farthest is off by {within(far)} in log2",
            below(far, at(CLOSE)),
        )
    room = over(found["umup"], _room)
    lab.claim(
        "u-muP, Fig. 3",
        "u-muP: the RMS of every operand stays within E4M3's normal range in training",
        f"at the end {within(room)} in log2 from the nearer end of 2^-6 .. 448",
        below(NOTHING, room),
    )
    for operand in ("weight", "gradient"):
        _lost(lab, operand, found)


def _room(run: Run) -> float:
    """How far the end's RMS are, in log2, from where E4M3's normal numbers end."""
    ends = [one.end for operand in OPERANDS for one in run[operand]]
    return min(min(ends) - NORMAL, LARGEST - max(ends))


def _lost(lab: Lab, operand: str, found: Mapping[str, Runs]) -> None:
    """Shares of entries that E4M3 makes 0 at the start, in the mean over products."""
    shares, sizes = [], []
    for parameterization in ("mup", "umup"):
        runs = found[parameterization]
        shares.append([fmean(one.lost for one in run[operand]) for run in runs])
        sizes.append(fmean(median(one.start for one in run[operand]) for run in runs))
    ours, theirs = (within(student(share), "{:.2%}") for share in shares)
    lab.claim(
        "u-muP, Fig. 3",
        f"muP: {operand}s are small, at risk of underflow, and more so than u-muP's",
        f"median RMS muP 2^{sizes[0]:.1f}, u-muP 2^{sizes[1]:.1f}; entries that E4M3 makes 0: "
        f"muP {ours}, u-muP {theirs}",
        below(NOTHING, student([mup - umup for mup, umup in zip(*shares, strict=True)])),
    )


def growth(run: Run, operand: str) -> dict[str, float]:
    """By kind of product: log2 of how much the RMS grew, in the mean over layers."""
    found: dict[str, list[float]] = {}
    for one in run[operand]:
        found.setdefault(one.kind, []).append(one.end - one.start)
    return {kind: fmean(grown) for kind, grown in found.items()}


def lead(grown: Mapping[str, float], kinds: Sequence[str]) -> float:
    """By how much the least growth of `kinds` is above the largest of all others."""
    others = [value for kind, value in grown.items() if kind not in kinds]
    return min(grown[kind] for kind in kinds) - max(others)


def _grows(lab: Lab, name: str, runs: Runs) -> None:
    """What the paper's Appendix F.3 says of the RMS in training."""
    source, free = "u-muP, Fig. 8", "of attention's output and FFN's down projection"
    _leads(lab, f"{name}: the inputs {free} grow more than any other", runs, "input", FREE)
    _leads(lab, f"{name}: the head's weight grows more than any other", runs, "weight", (HEAD,))
    most = over(runs, lambda run: max(growth(run, "gradient")[kind] for kind in FREE))
    words = f"{within(most)} in log2, the larger of the two"
    lab.claim(source, f"{name}: the gradients {free} shrink", words, below(most, NOTHING))


def _leads(lab: Lab, claim: str, runs: Runs, operand: str, kinds: Sequence[str]) -> None:
    grown = [student([growth(run, operand)[kind] for run in runs]) for kind in kinds]
    ahead = over(runs, lambda run: lead(growth(run, operand), kinds))
    words = f"by {' and '.join(map(within, grown))} in log2, {within(ahead)} ahead of the next"
    lab.claim("u-muP, Fig. 8", claim, words, below(NOTHING, ahead))


def _ends(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The base's value and the largest of every ladder that climbs above it."""
    model, train, ladders = config["model"], config["train"], config["transfer"]
    bases = {"width": model["width"], "depth": model["depth"]}
    bases |= {"batch_size": train["batch_size"], "steps": train["steps"]}
    names = {"width": "widths", "depth": "depths", "batch_size": "batches", "steps": "steps"}
    tops = {axis: max(ladders[name], default=0) for axis, name in names.items()}
    return {axis: (base, tops[axis]) for axis, base in bases.items() if tops[axis] > base}


def _last(run: Run, tensor: tuple[str, str]) -> Operand:
    """A tensor in the last layer."""
    kind, operand = tensor
    own = [one for one in run[operand] if one.kind == kind]
    return max(own, key=lambda one: int(layer_of(one.product) or 0))


Effects = Mapping[str, Sequence[float]]
"""By what was made larger: the change of log2 RMS at the end, one a seed."""


def _effects(base: Runs, changed: Mapping[str, Runs], tensor: tuple[str, str]) -> Effects:
    return {
        name: [
            _last(new, tensor).end - _last(old, tensor).end
            for new, old in zip(runs, base, strict=True)
        ]
        for name, runs in changed.items()
    }


def _depends(lab: Lab, name: str, effects: Effects) -> None:
    """The first effect is that of eta."""
    eta, *others = effects.values()
    most = [max(abs(one) for one in seed) for seed in zip(*others, strict=True)]
    ahead = student([abs(one) - other for one, other in zip(eta, most, strict=True)])
    moved = ", ".join(f"{what} {within(student(by))}" for what, by in effects.items())
    lab.claim(
        "u-muP, Fig. 9",
        f"{name}: its RMS at the end depends on η more than on width, depth, steps and batch",
        f"{moved} in log2; η {within(ahead)} ahead",
        below(NOTHING, ahead),
    )
    lab.claim(
        "u-muP, Fig. 9",
        f"{name}: all but η change it little (by less than a factor of {2**LITTLE:g})",
        f"at most by {within(student(most))} in log2",
        below(student(most), at(LITTLE)),
    )


@rc_context(STYLE)
def _figure(found: Mapping[str, Runs], effects: Mapping[tuple[str, str], Effects]) -> Figure:
    """Above the RMS of all operands, below what the largest depend on."""
    figure = Figure(figsize=(8.0, 6.4), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.25, 1))
    upper, lower = parts
    for ax, parameterization in zip(
        upper.subplots(1, 2, sharex=True, sharey=True), found, strict=True
    ):
        _sizes(ax, found[parameterization], PARAMETERIZATIONS[parameterization])
    upper.axes[0].invert_yaxis()
    upper.axes[0].legend(loc="lower left", bbox_to_anchor=(-0.3, 1.08), ncols=3)
    words = (
        "log2 RMS, at initialization (hollow) and at the end (full); shaded: E4M3's normal range"
    )
    upper.supxlabel(words, fontsize=9)
    for ax, tensor in zip(lower.subplots(1, 3, sharex=True, sharey=True), effects, strict=True):
        rows = list(effects[tensor])
        for row, name in enumerate(rows):
            one = student(effects[tensor][name])
            bar = [[one.value - one.low], [one.high - one.value]]
            ax.errorbar(one.value, row, xerr=bar, fmt="o", color="#31688e", capsize=3, markersize=4)
        ax.axvline(0, color="#777777", linewidth=0.8)
        ax.set_yticks(range(len(rows)), rows)
        ax.set_title(TENSORS[tensor])
    lower.axes[0].invert_yaxis()
    lower.supxlabel("change of log2 RMS at the end (u-muP)", fontsize=9)
    return figure


def _sizes(ax: Axes, runs: Runs, title: str) -> None:
    """A row a product, the mean over the seeds; E4M3's normal range is shaded."""
    ax.axvspan(NORMAL, LARGEST, color="#eef3f7", zorder=0)
    names = [one.product for one in runs[0]["input"]]
    for index, (operand, color) in enumerate(OPERANDS.items()):
        for row, same in enumerate(zip(*(run[operand] for run in runs), strict=True)):
            start, end = fmean(one.start for one in same), fmean(one.end for one in same)
            place = row + 0.22 * (index - 1)
            ax.plot([start, end], [place, place], color=color, linewidth=1)
            ax.plot(start, place, "o", color=color, markerfacecolor="white", markersize=4)
            label = operand if row == 0 else None
            ax.plot(end, place, "o", color=color, markersize=4, label=label)
    ax.set_yticks(range(len(names)), [name.replace("layers.", "") for name in names])
    ax.set_title(title)


if __name__ == "__main__":
    main()
