import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sweeper.errors import BadInput
from sweeper.evidence.each.decision import (
    EachAnswer,
    HyperparameterGain,
    LineGains,
    RunNoise,
    _holm,
    judge_each,
)
from sweeper.evidence.each.reading import SettingLine, VariedSettings, _point, varied_settings
from sweeper.evidence.runs.read import read
from sweeper.stats.estimate import Array
from sweeper.stats.ladder import KnownNoise

NOISE, GAIN = 0.001, 0.006
VALUES = (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0)


def made(
    seed: int = 0,
    *,
    count: int = 5,
    sizes: int = 3,
    seeds: int = 3,
    slope: float = 0.0,
    fades: float = 0.0,
    gain: float = GAIN,
) -> VariedSettings:
    """Lines of `count` hyperparameters, of which h0 gains `gain` one octave above its default."""
    generator, lines = np.random.default_rng(seed), []
    for doublings in range(sizes):

        def cell(effect: float) -> Mapping[str, float]:
            losses = 3.4 + effect + generator.normal(0, NOISE, seeds)
            return {str(at): float(loss) for at, loss in enumerate(losses)}

        default, best = cell(0.0), 1 + slope * doublings
        for place in range(count):
            here = gain * (1 - fades) ** doublings if place == 0 else 0.0
            losses = {
                value: cell(here * ((value - best) ** 2 - best**2)) if value else default
                for value in VALUES
            }
            size = 64.0 * 2**doublings
            lines.append(SettingLine(name=f"h{place}", size=size, default=0.0, losses=losses))
    return VariedSettings(lines=tuple(lines), axis="width" if sizes > 1 else "")


def of(each: EachAnswer, name: str = "h0") -> HyperparameterGain:
    return next(gain_of for gain_of in each.hyperparameters if gain_of.name == name)


def test_what_gains_at_every_size_is_carried_and_what_does_nothing_is_not() -> None:
    each = judge_each(made())
    assert each.named("carry") == ["h0"] and not each.named("retune")
    settled = of(each)
    assert settled.best == 2.0 and settled.default == 1.0
    assert settled.gain.low < GAIN < settled.gain.high and settled.gain.low > 0
    assert settled.octaves_per_doubling.low < 0 < settled.octaves_per_doubling.high
    assert each.noise == pytest.approx(NOISE, rel=0.25)


def test_an_optimum_that_moves_is_retuned_by_what_it_moves() -> None:
    settled = of(judge_each(made(slope=0.5)))
    assert settled.answer == "retune"
    assert settled.octaves_per_doubling.low < 0.5 < settled.octaves_per_doubling.high


def test_a_gain_of_the_base_alone_is_not_carried() -> None:
    settled = of(judge_each(made(fades=1.0)))
    assert (settled.answer, settled.lacking) == ("leave", "fades")


def test_one_size_leaves_open_what_gains_and_proposes_a_ladder() -> None:
    each = judge_each(made(sizes=1))
    settled = of(each)
    assert (settled.answer, settled.lacking) == ("cannot say", "sizes") and settled.gain.low > 0
    (runs,) = settled.next
    assert runs.sizes == (128.0, 256.0) and {1.0, 2.0} <= {*runs.values}
    assert each.named("leave") and not each.named("carry")


def test_single_runs_tell_by_smooth_curves_and_without_noise_nothing() -> None:
    each = judge_each(made(seeds=1, gain=0.012))
    assert each.named("carry") == ["h0"]
    few = made(seeds=1, sizes=1, count=1)
    line = replace(few.lines[0], losses={v: few.lines[0].losses[v] for v in (0.0, 1.0)})
    settled = of(judge_each(replace(few, lines=(line,))))
    assert (settled.answer, settled.lacking, settled.next[0].seeds) == ("cannot say", "noise", 3)


def test_a_default_that_diverged_is_asked_for_beside_the_best() -> None:
    varied = made(sizes=1, count=1, seeds=8)
    line = varied.lines[0]
    wild = dict.fromkeys(line.losses[0.0], math.inf)
    settled = of(
        judge_each(replace(varied, lines=(replace(line, losses={**line.losses, 0.0: wild}),)))
    )
    assert (settled.answer, settled.lacking) == ("cannot say", "runs around")
    assert settled.best == 2.0 and math.isinf(settled.gain.high)


def test_a_default_that_was_not_run_is_asked_for() -> None:
    varied = made(count=1)
    base, *larger = varied.lines
    without = {value: cell for value, cell in base.losses.items() if value}
    settled = of(judge_each(replace(varied, lines=(replace(base, losses=without), *larger))))
    assert (settled.answer, settled.lacking) == ("cannot say", "runs around")
    assert settled.default in settled.next[0].values
    # At a larger size it lies on the chord between its neighbours.
    last = larger[-1]
    without = {value: cell for value, cell in last.losses.items() if value}
    lines = (base, larger[0], replace(last, losses=without))
    assert of(judge_each(replace(varied, lines=lines))).answer == "carry"


def test_the_luckiest_of_many_is_taken_out() -> None:
    noise = RunNoise(KnownNoise(deviation=NOISE, freedom=1000), True)
    generator, seemed, thinned = np.random.default_rng(3), list[float](), list[float]()
    for _ in range(80):
        cells = {
            float(value): {str(s): float(x) for s, x in enumerate(generator.normal(3, NOISE, 3))}
            for value in range(7)
        }
        line = SettingLine(name="h", size=1, default=3.0, losses=cells)
        gains = LineGains.of(line, noise)
        seemed.append(float(gains.gains.max()))
        thinned.append(gains.unlucky())
    error = np.std(thinned) / math.sqrt(len(thinned))
    assert np.mean(seemed) > 5 * error and abs(float(np.mean(thinned))) < 3 * error
    assert LineGains.of(replace(line, losses={3.0: cells[3.0]}), noise) is None


@settings(max_examples=2, deadline=None)
@given(order=st.permutations(range(9)), shift=st.integers(-8, 8), seed=st.integers(0, 3))
def test_neither_the_order_of_lines_nor_units_change_an_answer(
    order: list[int], shift: int, seed: int
) -> None:
    varied = made(seed, count=3)
    moved = [
        replace(
            line,
            default=line.default + shift,
            losses={value + shift: cell for value, cell in reversed(line.losses.items())},
        )
        for line in (varied.lines[at] for at in order)
    ]
    gain_of, other = judge_each(varied), judge_each(replace(varied, lines=tuple(moved)))
    for each in gain_of.hyperparameters:
        again = of(other, each.name)
        assert again.answer == each.answer
        assert again.gain.value == pytest.approx(each.gain.value, abs=1e-9)
        assert again.gain.low == pytest.approx(each.gain.low, abs=1e-9)
        assert again.best == pytest.approx(float(each.best) * 2.0**shift)


@given(st.lists(st.floats(1e-9, 1), min_size=1, max_size=12))
def test_holms_rule_is_that_of_the_textbook(errors: list[float]) -> None:
    """The k-th least error is rejected at a level where all k least pass level / (m - i)."""
    adjusted, ordered, count = _holm(errors), sorted(errors), len(errors)
    for level in (0.01, 0.05, 0.5):
        passed = [error * (count - i) <= level for i, error in enumerate(ordered)]
        rejected = count if all(passed) else passed.index(False)
        assert sum(p <= level for p in adjusted) == rejected


def test_heavy_tails_widen_what_a_difference_shows_and_normal_noise_nothing() -> None:
    generator = np.random.default_rng(2)

    def noise(draw: Callable[..., Array], paired: bool) -> KnownNoise:
        lines = []
        for place in range(60):
            runs = 1.0 + NOISE * draw(size=(5, 4)) + (generator.normal(size=4) if paired else 0.0)
            names = "abcd" if paired else [f"{place}{n}" for n in range(4)]
            cells = {
                float(v): dict(zip((f"{n}{'' if paired else v}" for n in names), row, strict=True))
                for v, row in enumerate(runs)
            }
            lines.append(SettingLine(name=f"h{place}", size=64, default=0.0, losses=cells))
        settled = RunNoise.of(lines, None)
        assert settled.spread is not None and settled.paired == paired
        return settled.spread

    for paired in (True, False):
        heavy, normal = (noise(d, paired) for d in (generator.laplace, generator.standard_normal))
        assert normal.excess < 0.3 and 1.5 < heavy.excess < 4
        assert heavy.freedom_of_difference((3, 3)) < 0.3 * normal.freedom_of_difference((3, 3))
        assert heavy.freedom_of_difference((1, 9)) < heavy.freedom_of_difference((1, 1)) < 12
    # A difference of two runs halves the excess: 6 of a run is 3, that of 6 degrees.
    noise_of_two = KnownNoise(deviation=1.0, freedom=100, excess=6.0)
    assert noise_of_two.freedom_of_difference((1, 1)) == round(4 + 6 / 3)
    assert float(stats.t(6).stats("k")) == pytest.approx(3)
    assert replace(noise_of_two, excess=0.0).freedom_of_difference((1, 1)) == 100


POINT = {"lr": 0.01, "wd": 0.1, "norm": "rms"}


def table(**more: Any) -> pandas.DataFrame:
    """Two widths, two seeds: lr, wd and norm varied one at a time, and one run off by two."""
    changes = [
        *({"lr": POINT["lr"] * 2**k} for k in (-1, 1)),
        *({"wd": value} for value in (0.0, 0.2)),
        {"norm": "layer"},
        {"lr": 0.04, "wd": 0.4},
        {},
    ]
    rows = [
        {"width": width, **POINT, **change, "seed": seed, "loss": 3 + at / 100, **more}
        for width in (64, 128)
        for at, change in enumerate(changes)
        for seed in (0, 1)
    ]
    return pandas.DataFrame(rows)


@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=40, unique=True),
    st.integers(1, 3),
)
def test_the_point_has_most_neighbours(rows: list[tuple[int, ...]], columns: int) -> None:
    kinds = np.unique(np.array(rows, float)[:, :columns], axis=0)
    neighbours = [int(((kinds != kind).sum(axis=1) == 1).sum()) for kind in kinds]
    assert neighbours[_point(kinds, np.ones(len(kinds)))] == max(neighbours)


def test_the_point_is_found_and_what_differs_from_it_twice_is_not_counted() -> None:
    varied = varied_settings(read(table().sample(frac=1, random_state=1)))
    assert varied.axis == "width" and varied.used == 24 and len(varied.lines) == 6
    lines = {line.name: line for line in varied.lines if line.size == 64}
    assert 2 ** lines["lr"].default == pytest.approx(0.01) and len(lines["lr"].losses) == 3
    assert lines["norm"].choices == ("layer", "rms") and lines["norm"].default == 1.0
    # 0 has no logarithm.
    assert lines["wd"].choices[:2] == ("0", "0.1") and lines["wd"].default == 1.0
    assert any("several settings" in str(note) for note in varied.notes)


def test_what_another_setting_fixes_is_no_setting_of_its_own() -> None:
    frame = table()
    frame["min_lr"] = frame["lr"] / 10
    assert {line.name for line in varied_settings(read(frame)).lines} == {"lr", "wd", "norm"}


def test_two_sizes_at_once_are_refused_with_what_takes_one() -> None:
    both = pandas.concat([table(tokens=10**9), table(tokens=2 * 10**9)])
    with pytest.raises(BadInput, match="tokens"):
        varied_settings(read(both))


def test_a_table_without_a_varied_setting_is_refused() -> None:
    with pytest.raises(BadInput, match="varied around a point"):
        varied_settings(read(table()[["width", "seed", "loss"]]))
