"""How often `sweeper judge --each` carries a hyperparameter that does nothing, or misses one.

Made-up tables in which twenty hyperparameters were varied one at a time around a point, at one to
three sizes. One of them matters, or none; a run's noise is 0.001 nats. Held: of all lines of a
table the true gain of the best value lies within its interval.

    python scripts/bench/each.py --tables 400
    python scripts/bench/each.py --only moves --tables 100
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sweeper.evidence.each.decision import HyperparameterGain, judge_each
from sweeper.evidence.each.reading import SettingLine, VariedSettings

NOISE = 0.001
ONE = "h0"
"""The hyperparameter that matters."""


@dataclass(frozen=True)
class Kind:
    """Tables of one kind: what was run, and what is true.

    The one that matters gains `gain` at its best, `away` octaves from the default; its optimum
    moves by `slope` octaves a doubling, and the gain shrinks by `fades` a doubling.
    """

    name: str
    sizes: int = 3
    values: tuple[float, ...] = (-2, -1, 0, 1, 2)
    seeds: int = 3
    repeated: int = 0
    gain: float = 0.005
    away: float = 1.0
    slope: float = 0.0
    fades: float = 0.0
    tails: float = math.inf
    count: int = 20
    right: str = "carry"
    known: bool = field(default=False)

    def effect(self, value: float, doublings: float) -> float:
        """The true loss of the one that matters, beside its default's."""
        if not self.gain:
            return 0.0
        gain, optimum = (
            self.gain * (1 - self.fades) ** doublings,
            self.away + self.slope * doublings,
        )
        return gain / self.away**2 * ((value - optimum) ** 2 - optimum**2)


KINDS = (
    Kind("three seeds, three sizes"),
    Kind("three seeds, two sizes", sizes=2),
    Kind("one seed, three sizes", seeds=1),
    Kind("one seed, three sizes, nine values", seeds=1, values=tuple(range(-4, 5)), away=2.0),
    Kind("one seed, noise given", seeds=1, known=True),
    Kind("default five times, others once", seeds=1, repeated=5),
    Kind("noise with heavy tails", tails=4.0),
    Kind("a gain of 0.003", gain=0.003),
    Kind("moves by half an octave", values=(-2, -1, 0, 1, 2, 3), slope=0.5, right="retune"),
    Kind("moves, one seed", values=(-2, -1, 0, 1, 2, 3), seeds=1, slope=0.5, right="retune"),
    Kind("gains at the base alone", fades=1.0, right="leave"),
    Kind("one size alone", sizes=1, right="cannot say"),
    Kind("none matters", gain=0.0, right="leave"),
    Kind("none matters, one seed", gain=0.0, seeds=1, right="leave"),
)


def table(kind: Kind, generator: np.random.Generator) -> VariedSettings:
    """A made-up table as its lines."""
    lines = []
    for doublings in range(kind.sizes):
        shared = generator.normal(0, 3 * NOISE, max(kind.seeds, kind.repeated))

        def cell(seeds: int, effect: float, shared: np.ndarray = shared) -> Mapping[str, float]:
            noise = generator.standard_normal(seeds)
            if math.isfinite(kind.tails):
                noise = generator.standard_t(kind.tails, seeds) / math.sqrt(
                    kind.tails / (kind.tails - 2)
                )
            # Seeds shift all runs alike, but where a default was repeated by itself.
            losses = 3.4 + effect + NOISE * noise + (0.0 if kind.repeated else shared[:seeds])
            return {str(seed): float(loss) for seed, loss in enumerate(losses)}

        default = cell(kind.repeated or kind.seeds, 0.0)
        for place in range(kind.count):
            losses = {
                float(value): default
                if value == 0
                else cell(kind.seeds, kind.effect(value, doublings) if place == 0 else 0.0)
                for value in kind.values
            }
            size = 128.0 * 2**doublings
            line = SettingLine(name=f"h{place}", size=size, default=0.0, losses=losses)
            lines.append(line)
    return VariedSettings(lines=tuple(lines), axis="width" if kind.sizes > 1 else "")


def true_gain(kind: Kind, each: HyperparameterGain) -> float:
    """What the chosen value gains in truth at the base."""
    return -kind.effect(math.log2(float(each.best)), 0.0) if each.name == ONE else 0.0


def tried(kind: Kind, tables: int) -> str:
    """A row of the report."""
    generator = np.random.default_rng(list(map(ord, kind.name)))
    answers: Counter[str] = Counter()
    others: Counter[str] = Counter()
    wrong = held = 0
    told, slopes = list[float](), list[bool]()
    for _ in range(tables):
        varied = table(kind, generator)
        found = judge_each(varied, NOISE if kind.known else None).hyperparameters
        matters = {ONE} if kind.gain else set[str]()
        wrong += any(h.answer in ("carry", "retune") and h.name not in matters for h in found)
        held += all(h.gain.low <= true_gain(kind, h) <= h.gain.high for h in found)
        for each in found:
            (answers if each.name in matters else others)[each.answer] += 1
            told.append(each.gain.value - true_gain(kind, each))
            slope = each.octaves_per_doubling
            if each.name in matters and math.isfinite(slope.value):
                slopes.append(slope.low <= kind.slope <= slope.high)

    def share(count: float, of: float) -> str:
        return f"{100 * count / of:.1f} %" if of else "-"

    total = others.total()
    return " | ".join(
        [
            kind.name,
            kind.right,
            share(answers[kind.right], answers.total()),
            share(wrong, tables),
            share(others["leave"], total),
            share(held, tables),
            share(sum(slopes), len(slopes)),
            f"{np.mean(told):+.5f}",
        ]
    )


def main() -> None:
    """Print a row a kind of table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--only", default="", help="kinds whose names have this")
    options = parser.parse_args()
    print(
        "| tables | the one: right answer | given in | another carried or retuned in "
        "| others: leave | all gains held | slope held | told too large by |"
    )
    print("|---" * 8 + "|")
    for kind in KINDS:
        if options.only in kind.name:
            print(f"| {tried(kind, options.tables)} |", flush=True)


if __name__ == "__main__":
    main()
