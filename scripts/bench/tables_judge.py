"""How `judge` does on ladders that others published: StepLaw's, of one seed (arXiv:2503.04715).

Run `python scripts/bench/tables_judge.py dense_lr_bs_loss.csv`, some minutes of a core. The table
has 17 cells of parameters and tokens, each with some twelve learning rates by ten batch sizes. A
ladder goes along tokens at one model and batch, or along parameters at one batch and one number of
tokens a parameter. The truth of a curve is a surface over learning rate and batch that is fitted to
its cell without that curve.

Ladders of `HELD` were set aside before anything was changed for this table. How far a seed's own
optimum lies off is chosen by `--choose`: for each model and each ratio on what shares no curve with
its ladders, and it is tried on these.

With `--cut` the last size of every ladder ends too early, on either side: at its best rate (cut 1),
or one rate before it (cut 2), so that its best is a bound. The rule was set before it was tried.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from tables import Findings

from sweeper.decide.target import OVER_TOKENS, TURNING, Prior, Shape, predict
from sweeper.evidence.judge.decision import TableQuestion, TableVerdict, judge_runs
from sweeper.evidence.runs.grid import grid_of, ladder_runs
from sweeper.evidence.runs.run import Runs
from sweeper.stats.curve import BIAS, OWN_OPTIMUM, fit_curves
from sweeper.stats.estimate import Array

HELD = {"models": (268304384, 536872960, 1073741824), "ratios": (53, 93)}
"""Models of the ladders along tokens, and ratios of those along parameters, that are held out."""
REACH = 0.12
"""Nats above its best, up to which a curve counts for the surface: beyond lie its cliffs."""
CLEAR = 0.7
"""A ladder clearly transfers within so much of both thresholds, clearly not beyond 2 - this."""
Losses = Callable[[Array], Array]


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Curves of one batch size, by what grows along them."""

    axis: str
    name: str
    held: bool
    batch: int
    sizes: tuple[tuple[int, int], ...]


def cells_of(path: Path) -> dict[tuple[int, int], pandas.DataFrame]:
    """The runs by parameters and tokens, with log2 of rate and batch."""
    frame = pandas.read_csv(path)
    frame = frame.assign(x=np.log2(frame["lr"]), b=np.log2(frame["bs"]), y=frame["smooth loss"])
    return {(int(n), int(d)): rows for (n, d), rows in frame.groupby(["N", "D"])}


def ladders_of(cells: dict[tuple[int, int], pandas.DataFrame]) -> Iterator[Ladder]:
    """All ladders of two curves or more whose batch is at no end of its cell's."""
    kinds: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for n, d in sorted(cells):
        kinds.setdefault(("tokens", n), []).append((n, d))
        ratio = min((18.6, 53.0, 93.2), key=lambda value: abs(math.log(d / n / value)))
        if abs(math.log(d / n / ratio)) < 0.02:
            kinds.setdefault(("params", round(ratio)), []).append((n, d))
    for (axis, value), sizes in kinds.items():
        inner = [{*sorted(cells[size]["bs"].unique())[1:-1]} for size in sizes]
        held = value in HELD["models" if axis == "tokens" else "ratios"]
        for batch in sorted(set.union(*inner)):
            there = tuple(s for s, batches in zip(sizes, inner, strict=True) if batch in batches)
            if len(there) > 1:
                name = f"{axis} at {value} and batch {batch}"
                yield Ladder(axis=axis, name=name, held=held, batch=int(batch), sizes=there)


def surface(rows: pandas.DataFrame, batch: int) -> Losses:
    """The expected loss over log2 rate at a batch, as all runs but those of that batch say."""
    least = rows.groupby("b")["y"].transform("min")
    rows, least = rows[rows["y"] < least + REACH], least[rows["y"] < least + REACH]
    left = rows["bs"] != batch
    rows, least = rows[left], least[left]
    centre = rows["x"].mean(), rows["b"].mean()

    def terms(x: Any, b: Any) -> Array:
        powers = [(i, j) for i in range(5) for j in range(4) if i + j <= 4]
        return np.stack([(x - centre[0]) ** i * (b - centre[1]) ** j for i, j in powers], axis=-1)

    # The basin counts: its curvature is what the optimum is read off.
    weights = 1 / (0.02 + (rows["y"] - least).to_numpy())
    matrix = terms(rows["x"].to_numpy(), rows["b"].to_numpy())
    solved, *_ = np.linalg.lstsq(
        matrix * weights[:, None], rows["y"].to_numpy() * weights, rcond=None
    )
    return lambda x: terms(x, math.log2(batch)) @ solved


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A curve as its cell's surface has it: the best log2 rate, and the loss above the least."""

    optimum: float
    least: float
    losses: Losses = field(repr=False)

    def gap(self, at: float) -> float:
        """What a log2 rate loses (nats)."""
        return max(0.0, float(self.losses(np.array([at]))[0]) - self.least)


def truth_of(rows: pandas.DataFrame, batch: int) -> Truth:
    """Of the curve of a batch, within the rates that were trained."""
    losses, own = surface(rows, batch), rows[rows["bs"] == batch]
    x = np.arange(own["x"].min(), own["x"].max() + 0.005, 0.01)
    at = int(losses(x).argmin())
    return Truth(optimum=float(x[at]), least=float(losses(x)[at]), losses=losses)


def judged(
    ladder: Ladder, cells: dict[tuple[int, int], pandas.DataFrame], *, target: int | None = None
) -> TableVerdict:
    """The verdict on a ladder as a table of one seed; with a `target`, on what lies below it."""
    return judge_runs(runs_of(ladder, cells, target), TableQuestion(to=target))


def runs_of(
    ladder: Ladder, cells: dict[tuple[int, int], pandas.DataFrame], target: int | None = None
) -> Runs:
    """A ladder as a table of one seed, up to a `target`."""
    parts = []
    for n, d in ladder.sizes:
        rows = cells[n, d][cells[n, d]["bs"] == ladder.batch]
        size = d if ladder.axis == "tokens" else n
        if target is None or size < target:
            kept = rows[["lr"]].assign(loss=rows["y"])
            parts.append(kept.assign(**{COLUMN[ladder.axis]: size}))
    return ladder_runs(Runs(frame=pandas.concat(parts, ignore_index=True), name=ladder.name))


COLUMN = {"tokens": "tokens", "params": "width"}
"""The column that a ladder's sizes stand in."""


@dataclass(kw_only=True)
class Tally:
    """What came of some ladders."""

    inside: list[bool] = field(default_factory=list)
    halves: list[float] = field(default_factory=list)
    answers: dict[str, dict[str, int]] = field(default_factory=dict)
    at_target: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, ladder: Ladder, cells: dict[tuple[int, int], pandas.DataFrame]) -> None:
        """Judge a ladder, whole and up to its last size, and count both."""
        truths = [truth_of(cells[size], ladder.batch) for size in ladder.sizes]
        found = judged(ladder, cells)
        assert found.verdict is not None
        for size, truth in zip(found.verdict.sizes, truths, strict=True):
            if not size.at_end and math.isfinite(size.optimum_log2.high):
                optimum = size.optimum_log2
                self.inside.append(optimum.low <= truth.optimum <= optimum.high)
                self.halves.append((optimum.high - optimum.low) / 2)
        kind = kind_of(truths)
        counts = self.answers.setdefault(kind, {})
        counts[found.answer] = counts.get(found.answer, 0) + 1
        if len(ladder.sizes) > 2:
            self._predicted(ladder, cells, truths)

    def _predicted(
        self,
        ladder: Ladder,
        cells: dict[tuple[int, int], pandas.DataFrame],
        truths: Sequence[Truth],
    ) -> None:
        n, d = ladder.sizes[-1]
        found = judged(ladder, cells, target=d if ladder.axis == "tokens" else n)
        told = found.predicted
        self.at_target.setdefault("asked", []).append(1)
        if told is None:
            return
        last = truths[-1]
        lost, stayed = last.gap(told.value), last.gap(found.transferred_log2_eta)
        self.at_target.setdefault("inside", []).append(told.low <= last.optimum <= told.high)
        self.at_target.setdefault("lost", []).append(lost)
        self.at_target.setdefault("untransferred", []).append(stayed)


def kind_of(truths: Sequence[Truth]) -> str:
    """Whether a ladder transfers by its surfaces, clearly or not."""
    base, worst = truths[0], 0.0
    for truth in truths[1:]:
        shift = abs(truth.optimum - base.optimum)
        worst = max(worst, shift, truth.gap(base.optimum) / (0.01 * truth.least))
    return "transfers" if worst <= CLEAR else "fails" if worst >= 2 - CLEAR else "near"


def judge_tables(path: Path, only: str = "", every: int = 1) -> Findings:
    """Judge all ladders, those for choosing and those held out apart."""
    cells, tallies = cells_of(path), dict[str, Tally]()
    for index, ladder in enumerate(ladders_of(cells)):
        group = f"{ladder.axis}, {'held out' if ladder.held else 'for choosing'}"
        if only in group and index % every == 0:
            tallies.setdefault(group, Tally()).add(ladder, cells)
    rows = []
    for group, tally in tallies.items():
        clear, right, wrong = 0, 0, 0
        for kind, opposite, same in (
            ("transfers", "fails", "holds"),
            ("fails", "holds", "fails"),
        ):
            counts = tally.answers.get(kind, {})
            clear += sum(counts.values())
            right, wrong = right + counts.get(same, 0), wrong + counts.get(opposite, 0)
        told = tally.at_target
        rows.append(
            [
                group,
                str(sum(sum(counts.values()) for counts in tally.answers.values())),
                f"{100 * np.mean(tally.inside):.0f} % of {len(tally.inside)}",
                f"{np.median(tally.halves):.2f}" if tally.halves else "-",
                str(clear),
                str(right),
                str(wrong),
                f"{len(told.get('inside', []))} of {len(told.get('asked', []))}",
                f"{100 * np.mean(told['inside']):.0f} %" if "inside" in told else "-",
                f"{np.mean(told['lost']):.4f}" if "inside" in told else "-",
                f"{np.mean(told['untransferred']):.4f}" if "inside" in told else "-",
            ]
        )
    return Findings(
        title="StepLaw's ladders, of one seed",
        columns=[
            *("ladders", "how many", "optimum inside 95 %", "half width", "clear", "right"),
            *("wrong", "predicted", "inside 95 %", "loses", "base's loses"),
        ],
        rows=rows,
        notes=[
            "optimum: how often the interval of a curve's holds that of the surface without it.",
            f"clear: ladders whose surfaces lie within {CLEAR} of both thresholds, or beyond "
            f"{2 - CLEAR:.1f} of one; right and wrong answers to these.",
            "predicted: the last size of three or more from the others; what the predicted rate "
            "loses there, and the base's best, in nats by the surface.",
        ],
        record={"groups": {group: asdict(tally) for group, tally in tallies.items()}},
    )


def cut_runs(runs: Runs, column: str, side: int, cut: int) -> Runs:
    """A ladder whose last size ends at its lowest rate but `cut` - 1, counted from that `side`."""
    frame = runs.frame
    last = frame[frame[column] == frame[column].max()].sort_values("lr")
    lowest = int(last["loss"].to_numpy().argmin())
    gone = last.index[lowest + 2 - cut :] if side > 0 else last.index[: lowest + cut - 1]
    return replace(runs, frame=frame.drop(gone).reset_index(drop=True))


def judge_cut(path: Path, every: int = 1) -> Findings:
    """Where the curves of last sizes that end too early have their optima, against the surfaces."""
    cells = cells_of(path)
    seen: dict[tuple[int, int], list[tuple[float, float, float] | None]] = {}
    for ladder in list(ladders_of(cells))[::every]:
        true = truth_of(cells[ladder.sizes[-1]], ladder.batch).optimum
        for side, cut in ((-1, 1), (-1, 2), (1, 1), (1, 2)):
            runs = cut_runs(runs_of(ladder, cells), COLUMN[ladder.axis], side, cut)
            curves = grid_of(runs, TableQuestion().reading).curves
            fit = fit_curves(curves, 0.0)[curves[-1].size]
            if fit is None or fit.side != side:
                continue
            ends = None
            if fit.past_end is not None:
                draws = fit.past_end.free_optimum_draws
                low, high = np.percentile(draws, [2.5, 97.5], method="nearest")
                ends = (float(low), float(high), true)
            seen.setdefault((side, cut), []).append(ends)
    rows = []
    for (side, cut), each in seen.items():
        told = [ends for ends in each if ends is not None]
        inside = {ends: ends[0] <= ends[2] <= ends[1] for ends in told}
        bounded = [held for ends, held in inside.items() if np.isfinite(ends).all()]
        rows.append(
            [
                f"{'low' if side < 0 else 'high'} rates, {cut}",
                str(len(each)),
                str(len(told)),
                f"{100 * np.mean([*inside.values()]):.0f} %" if told else "-",
                f"{sum(bounded)} of {len(bounded)}",
            ]
        )
    return Findings(
        title="StepLaw's ladders whose last curve ends too early",
        columns=["cut", "best at an end", "followed past it", "inside 95 %", "bounded, inside"],
        rows=rows,
        notes=["inside: the optimum of the surface; bounded: by an interval that is finite."],
        record={},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Misses:
    """How far the optima of a ladder's curves lie off their surfaces', and by their noise alone."""

    ladder: Ladder
    sizes: tuple[tuple[int, int], ...]
    optima: Array
    off: Array
    noise: Array

    def log_likelihood(self, own: float, shared: float) -> float:
        """Of these deviations of a seed's optimum: each size's own, and all sizes' alike."""
        covariance = np.diag(self.noise**2 + own**2) + shared**2
        size = np.linalg.slogdet(covariance)[1]
        return float(-(size + self.off @ np.linalg.solve(covariance, self.off)) / 2)


def misses_of(ladder: Ladder, cells: dict[tuple[int, int], pandas.DataFrame]) -> Misses:
    """Of the curves whose lowest point is at no end."""
    curves = grid_of(runs_of(ladder, cells), TableQuestion().reading).curves
    fits = fit_curves(curves, 0.0)
    sizes, optima, off, noise = [], [], [], []
    for size, curve in zip(ladder.sizes, curves, strict=True):
        fit = fits[curve.size]
        if fit is None or fit.at_end:
            continue
        low, high = np.percentile(fit.free_optimum_draws - fit.own_shifts, [2.5, 97.5])
        sizes.append(size)
        optima.append(fit.optimum.value)
        off.append(fit.optimum.value - truth_of(cells[size], ladder.batch).optimum)
        noise.append(math.hypot((high - low) / (2 * 1.96), BIAS))
    arrays = {"optima": np.array(optima), "off": np.array(off), "noise": np.array(noise)}
    return Misses(ladder=ladder, sizes=tuple(sizes), **arrays)


def over_tokens(weight: float, mean: float, spread: float) -> Prior:
    """`OVER_TOKENS` with another form that turns."""
    forms: dict[Shape, float] = {**OVER_TOKENS.forms, "power law": 0.9 - weight}
    if weight:
        forms[TURNING] = weight
    else:
        del forms[TURNING]
    return Prior(name="turning", forms=forms, bend=(mean, spread))


def bend_text(bend: tuple[float, float, float]) -> str:
    """In numbers."""
    return " ".join(f"{number:g}" for number in bend)


def last_density(found: Misses, prior: Prior) -> float:
    """The log density of the last size's surface, as predicted from the other curves' optima."""
    sizes = [d for _, d in found.sizes]
    errors = np.hypot(found.noise, OWN_OPTIMUM)
    told = predict(sizes[:-1], found.optima[:-1], errors[:-1], sizes[-1], prior)
    shown = told.widened(OWN_OPTIMUM)
    off = (found.optima[-1] - found.off[-1] - shown.means) / shown.deviations
    return float(np.log(shown.weights @ (np.exp(-(off**2) / 2) / shown.deviations)))


def choose(path: Path, every: int = 1) -> Findings:
    """The likeliest deviations of a seed's optimum, each group of ladders left out in turn."""
    cells = cells_of(path)
    ladders = [ladder for i, ladder in enumerate(ladders_of(cells)) if i % every == 0]
    misses = [found for ladder in ladders if len((found := misses_of(ladder, cells)).off)]
    steps = np.arange(0.0, 0.21, 0.01)

    def likeliest(some: Sequence[Misses]) -> tuple[float, float]:
        return max(
            ((own, shared) for own in steps for shared in steps),
            key=lambda pair: sum(found.log_likelihood(*pair) for found in some),
        )

    bends = [
        (w, m, d) for w in (0.0, 0.25, 0.45) for m in (-0.05, -0.1, -0.15) for d in (0.05, 0.1)
    ]
    longer = [m for m in misses if m.ladder.axis == "tokens" and len(m.sizes) > 2]
    densities = {id(m): [last_density(m, over_tokens(*bend)) for bend in bends] for m in longer}
    rows, inside = [], list[bool]()
    for group in dict.fromkeys(found.ladder.name.split(" and ")[0] for found in misses):
        out = [found for found in misses if found.ladder.name.startswith(f"{group} and")]
        curves = {(size, found.ladder.batch) for found in out for size in found.sizes}
        left = [
            found
            for found in misses
            if not curves & {(size, found.ladder.batch) for size in found.sizes}
        ]
        own, shared = likeliest(left)
        reach = [1.96 * np.sqrt(m.noise**2 + own**2 + shared**2) for m in out]
        held = [bool(h) for m, r in zip(out, reach, strict=True) for h in np.abs(m.off) <= r]
        inside += held
        share = f"{100 * np.mean(held):.0f} % of {len(held)}"
        # Ladders along tokens of two models share no curve.
        both = [[m for m in longer if (m in out) is left_out] for left_out in (False, True)]
        sums = [np.sum([densities[id(m)] for m in some], axis=0) for some in both]
        bend = ["-", "-"]
        if group.startswith("tokens") and both[1]:
            best = int(np.argmax(sums[0]))
            bend = [bend_text(bends[best]), f"{(sums[1][best] - sums[1][0]) / len(both[1]):+.2f}"]
        rows.append([group, f"{own:.2f}", f"{shared:.2f}", share, *bend])
    own, shared = likeliest(misses)
    all_held = f"left out: {100 * np.mean(inside):.0f} %"
    every_one = np.sum([densities[id(m)] for m in longer], axis=0)
    bend = [bend_text(bends[int(np.argmax(every_one))]), "-"]
    rows.append(["none", f"{own:.2f}", f"{shared:.2f}", all_held, *bend])
    return Findings(
        title="A seed's own optimum: standard deviations in octaves",
        columns=["left out", "own", "shared", "inside 95 %", "turning", "log density"],
        rows=rows,
        notes=[
            "chosen on ladders that share no curve with those left out, tried on these.",
            "own: a size's; shared: all sizes' of a seed. turning: weight, mean and deviation of "
            "the form that rises and then falls; the mean log density that it gives the last "
            "optimum of a ladder from the others, beyond that without the form.",
        ],
        record={},
    )


def main(words: Sequence[str] | None = None) -> None:
    """Judge the table and tell what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="dense_lr_bs_loss.csv of step-law/steplaw")
    parser.add_argument("--only", default="", help="groups whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="one ladder in so many")
    parser.add_argument("--cut", action="store_true", help="the last size's curve ends too early")
    parser.add_argument("--choose", action="store_true", help="how far a seed's optimum is off")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    given = parser.parse_args(words)
    if given.choose:
        findings = choose(given.table, given.every)
    elif given.cut:
        findings = judge_cut(given.table, given.every)
    else:
        findings = judge_tables(given.table, given.only, given.every)
    findings.tell(given.out, given.markdown)


if __name__ == "__main__":
    main()
