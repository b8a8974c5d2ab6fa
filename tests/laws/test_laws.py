"""Every law's closed form against values worked out by hand, and what laws have in common."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from sweeper.errors import ConfigError
from sweeper.laws.fit import PUBLISHED, Fit, far
from sweeper.laws.law import AppliedLaw, Factors, Law, OutsideLaw, Scale
from sweeper.registry import build_plugin, conf_folder, plugins
from sweeper.stats.estimate import Estimate
from sweeper.trial import Log2Hps
from tests.golden import Golden
from tests.refusals import raises_config_error, refused

ADAM = {"beta1": 0.9, "beta2": 0.99}
BASE = Scale(
    width=64, depth=2, batch=16, steps=100, tokens=1600,
    parameters=1000, betas=ADAM, held=("hyperball",),
)  # fmt: skip


@cache
def config(name: str) -> dict[str, Any]:
    path = conf_folder() / "law" / f"{name}.yaml"
    return yaml.safe_load(path.read_text())  # type: ignore[no-any-return]


def law(name: str, **changed: Any) -> Law:
    return build_plugin({**config(name), **changed})  # type: ignore[no-any-return]


def at(batch: int = 16, steps: int = 100, **changed: Any) -> Scale:
    return replace(BASE, batch=batch, steps=steps, tokens=batch * steps, **changed)


def test_horizon(golden: Golden) -> None:
    # 2^-0.32 = 0.8011 a doubling, 0.4118 for 16 times the tokens.
    doubled = law("horizon").factors(BASE, at(steps=200))
    assert doubled.eta == pytest.approx(0.80107, 1e-5) and doubled == Factors(eta=doubled.eta)
    assert law("horizon").factors(BASE, at(steps=1600)).eta == pytest.approx(0.41179, 1e-4)
    assert law("horizon", tokens=-0.5).factors(BASE, at(steps=400)).eta == 0.5
    with refused(golden, OutsideLaw):
        law("horizon").factors(BASE, at(32, 50))


def test_batch(golden: Golden) -> None:
    # Four times the batch, a quarter of the steps: twice eta, half of eps, 1 - beta times 4.
    factors = law("batch").factors(BASE, at(64, 25))
    assert (factors.eta, factors.eps, factors.weight_decay) == (2.0, 0.5, 1.0)
    assert factors.betas == {"beta1": pytest.approx(0.6), "beta2": pytest.approx(0.96)}
    steep = law("batch", eta=1, eps=-2).factors(BASE, at(64, 25))
    assert (steep.eta, steep.eps) == (4.0, 1 / 16)
    # 10 times the batch is where beta1 becomes 0.
    assert law("batch").factors(BASE, at(160, 10)).betas["beta1"] == pytest.approx(0)
    without = law("batch", betas=["beta2"])
    assert set(without.factors(BASE, at(64, 25)).betas) == {"beta2"}
    golden.says(without.fixed)
    assert law("batch", betas=[]).factors(BASE, at(64, 25)).betas == {}
    # 1600 tokens are no whole number of steps of 48: 33 come nearest.
    assert law("batch").factors(BASE, at(48, 33)).eta == pytest.approx(3**0.5)
    with refused(golden, OutsideLaw):
        law("batch").factors(BASE, at(200, 8))
    with refused(golden, OutsideLaw):
        law("batch").factors(BASE, at(64, 100))


def test_joint() -> None:
    # Four times the batch at the same steps, so four times the tokens: 2 x 4^-0.3 = 2^0.4.
    factors = law("joint").factors(BASE, at(64))
    assert factors.eta == pytest.approx(2**0.4) and factors.eps == 1.0
    assert factors.betas == {"beta2": pytest.approx(0.99**4)} and factors.weight_decay == 1.0
    # Four times the steps: 4^-0.3 = 2^-0.6, r falls to a quarter and eps doubles.
    assert law("joint").factors(BASE, at(steps=400)).eta == pytest.approx(2**-0.6)
    assert law("joint").factors(BASE, at(steps=400)).eps == pytest.approx(2.0)
    steep = law("joint", batch=1, eps=-1).factors(BASE, at(64, 50))
    assert (steep.eta, steep.eps) == (pytest.approx(4 * 2**-0.3), 0.5)
    # Complete(d)P goes by r = B / T alone: four times the steps halve eta, the batch does nothing.
    by_r = law("joint", tokens=-0.5)
    assert by_r.factors(BASE, at(steps=400)).eta == 0.5
    assert by_r.factors(BASE, at(64)).eta == 1.0
    assert law("joint", beta2=False).factors(BASE, at(64)).betas == {}
    both, alone = law("joint", weight_decay=1.0), law("timescale")
    for target in (at(64), at(steps=400)):
        decay = alone.factors(BASE, target).weight_decay
        assert both.factors(BASE, target).weight_decay == pytest.approx(decay)
        assert law("joint").factors(BASE, target).weight_decay == 1.0
    assert both.fixed == "beta1" and "weight decay" in law("joint").fixed


def test_hyperball(golden: Golden) -> None:
    # Four times the steps: AdamH 4^-0.3, Adam 4^-0.5; MuonH 4^-0.32. The batch: both by its root.
    adamh = law("hyperball").factors(BASE, at(steps=400))
    assert adamh.eta == pytest.approx(2**-0.6) and adamh.eps == pytest.approx(2.0)
    assert adamh.eta * adamh.gamma_adam == pytest.approx(0.5) and adamh.weight_decay == 1.0
    both = ("hyperball", "orthogonal_hyperball")
    muonh = law("hyperball").factors(replace(BASE, held=both), at(steps=400, held=both))
    assert muonh.eta == pytest.approx(2**-0.64)
    assert muonh.eta * muonh.gamma_adam == pytest.approx(0.5)
    wider = law("hyperball").factors(BASE, at(64, 25, width=999, depth=9))
    assert (wider.eta, wider.gamma_adam) == (2.0, pytest.approx(1.0))
    assert wider.betas == {"beta2": pytest.approx(0.99**4)}
    steep = law("hyperball", batch=1, tokens=-1, adam=1, eps=-1, beta2=False)
    changed = steep.factors(BASE, at(64, 50))
    assert (changed.eta, changed.gamma_adam, changed.eps, changed.betas) == (2.0, 1.0, 0.5, {})
    with refused(golden, OutsideLaw):
        law("hyperball").factors(replace(BASE, held=()), at(64))


def test_timescale(golden: Golden) -> None:
    # tau = 1 / (decay x steps): twice the steps, half of the decay; twice the batch, twice that.
    assert law("timescale").factors(BASE, at(steps=200)) == Factors(weight_decay=0.5)
    assert law("timescale").factors(BASE, at(32, 50)) == Factors(weight_decay=2.0)
    # At four times the tokens per parameter tau goes to 4^-0.527, and decay to 4^0.527 / 4.
    powered = law("timescale", ratio=-0.527)
    decay = powered.factors(BASE, at(steps=400)).weight_decay
    assert decay == pytest.approx(4**0.527 / 4) and "2505.13738" in powered.source
    wider = powered.factors(BASE, at(width=128, parameters=4000)).weight_decay
    assert wider == pytest.approx(4**-0.527)
    with refused(golden, OutsideLaw):
        powered.factors(BASE, at(steps=400, parameters=None))


@pytest.mark.parametrize(("power", "factor", "paper"), [(0, 1, "2510.19093"), (-0.5, 0.5, "15262")])
def test_decay(power: float, factor: float, paper: str, golden: Golden) -> None:
    rule = law("decay", power=power)
    assert rule.factors(BASE, at(width=256)) == Factors(weight_decay=factor)
    assert paper in rule.source and "batch" in rule.fixed
    assert law("decay", power=-1).factors(BASE, at(width=256)).weight_decay == 0.25
    with refused(golden, OutsideLaw):
        rule.factors(BASE, at(steps=200))
    with pytest.raises(OutsideLaw):
        rule.factors(BASE, at(32, 50))


def test_no_law_names_the_laws(golden: Golden) -> None:
    assert law("none").factors(BASE, at(width=256)) == Factors()
    for other in (at(steps=200), at(32), at(32, 50)):
        with refused(golden, OutsideLaw):
            law("none").factors(BASE, other)


@pytest.mark.parametrize("name", plugins()["law"])
def test_a_law_says_what_it_holds_and_changes_nothing_in_place(name: str) -> None:
    rule = law(name)
    assert rule.fixed and (rule.source or name == "none") and type(rule).__doc__
    assert rule.factors(BASE, BASE) == Factors()


# What each law keeps, by the words of its paper and without its formula.


def test_what_is_applied_multiplies_what_was_tuned(golden: Golden) -> None:
    applied = AppliedLaw(
        name="joint",
        arguments={},
        source="a paper",
        fixed="beta1",
        base=BASE,
        target=at(64, 400),
        factors=Factors(eta=0.5, eps=2.0, betas={"beta2": 0.96}),
        notes=("mind this",),
    )
    moved = applied.apply(Log2Hps({"eta": -5.0, "one_minus_beta2": 1.0}))
    assert moved == {"eta": -6.0, "eps": 1.0, "one_minus_beta2": pytest.approx(3.0)}
    assert applied.betas == {"beta1": 0.9, "beta2": 0.96}
    golden.says("\n".join(applied.lines()))
    hps = Log2Hps({"eta": -5.0})
    assert replace(applied, factors=Factors()).apply(hps) is hps
    with raises_config_error("factors.betas.momentum", 0.5):
        replace(applied, factors=Factors(betas={"momentum": 0.5}))


EXPONENTS = [
    *(("horizon", "tokens"), ("batch", "eta"), ("batch", "eps"), ("timescale", "ratio")),
    *(("joint", field) for field in ("batch", "tokens", "eps", "weight_decay")),
    *(("hyperball", field) for field in ("batch", "tokens", "adam", "eps")),
    ("decay", "power"),
]


@pytest.mark.parametrize(
    ("name", "changed", "key", "value"),
    [
        ("horizon", {"tokens": 5.0}, "tokens", 5.0),
        ("joint", {"eps": -math.pi * 2}, "eps", -math.pi * 2),
        ("batch", {"betas": ["beta3"]}, "betas", "beta3"),
        ("batch", {"betas": "beta1"}, "betas", "beta1"),
        ("timescale", {"ratio": "x"}, "ratio", "x"),
        ("decay", {"nope": 1}, "nope", 1),
        *((n, {f: w}, f, w) for n, f in EXPONENTS for w in (-4.1, 4.1, math.inf)),
    ],
)
def test_bad_settings(name: str, changed: dict[str, Any], key: str, value: object) -> None:
    with raises_config_error(key, value):
        law(name, **changed)


def test_measured_exponents_are_not_written_down(golden: Golden) -> None:
    with refused(golden):
        law("fit", measured={"tokens": -0.3})


def test_bad_scales_and_factors(golden: Golden) -> None:
    for key in ("batch", "tokens", "width", "depth", "steps"):
        for bad in (0, -1):
            with raises_config_error(key, bad):
                replace(BASE, **{key: bad})
    for worse in ({"eta": 0.0}, {"eps": math.inf}, {"weight_decay": -1.0}, {"betas": {"b": 1.0}}):
        with pytest.raises(ConfigError):
            Factors(**worse)
    without = replace(BASE, betas={})
    with refused(golden, OutsideLaw):
        law("joint").factors(without, replace(without, batch=32, tokens=3200))
    # Where nobody knows the betas, the rest of the law is as it is.
    unknown = replace(BASE, betas=None)
    assert law("joint").factors(unknown, replace(unknown, batch=64, tokens=6400)).betas == {}


class Measured:
    """The tokens' exponent of -1/4, measured to a tenth, and the batch's where it is given."""

    batches, tokens = (16, 16), (800, 3200)

    def __init__(self, batch: float | None = None) -> None:
        self.batch = batch

    def log2_eta(self, direction: tuple[float, float]) -> Estimate | None:
        batch, tokens = direction
        if batch and self.batch is None:
            return None
        value, off = batch * (self.batch or 0.0) - 0.25 * tokens, 0.1 * tokens
        return Estimate(value=value, low=value - off, high=value + off)


def test_fit_goes_by_what_was_measured(golden: Golden) -> None:
    fitted = Fit().fitted_to(Measured())
    assert fitted.factors(BASE, at(steps=1600)).eta == 0.5
    both = Fit().fitted_to(Measured(batch=0.75))
    assert both.factors(BASE, at(64, 25)).eta == 4**0.75
    assert both.factors(BASE, at(64)).eta == 4**0.5
    assert fitted.factors(BASE, at(width=128)) == Factors() and not fitted.notes(BASE, BASE)
    with refused(golden, OutsideLaw):
        fitted.factors(BASE, at(32))
    with refused(golden, OutsideLaw):
        Fit().factors(BASE, at(steps=200))
    near, beyond = (fitted.notes(BASE, at(steps=steps)) for steps in (800, 801))
    assert len(near) == 2
    golden.says(near[0])
    assert len(beyond) == 3
    golden.says(beyond[2])


def test_far_is_beyond_the_ladder_s_own_factor() -> None:
    for asked, ladder in ((128, (8, 32)), (2, (8, 32)), (8, (8, 8))):
        assert not far("batch", asked, ladder)
    for asked, ladder in ((129, (8, 32)), (1, (8, 32)), (9, (8, 8))):
        assert far("batch", asked, ladder)


def test_published_exponents_along_a_direction() -> None:
    ways = ((0, 1), (1, 0), (1, 1), (0, 2))
    assert {law.name: [law.along(way) for way in ways] for law in PUBLISHED} == {
        "horizon": [-0.32, None, None, -0.64],
        "batch": [None, 0.5, None, None],
        "joint": [-0.3, 0.5, pytest.approx(0.2), -0.6],
        "Complete(d)P": [-0.5, 0.5, 0.0, -1.0],
    }
