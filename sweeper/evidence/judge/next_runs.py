"""Runs of a table that would tell more: cells of its grid, of which size, and how many at each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from sweeper.decide.ladder_verdict import Advice, Verdict
from sweeper.evidence.runs.cells import step_of
from sweeper.evidence.runs.grid import Grid
from sweeper.evidence.runs.roles import AXES
from sweeper.records import NOT_WRITTEN
from sweeper.stats.curve import NOISE_RADIUS, CurveFit
from sweeper.stats.ladder import JOINT_AXIS, LadderRule, LadderSize, SizeCurve

NextReason = (
    Literal["", "edge", "one_seed", "sizes", "no_noise", "seeds", "longer_ladder", "errors"]
    | Literal["finer", "longer_curves"]
)


@dataclass(frozen=True, kw_only=True)
class NextRuns:
    """Runs of one size that would tell more: `runs` more at each of `etas` (log2).

    `code` says why; a record has `why` in words.
    """

    size: Mapping[str, int]
    etas: tuple[float, ...]
    runs: int
    why: str = ""
    code: NextReason = field(default="", compare=False, metadata=NOT_WRITTEN)


def _key(size: LadderSize, axis: str) -> dict[str, int]:
    if axis != JOINT_AXIS:
        return {axis: int(getattr(size, axis))}
    return {key: int(value) for key, value in asdict(size).items() if key in AXES and value > 1}


def _near(curve: SizeCurve, reach: float = 1.0) -> tuple[float, ...]:
    """The values of a curve within so many octaves of its best, its neighbours at least."""
    etas = sorted(curve.losses)
    at = int(np.argmin([np.mean(curve.losses[eta]) for eta in etas]))
    within = [abs(eta - etas[at]) <= reach + 1e-9 for eta in etas]
    return tuple(eta for i, eta in enumerate(etas) if within[i] or abs(i - at) <= 1)


def _beyond(curve: SizeCurve, side: int) -> tuple[float, ...]:
    """Two values more beyond one end of a curve, in its own steps."""
    # At least a quarter of an octave: very fine grids would need many runs to leave their end.
    etas, step = sorted(curve.losses), max(step_of(curve), 0.25)
    if len(etas) == 1:  # it has no side
        return tuple(etas[0] + step * i for i in (-2, -1, 1, 2))
    end = etas[-1] if side > 0 else etas[0]
    return tuple(sorted(end + side * step * i for i in (1, 2)))


def next_of_one_size(grid: Grid, sides: Mapping[LadderSize, int]) -> tuple[NextRuns, ...]:
    """Beyond the end of the one curve, and curves of two sizes more."""
    (curve,) = grid.curves
    key, seeds, proposed = _key(curve.size, grid.axis), max(2, grid.seeds), list[NextRuns]()
    etas = tuple(sorted(curve.losses))
    if curve.size in sides:
        beyond = _beyond(curve, sides[curve.size])
        proposed.append(NextRuns(size=key, etas=beyond, runs=seeds, code="edge"))
        etas = tuple(sorted((*_near(curve), *beyond)))
    if grid.seeds < 2 and not grid.noise:
        # One run more: beside the one that is there it shows the noise.
        proposed.append(NextRuns(size=key, etas=_near(curve), runs=1, code="one_seed"))
    for times in (2, 4):
        larger = {name: times * value for name, value in key.items()}
        proposed.append(NextRuns(size=larger, etas=etas, runs=seeds, code="sizes"))
    return tuple(proposed)


def next_runs_of(
    grid: Grid,
    verdict: Verdict,
    fits: Mapping[LadderSize, CurveFit | None],
    rule: LadderRule,
    sides: Mapping[LadderSize, int],
) -> tuple[NextRuns, ...]:
    """The cells that would settle an open answer, by the verdict's advice; none if settled."""
    # A ladder that fails is settled by that, whatever is open about a target.
    target = verdict.target
    open_target = target is not None and target.answer == "cannot say yet"
    if verdict.answer == "fails" or (verdict.answer == "holds" and not open_target):
        return ()
    # Where the noise is known one run a cell does, as in the table.
    axis, seeds = grid.axis, rule.seeds if grid.noise else max(2, rule.seeds)
    curves, proposed = {curve.size: curve for curve in grid.curves}, list[NextRuns]()

    def more(
        size: LadderSize, etas: tuple[float, ...], code: NextReason, runs: int = seeds
    ) -> None:
        proposed.append(NextRuns(size=_key(size, axis), etas=etas, runs=runs, code=code))

    for size, side in sides.items():
        more(size, _beyond(curves[size], side), "edge")
    for size, fit in fits.items():
        if fit is not None and fit.noise_unknown:
            more(size, _near(curves[size]), "no_noise", 1)
    # Ends and noise first: what else is advised rests on curves that have both.
    if proposed:
        return tuple(proposed)
    advice = verdict.advice
    if needed := advice.needed if advice.seeds is not None else {}:
        # As many as the size that needs least: the base is no noisier than any.
        least = min(needed.values())
        for s, c in curves.items():
            if s in needed or s == grid.base:
                extra = max(needed.get(s, 0), least) - rule.seeds
                more(s, _near(c, NOISE_RADIUS), "seeds", extra)
        return tuple(proposed)
    # Of several sizes the largest stands for one beyond: its curve lies nearest.
    widest = curves[max(curves, key=lambda size: (getattr(size, axis, 0), size))]
    for asked in (advice, target.advice if target else Advice()):
        etas = _near(widest, NOISE_RADIUS)
        proposed += [
            NextRuns(size={axis: size}, etas=etas, runs=seeds, code="longer_ladder")
            for size in asked.ladder
            if size not in {getattr(s, axis) for s in curves}
        ]
        for s, c in curves.items():
            if "seeds" in asked.settings:
                extra = max(1, int(asked.settings["seeds"]) - rule.seeds)
                more(s, _near(c, NOISE_RADIUS), "errors", extra)
            if "step" in asked.settings:
                more(s, tuple((a + b) / 2 for a, b in pairwise(_near(c))), "finer")
            if asked.settings.keys() & {"span", "extend"}:
                more(s, _beyond(c, -1), "longer_curves")
                more(s, _beyond(c, 1), "longer_curves")
    return tuple(proposed)
