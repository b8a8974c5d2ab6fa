"""`search.from=STUDY`: a search that begins at another study's answer, and looks near it alone.

Every hyperparameter that both have begins at the other study's best value. Its range is the
interval of that study's optimum, and its grid the value and both ends: a line that finds its best
at an end goes on there, as any line does. So three points a line tell that the old answer holds,
and where it does not, that is told.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.config.command_line import FROM
from sweeper.config.compose import Tree
from sweeper.errors import BadInput, ConfigError
from sweeper.registry import TARGET, plugin_name
from sweeper.search.strategy import LineResult
from sweeper.stats.curve import fit_curves, rest_near_best
from sweeper.stats.estimate import UNKNOWN, Estimate
from sweeper.stats.ladder import KnownNoise, LadderSize, SizeCurve
from sweeper.study.searched import read_searched
from sweeper.study.study import check_study_name, find_study
from sweeper.trial import Axis, Space

LEAST = 0.5
"""Octaves to both sides that a warm search looks at, at least: a range of nothing finds nothing."""
POINTS = 3
"""Of every line: the old answer, and both ends of its interval."""
LINES = ("eta", "lines", "line")
"""Rules of lines in the settings of searches."""


@dataclass(frozen=True, kw_only=True)
class OutsideAnswer:
    """A hyperparameter's `start`, and an `optimum` at the old interval's end or beyond (log2)."""

    name: str
    start: float
    optimum: float


def warm_tree(tree: Tree, name: str, typed: Collection[str]) -> Tree:
    """The configuration with ranges and grids around the answer of the study `name`.

    Keys that the user `typed` stay. BadInput for a study without an answer to this one.
    """
    if (tree.get("study") or {}).get("name") == name:
        raise ConfigError(FROM, name, "another study than the one that it searches")
    root = Path(str(tree.get("root", ""))).expanduser()
    folder = root / find_study(check_study_name(name), root)
    damaged = list[str]()
    searched = read_searched(folder, damaged)
    if damaged:
        raise BadInput(damaged[0])
    if searched is None or not math.isfinite(searched.conclusion.objective):
        raise BadInput(f"the study {name!r} has no answer to begin at: its search found none")
    parameterization = tree["parameterization"]
    ours = plugin_name("parameterization", str(parameterization[TARGET]))
    if searched.parameterization != ours:
        raise ConfigError(
            FROM,
            name,
            f"a study of parameterization={ours}: the answer of {searched.parameterization} says "
            "nothing of its values",
        )
    space: dict[str, Any] = {**parameterization["space"]}
    intervals = _intervals(searched.conclusion.lines)
    key = "parameterization.space"
    shared = [n for n in space if n in searched.conclusion.best_log2 and n in searched.space]
    if not shared:
        raise ConfigError(FROM, name, "a study that searched what this one searches")
    for each in shared:
        if not {f"{key}.{each}", *(f"{key}.{each}.{end}" for end in ("low", "high"))} & {*typed}:
            best = searched.conclusion.best_log2[each]
            space[each] = _narrowed(space[each], searched.space[each], best, intervals.get(each))
    search = {**tree["search"]}
    for rule in LINES:
        if isinstance(search.get(rule), Mapping) and not any(
            word == f"search.{rule}" or word == f"search.{rule}.points" for word in typed
        ):
            search[rule] = {**search[rule], "points": POINTS}
    return {**tree, "parameterization": {**parameterization, "space": space}, "search": search}


def _narrowed(ours: Any, old: Axis, best: float, interval: Estimate | None) -> Any:
    if old.choices or not isinstance(ours, Mapping) or "choices" in ours:
        choice = old.choices[round(best)] if old.choices else None
        can = isinstance(ours, Mapping) and choice in ours.get("choices", ())
        return {**ours, "default": choice} if can else ours
    if float(ours["low"]) == float(ours["high"]):
        return ours  # it is held
    most = max(LEAST, (old.high - old.low) / 2)
    reach = max(interval.high - best, best - interval.low) if interval else most
    reach = min(most, max(LEAST, reach)) if math.isfinite(reach) else most
    # A spacing in eighths of an octave, so that values are those that other lines have.
    reach = math.ceil(8 * reach - 1e-9) / 8
    return {**ours, "low": best - reach, "high": best + reach, "default": best, "step": reach}


def _intervals(lines: Sequence[LineResult]) -> dict[str, Estimate]:
    # The fit asks for a size, which is a name here.
    size = LadderSize(width=1, depth=1, batch_size=1, steps=1)
    curves = {
        line.name: SizeCurve(
            size=size,
            losses={
                value: (loss,)
                for value, loss in sorted(line.points_log2)
                if value not in (*line.stopped_log2, *line.failed_log2)
            },
        )
        for line in lines
        if not line.choices
    }
    # One run a point: the noise of all lines together is what smooth curves leave of them.
    rests = [rest for curve in curves.values() if (rest := rest_near_best(curve))[1]]
    freedom = sum(count for _, count in rests)
    if freedom < 2:
        return {}
    squares = sum(level * count for level, count in rests)
    noise = KnownNoise(deviation=math.sqrt(squares / freedom), freedom=freedom, single=True)
    fits = {n: fit_curves([replace(c, noise=noise)], 0.0)[size] for n, c in curves.items()}
    return {name: UNKNOWN if fit.at_end else fit.optimum for name, fit in fits.items() if fit}


def outside(space: Space, lines: Collection[LineResult]) -> list[OutsideAnswer]:
    """The hyperparameters of a warm search whose optimum is not within their narrowed range."""
    return [
        OutsideAnswer(name=line.name, start=axis.default, optimum=line.optimum_log2)
        for line in lines
        if (axis := space.get(line.name)) is not None
        and axis.step is not None
        and math.isfinite(line.objective)
        and abs(line.optimum_log2 - axis.default) >= axis.step - 1e-9
    ]
