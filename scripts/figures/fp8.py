"""u-muP paper, Figure 7: training with operands cast to FP8, without any scale beside the model's.

python scripts/figures/fp8.py [size=paper] [OVERRIDES]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab import NOTHING, Lab, below, mean, panels, student, within
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sweeper.report.drawing import LOSS_LABEL, MARKERS, STYLE
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import LadderRule
from sweeper.study.study import StudyRecord
from sweeper.trial import Result

PARAMETERIZATIONS = {"umup": "u-muP", "mup": "muP"}
CASTS = {"none": "no cast", "printed": "as printed", "later": "later version"}
SOURCES = {"printed": "u-muP, Fig. 7", "later": "u-muP, later version"}
FORM = "{:+.4f}"
SHARE = LadderRule.max_loss_gap
"""Of the loss: what the verdict on a transfer lets a learning rate cost."""
LOOKS: dict[str, dict[str, Any]] = {
    "none": {"color": "#bbbbbb", "linewidth": 3.0, "linestyle": "-"},
    "printed": {"color": "#c44e52", "linewidth": 1.2, "linestyle": "-"},
    "later": {"color": "#31688e", "linewidth": 1.2, "linestyle": (0, (4, 2))},
}
"""Where the casts agree, all three can be seen."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A search over eta: its best log2 eta, and all losses by log2 eta, one a seed.

    `curve` is the mean training curve at the best, in equal stretches of the run; `start` is what a
    uniform guess loses.
    """

    best: float
    points: Mapping[float, Sequence[float]]
    curve: Sequence[float]
    steps: int
    start: float

    @property
    def losses(self) -> Sequence[float]:
        """At the best eta, one a seed."""
        return self.points[self.best]


Found = Mapping[tuple[str, str], Line]


def main() -> None:
    """A search of eta for each parameterization and cast; every cast at its own best eta."""
    lab = Lab.of("fp8")
    found = {
        (parameterization, cast): _line(lab, parameterization, cast)
        for parameterization in PARAMETERIZATIONS
        for cast in CASTS
    }
    for cast, source in SOURCES.items():
        _close(lab, source, cast, found)
    _fails(lab, found)
    for cast in SOURCES:
        _less(lab, SOURCES[cast] if cast == "printed" else "own question", cast, found)
    lab.finish(lambda: _figure(found))


def _line(lab: Lab, parameterization: str, cast: str) -> Line:
    kept = lab.measured(
        f"{parameterization} {cast}", lambda: _searched(lab, parameterization, cast)
    )
    points = {float(eta): [*map(float, losses)] for eta, losses in kept["losses"].items()}
    curve, best, steps = [*map(float, kept["curve"])], kept["best"], kept["steps"]
    return Line(best=best, points=points, curve=curve, steps=steps, start=kept["start"])


def _searched(lab: Lab, parameterization: str, cast: str) -> Mapping[str, Any]:
    """The search, and of its results what the claims and the picture rest on."""
    study = f"{parameterization}-{cast}"
    searched = lab.search(study, f"parameterization={parameterization}", f"fp8={cast}")
    results: dict[float, list[Result]] = {}
    for result in sorted(
        StudyRecord.read(lab.folder / study).results(), key=lambda r: r.trial.seed
    ):
        results.setdefault(result.trial.log2_hps["eta"], []).append(result)
    best = searched["best_log2"]["eta"]
    runs = results[best]
    return {
        "best": best,
        "losses": {eta: [run.objective for run in results[eta]] for eta in sorted(results)},
        "curve": [mean(losses) for losses in zip(*(run.curve for run in runs), strict=True)],
        "steps": runs[0].steps,
        "start": math.log(runs[0].trial.spec.data["classes"]),
    }


def costs(found: Found, parameterization: str, cast: str) -> list[float]:
    """What the cast costs in nats, one a seed: these share weights and batches."""
    pairs = zip(
        found[parameterization, cast].losses, found[parameterization, "none"].losses, strict=True
    )
    return [loss - plain for loss, plain in pairs]


def overall(values: Sequence[float]) -> Estimate:
    """The mean with its interval; infinite where every run diverged."""
    if all(value == math.inf for value in values):
        return Estimate(value=math.inf, low=math.inf, high=math.inf)
    return student(values)


def at(value: float) -> Estimate:
    """A threshold, to hold an estimate against."""
    return Estimate(value=value, low=value, high=value)


def _close(lab: Lab, source: str, cast: str, found: Found) -> None:
    plain, cost = mean(found["umup", "none"].losses), overall(costs(found, "umup", cast))
    lab.claim(
        source,
        f"u-muP in FP8 ({CASTS[cast]}) trains close to the baseline: within {SHARE:.0%} of it",
        f"{within(cost, FORM)} nats on {plain:.3f}, up to {SHARE * plain:.4f} allowed",
        below(cost, at(SHARE * plain)),
    )


def _fails(lab: Lab, found: Found) -> None:
    """It fails to train when less than half of what the baseline learns is learnt."""
    plain, cost = found["mup", "none"], overall(costs(found, "mup", "printed"))
    learnt, most = plain.start - mean(plain.losses), SHARE * mean(plain.losses)
    lab.claim(
        "u-muP, Fig. 7",
        f"muP under the plain cast (as printed) does not: it is not within {SHARE:.0%} of it",
        f"{within(cost, FORM)} nats on {mean(plain.losses):.3f}, up to {most:.4f} allowed",
        below(at(most), cost),
    )
    lab.claim(
        "u-muP, Fig. 7",
        "muP under the plain cast (as printed) fails to train: it loses more than half of what "
        "the baseline gains on a uniform guess",
        f"{within(cost, FORM)} nats of {learnt:.3f} gained, {cost.value / learnt:.1%}",
        below(at(learnt / 2), cost),
    )


def _less(lab: Lab, source: str, cast: str, found: Found) -> None:
    """The cost of the cast under muP above that under u-muP, seed by seed."""
    ours, theirs = costs(found, "umup", cast), costs(found, "mup", cast)
    more = [their - our for our, their in zip(ours, theirs, strict=True)]
    lab.claim(
        source,
        f"the cast ({CASTS[cast]}) costs u-muP less than muP",
        f"u-muP {within(overall(ours), FORM)}, muP {within(overall(theirs), FORM)} nats",
        below(NOTHING, overall(more)),
    )


@rc_context(STYLE)
def _figure(found: Found) -> Figure:
    """Above the best loss over eta, below the training at each one's best eta."""
    figure, axes = panels(2, len(PARAMETERIZATIONS), share=True)
    figure.set_size_inches(7.0, 5.6)
    for column, (parameterization, name) in enumerate(PARAMETERIZATIONS.items()):
        upper, lower = axes[column], axes[len(PARAMETERIZATIONS) + column]
        for index, cast in enumerate(CASTS):
            _rates(upper, found[parameterization, cast], cast, MARKERS[index])
            _training(lower, found[parameterization, cast], cast)
        upper.set(title=name, xlabel="learning rate, log2 η")
        lower.set(xlabel="step")
        upper.legend(), lower.legend(title="best η of each")
    lines = list(found.values())
    least = min(mean(line.losses) for line in lines)
    most = max(loss for line in lines if math.isfinite(loss := mean(line.losses)))
    axes[0].set_ylim(least - 0.1, max(most, least + 1.0) + 0.6)
    axes[0].set_ylabel(LOSS_LABEL), axes[len(PARAMETERIZATIONS)].set_ylabel(LOSS_LABEL)
    return figure


def _rates(ax: Axes, line: Line, cast: str, marker: str) -> None:
    points = [(eta, mean(losses)) for eta, losses in sorted(line.points.items())]
    look = {**LOOKS[cast], "marker": marker, "markersize": 3.5}
    shown = [(eta, loss if math.isfinite(loss) else math.nan) for eta, loss in points]
    ax.plot(*zip(*shown, strict=True), label=CASTS[cast], **look)


def _training(ax: Axes, line: Line, cast: str) -> None:
    stretch = line.steps / max(1, len(line.curve))
    steps = [(index + 0.5) * stretch for index in range(len(line.curve))]
    label = f"{CASTS[cast]}, 2^{line.best:g}"
    ax.plot(steps, line.curve, label=label, **LOOKS[cast])


if __name__ == "__main__":
    main()
