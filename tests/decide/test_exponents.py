"""Exponents fitted to made-up ladders: recovered, with intervals that hold as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from sweeper.decide.trend import FittedExponents, exponents_of, fit_exponents
from sweeper.laws.law import Scale
from sweeper.records import to_json
from sweeper.report.sentences_transfer import exponent_text
from sweeper.stats.curve import BIAS
from sweeper.stats.ladder import LadderRule, LadderSize
from tests.stats.curves import Valley

STEPS = [(8, steps) for steps in (100, 200, 400, 800)]
BATCHES = [(batch, 200) for batch in (4, 8, 16, 32)]
CROSS = [*STEPS, *(one for one in BATCHES if one not in STEPS)]


def scales(sizes: list[tuple[int, int]]) -> list[Scale]:
    return [
        Scale(width=32, depth=2, batch=batch, steps=steps, tokens=64 * batch * steps)
        for batch, steps in sizes
    ]


def optima(sizes: list[Scale], batch: float, tokens: float) -> np.ndarray:
    """log2 eta by known exponents."""
    return np.array([1 + batch * np.log2(s.batch) + tokens * np.log2(s.tokens) for s in sizes])


def made(
    sizes: list[tuple[int, int]], seed: int, batch: float = 0.5, tokens: float = -0.3
) -> FittedExponents | None:
    """A ladder whose optima are off by noise that their draws are honest about."""
    generator, ladder = np.random.default_rng(seed), scales(sizes)
    noise = generator.uniform(0.05, 0.2, (len(ladder), 1))
    found = optima(ladder, batch, tokens) + noise[:, 0] * generator.normal(size=len(ladder))
    draws = found[:, None] + noise * generator.normal(size=(len(ladder), 500))
    return exponents_of(ladder, found, draws)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(STEPS, marks=pytest.mark.long),
        pytest.param(BATCHES, marks=pytest.mark.long),
        CROSS,
    ],
)
def test_intervals_hold_the_truth_in_95_of_100(sizes: list[tuple[int, int]]) -> None:
    truth = {"tokens at a fixed batch": -0.3, "batch at fixed tokens": 0.5}
    truth["batch at fixed steps"] = 0.2
    held: dict[str, list[bool]] = {}
    for seed in range(500):
        fitted = made(sizes, seed)
        assert fitted is not None
        for one in fitted.exponents():
            low, high = one.measured.low, one.measured.high
            held.setdefault(one.direction, []).append(low <= truth[one.direction] <= high)
    # Directions that were not measured are not told.
    told = {len(STEPS): {"tokens at a fixed batch"}, len(CROSS): set(truth)}
    expected = {"batch at fixed steps"} if sizes is BATCHES else told[len(sizes)]
    assert set(held) == expected
    for direction, hits in held.items():
        assert 0.92 <= np.mean(hits) <= 0.98, (direction, np.mean(hits))


def test_whole_curves_recover_the_exponents() -> None:
    """Through curves, their extension and their own noise: the bias of a curve's shape is drawn."""
    ladder, rule = scales(CROSS), LadderRule(widths=(32,), seeds=4, span=3.0)
    hits, values = [], []
    for number in range(16):
        off = np.random.default_rng([number, 1]).normal(0, BIAS, len(ladder))
        where = optima(ladder, 0.5, -0.3) - optima(ladder, 0.5, -0.3)[0] + off
        curves = [
            Valley(optimum=float(optimum), noise=0.005, number=100 * number + i).curve(
                LadderSize(width=32, depth=2, batch_size=scale.batch, steps=scale.steps), rule
            )
            for i, (scale, optimum) in enumerate(zip(ladder, where, strict=True))
        ]
        fitted = fit_exponents(list(zip(ladder, curves, strict=True)), 0.0)
        assert fitted is not None and fitted.sizes == len(CROSS)
        tokens, batch = fitted.log2_eta((0.0, 1.0)), fitted.log2_eta((1.0, 0.0))
        assert tokens is not None and batch is not None
        values.append((tokens[0], batch[0]))
        hits += [tokens[1] <= -0.3 <= tokens[2], batch[1] <= 0.5 <= batch[2]]
    assert np.mean(hits) >= 0.9
    assert np.mean(values, axis=0) == pytest.approx([-0.3, 0.5], abs=0.03)


def test_too_few_sizes_or_none_that_differ() -> None:
    assert made(STEPS[:2], 0) is None and made([STEPS[0]] * 4, 0) is None
    assert made([(8, 100), (8, 200), (16, 100)], 0) is None  # two directions take four sizes
    assert fit_exponents([], 0.0) is None
    ends = [Valley(optimum=9.0).curve(LadderSize(width=32, depth=2, batch_size=b, steps=s))
            for b, s in STEPS]  # fmt: skip
    assert fit_exponents(list(zip(scales(STEPS), ends, strict=True)), 0.0) is None


def test_only_measured_directions_are_told() -> None:
    fitted = made(STEPS, 1)
    assert fitted is not None and fitted.tokens == (51200, 409600) and fitted.batches == (8, 8)
    assert fitted.log2_eta((1.0, 0.0)) is None and fitted.log2_eta((1.0, 1.0)) is None
    (one,) = fitted.exponents()
    names = {published.law: published.inside for published in one.published}
    assert names.keys() == {"horizon", "joint", "Complete(d)P"}
    inside = [law for law, within in names.items() if within]
    assert exponent_text(one).startswith("tokens at a fixed batch: -0.") and ", ".join(
        f"{law} {exponent:+.2f}"
        for law, exponent in (("horizon", -0.32), ("joint", -0.3), ("Complete(d)P", -0.5))
        if law in inside
    ) in exponent_text(one)
    record = to_json(fitted)
    assert record["sizes"] == 4 and record["exponents"][0]["published"][0]["law"] == "horizon"
    # Twice as far is twice the change.
    once, twice = fitted.log2_eta((0.0, 1.0)), fitted.log2_eta((0.0, 2.0))
    assert once is not None and twice == pytest.approx(tuple(2 * end for end in once))
    steps_and_batch = made(BATCHES, 1)
    assert steps_and_batch is not None and steps_and_batch.log2_eta((2.0, 2.0)) is not None
