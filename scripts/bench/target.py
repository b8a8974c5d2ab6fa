"""How often the answer at a target beyond the ladder is right, and whether its intervals hold.

Run `python scripts/bench/target.py --out target.json`, an hour of a core; `--count 20` for a quick
look. Ladders with known drifts are made up, measured and fitted as `sweeper transfer` does (the
curves of `scripts/bench/verdict.py`), and judged at width 4096. The plan has the optimum of the
base's own curve. True shift and loss gap at the target are those of the form that was drawn, with
the curve of the widest size.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from verdict import Scenario, Truth, Valley, measure

from sweeper.decide.ladder_verdict import judge_ladder
from sweeper.decide.target import NO_THEORY, THEORY
from sweeper.decide.trend import judge_target
from sweeper.stats.curve import fit_curves
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import LadderRule, LadderSize

TARGET = 4096


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The optimum (log2) at `doublings` beyond the narrowest; `scatter` of every width's own."""

    name: str
    at: Callable[[float], float]
    scatter: float = 0.0


def _power(slope: float) -> Callable[[float], float]:
    return lambda doublings: slope * doublings


def _saturating(whole: float) -> Callable[[float], float]:
    return lambda doublings: whole * (1 - 2.0**-doublings)


DRIFTS = (
    Drift(name="no drift", at=_power(0.0)),
    Drift(name="saturating 0.3", at=_saturating(0.3)),
    Drift(name="saturating 0.8", at=_saturating(0.8)),
    Drift(name="scatter 0.15", at=_power(0.0), scatter=0.15),
    Drift(name="slope 0.05", at=_power(0.05)),
    Drift(name="slope 0.1", at=_power(0.1)),
    Drift(name="slope 0.2", at=_power(0.2)),
    Drift(name="slope 0.3", at=_power(0.3)),
    Drift(name="slope -0.9", at=_power(-0.9)),
)


@dataclass(frozen=True, kw_only=True)
class LadderKind:
    """Widths and how well their curves are measured: the noise of a run (nats)."""

    name: str
    widths: tuple[int, ...]
    noise: float
    seeds: int = 2
    step: float = 0.5


KINDS = (
    LadderKind(name="64-256", widths=(64, 128, 256), noise=0.009),
    LadderKind(name="64-512", widths=(64, 128, 256, 512), noise=0.009),
    LadderKind(name="64-512, quieter", widths=(64, 128, 256, 512), noise=0.006),
    LadderKind(name="16-64", widths=(16, 32, 64), noise=0.009),
)
PRIORS = {"theory": THEORY, "no theory": NO_THEORY}
CURVATURE = 0.04
"""Nats per octave squared: 1 % of the loss is lost 0.8 octaves from the optimum."""


@dataclass(kw_only=True)
class Tally:
    """What came of the ladders of one kind, drift and prior."""

    kind: str
    drift: str
    prior: str
    count: int = 0
    ladders_held: int = 0
    holds: int = 0
    fails: int = 0
    wrong: int = 0
    shift: list[int] = field(default_factory=lambda: [0, 0])
    gap: list[int] = field(default_factory=lambda: [0, 0])
    gain: list[int] = field(default_factory=lambda: [0, 0])
    errors: list[float] = field(default_factory=list)
    off: list[float] = field(default_factory=list)
    promised: list[float] = field(default_factory=list)
    saved: list[float] = field(default_factory=list)


def _covered(tally: list[int], estimate: Estimate, truth: float) -> None:
    """Rounding is no miss."""
    tally[0] += estimate.low - 1e-3 <= truth <= estimate.high + 1e-3
    tally[1] += 1


def ladder(kind: LadderKind, drift: Drift, generator: np.random.Generator) -> tuple[Truth, Valley]:
    """A ladder that drifts so, and the target's valley."""
    centre, skew = float(generator.uniform(-0.25, 0.25)), float(generator.uniform(0.1, 0.5))
    valleys = [
        Valley(
            size=LadderSize(width=width, depth=2, batch_size=16, steps=1000),
            optimum=centre
            + drift.at(math.log2(width / kind.widths[0]))
            + float(generator.normal(0, drift.scatter)),
            floor=3.0 * 0.93 ** math.log2(width / kind.widths[0]),
            curvature=CURVATURE,
            skew=skew,
            cliff=math.inf,
        )
        for width in (*kind.widths, TARGET)
    ]
    # The target's curve is taken to be the widest's, moved: so is its loss, as a reference.
    target = replace(valleys[-1], floor=valleys[-2].floor)
    return Truth(valleys=tuple(valleys[:-1]), slope=math.nan, target=target.optimum), target


def run(kind: LadderKind, drift: Drift, count: int, seed: int = 0) -> list[Tally]:
    """Judge as many ladders, with every prior."""
    generator = np.random.default_rng([seed, *kind.name.encode(), *drift.name.encode()])
    rule = LadderRule(widths=kind.widths, seeds=kind.seeds, step=kind.step)
    scenario = Scenario(name=kind.name, noise=(kind.noise, kind.noise), rise=1.0)
    tallies = [Tally(kind=kind.name, drift=drift.name, prior=name) for name in PRIORS]
    for _ in range(count):
        truth, target = ladder(kind, drift, generator)
        curves = measure(scenario, truth, rule, generator)
        fits = fit_curves(curves, 0.0)
        base = fits[curves[0].size]
        planned = base.optimum.value if base else 0.0
        verdict = judge_ladder("width", curves, planned, curves[0].size, rule)
        off, gap = target.optimum - planned, target.loss(planned) - target.floor
        transfers = abs(off) <= rule.max_shift and gap <= rule.max_loss_gap * target.floor
        for tally, prior in zip(tallies, PRIORS.values(), strict=True):
            answer, trend = judge_target(verdict, fits, planned, TARGET, rule, prior)
            tally.count += 1
            tally.ladders_held += verdict.answer == "holds"
            tally.holds += answer.answer == "holds"
            tally.fails += answer.answer == "fails"
            wrong = {"holds": not transfers, "fails": transfers}
            tally.wrong += wrong.get(answer.answer, False)
            tally.off.append(off)
            if trend is None:
                continue
            tally.errors.append(
                float(
                    np.sqrt(
                        np.mean(
                            [
                                (one.optimum_log2.high - one.optimum_log2.low) ** 2
                                for one in verdict.sizes
                            ]
                        )
                    )
                )
                / 3.92
            )
            _covered(tally.shift, trend.off_log2, off)
            _covered(tally.gap, trend.loss_gap, gap)
            saved = gap - (target.loss(trend.predicted_log2.value) - target.floor)
            _covered(tally.gain, trend.gain, saved)
            if trend.warranted:
                tally.promised.append(trend.gain.value)
                tally.saved.append(saved)
    return tallies


def _percent(part: float, of: float) -> str:
    return f"{100 * part / of:.0f}" if of else "-"


def rows(tallies: Sequence[Tally]) -> list[list[str]]:
    """A row a kind of ladder and prior: what holds by drift, what fails, what is wrong."""
    table = []
    for kind in dict.fromkeys(one.kind for one in tallies):
        for prior in PRIORS:
            found = [one for one in tallies if (one.kind, one.prior) == (kind, prior)]
            errors = [error for one in found for error in one.errors]
            corrections = sum(len(one.saved) for one in found)
            hurt = sum(saved < 0 for one in found for saved in one.saved)
            table.append(
                [
                    f"{kind}, error {np.mean(errors):.2f}",
                    prior,
                    *(
                        _percent(one.holds, one.count)
                        + (f" ({_percent(one.fails, one.count)} fail)" if one.fails else "")
                        for one in found
                    ),
                    _percent(sum(one.wrong for one in found), sum(one.count for one in found)),
                    f"{min(100 * one.shift[0] / max(1, one.shift[1]) for one in found):.0f}",
                    f"{min(100 * one.gap[0] / max(1, one.gap[1]) for one in found):.0f}",
                    f"{min(100 * one.gain[0] / max(1, one.gain[1]) for one in found):.0f}",
                    f"{hurt} of {corrections}",
                ]
            )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all ladders and tell what was found."""
    from findings import Findings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="ladders a cell (200)")
    parser.add_argument("--only", default="", help="kinds of ladders whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    asked = parser.parse_args(arguments)
    names = [(kind, drift) for kind in KINDS if asked.only in kind.name for drift in DRIFTS]
    with ProcessPoolExecutor(asked.workers) as pool:
        jobs = [
            pool.submit(_job, KINDS.index(kind), DRIFTS.index(drift), asked.count, asked.seed)
            for kind, drift in names
        ]
        tallies = [tally for job in jobs for tally in job.result()]
    drifts = [drift.name for drift in DRIFTS]
    findings = Findings(
        title=f"Answers at width {TARGET}, per cent called 'holds', {asked.count} ladders a cell",
        columns=[
            "ladder",
            "prior",
            *drifts,
            "wrong",
            "shift",
            "loss gap",
            "gain",
            "corrections hurt",
        ],
        rows=rows(tallies),
        notes=[
            "error: root mean square of the optima's standard errors, as fitted (log2).",
            "wrong: answers against the truth, all drifts together; shift, loss gap, gain: the "
            "worst drift's coverage of the 95 % interval.",
            "corrections hurt: warranted corrections that cost more than they save.",
        ],
        record={"count": asked.count, "tallies": [asdict(tally) for tally in tallies]},
    )
    findings.tell(asked.out, asked.markdown)


def _job(kind: int, drift: int, count: int, seed: int) -> list[Tally]:
    """By number: a drift's function is not sent to another process."""
    return run(KINDS[kind], DRIFTS[drift], count, seed)


if __name__ == "__main__":
    main()
