"""Every law's closed form against values worked out by hand, and what laws have in common."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from sweeper.errors import BadInput, ConfigError
from sweeper.laws.fit import PUBLISHED, Fit, far
from sweeper.laws.law import AppliedLaw, Factors, Law, OutsideLaw, Scale
from sweeper.registry import build_plugin, conf_folder, plugins
from sweeper.trial import Log2Hps

ADAM = {"beta1": 0.9, "beta2": 0.99}
BASE = Scale(width=64, depth=2, batch=16, steps=100, tokens=1600, parameters=1000, betas=ADAM)


def law(name: str, **changed: Any) -> Law:
    """The law of a config, with some of its keys changed."""
    config = yaml.safe_load((conf_folder() / "law" / f"{name}.yaml").read_text())
    built: Law = build_plugin({**config, **changed})
    return built


def at(batch: int = 16, steps: int = 100, **changed: Any) -> Scale:
    """The base with another batch or other steps."""
    return replace(BASE, batch=batch, steps=steps, tokens=batch * steps, **changed)


def test_horizon() -> None:
    # 2^-0.32 = 0.8011 a doubling, 0.4118 for 16 times the tokens.
    found = law("horizon").factors(BASE, at(steps=200))
    assert found.eta == pytest.approx(0.80107, 1e-5) and found == Factors(eta=found.eta)
    assert law("horizon").factors(BASE, at(steps=1600)).eta == pytest.approx(0.41179, 1e-4)
    assert law("horizon", tokens=-0.5).factors(BASE, at(steps=400)).eta == 0.5
    with pytest.raises(OutsideLaw, match="at a fixed batch, and 32 is not the base's 16"):
        law("horizon").factors(BASE, at(32, 50))


def test_batch() -> None:
    # Four times the batch, a quarter of the steps: twice eta, half of eps, 1 - beta times 4.
    found = law("batch").factors(BASE, at(64, 25))
    assert (found.eta, found.eps, found.weight_decay) == (2.0, 0.5, 1.0)
    assert found.betas == {"beta1": pytest.approx(0.6), "beta2": pytest.approx(0.96)}
    held = law("batch", betas=["beta2"])
    assert set(held.factors(BASE, at(64, 25)).betas) == {"beta2"} and "beta1" in held.held
    assert law("batch", betas=[]).factors(BASE, at(64, 25)).betas == {}
    # 1600 tokens are no whole number of steps of 48: 33 come nearest.
    assert law("batch").factors(BASE, at(48, 33)).eta == pytest.approx(3**0.5)
    with pytest.raises(OutsideLaw, match=r"beta1 negative at 12.5 times.*law.betas=\[beta2\]"):
        law("batch").factors(BASE, at(200, 8))
    with pytest.raises(OutsideLaw, match="6,400 is not the base's 1,600"):
        law("batch").factors(BASE, at(64, 100))


def test_joint() -> None:
    # Four times the batch at the same steps, so four times the tokens: 2 x 4^-0.3 = 2^0.4.
    found = law("joint").factors(BASE, at(64))
    assert found.eta == pytest.approx(2**0.4) and found.eps == 1.0
    assert found.betas == {"beta2": pytest.approx(0.99**4)} and found.weight_decay == 1.0
    # Four times the steps: 4^-0.3 = 2^-0.6, r falls to a quarter and eps doubles.
    assert law("joint").factors(BASE, at(steps=400)).eta == pytest.approx(2**-0.6)
    assert law("joint").factors(BASE, at(steps=400)).eps == pytest.approx(2.0)
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
    assert both.held == "beta1" and "weight decay" in law("joint").held


def test_timescale() -> None:
    # tau = 1 / (decay x steps): twice the steps, half of the decay; twice the batch, twice that.
    assert law("timescale").factors(BASE, at(steps=200)) == Factors(weight_decay=0.5)
    assert law("timescale").factors(BASE, at(32, 50)) == Factors(weight_decay=2.0)
    # At four times the tokens per parameter tau goes to 4^-0.527, and decay to 4^0.527 / 4.
    powered = law("timescale", ratio=-0.527)
    found = powered.factors(BASE, at(steps=400)).weight_decay
    assert found == pytest.approx(4**0.527 / 4) and "2505.13738" in powered.source
    wider = powered.factors(BASE, at(width=128, parameters=4000)).weight_decay
    assert wider == pytest.approx(4**-0.527)
    with pytest.raises(OutsideLaw, match="number of parameters"):
        powered.factors(BASE, at(steps=400, parameters=None))


@pytest.mark.parametrize(("power", "factor", "paper"), [(0, 1, "2510.19093"), (-0.5, 0.5, "15262")])
def test_decay(power: float, factor: float, paper: str) -> None:
    rule = law("decay", power=power)
    assert rule.factors(BASE, at(width=256)) == Factors(weight_decay=factor)
    assert paper in rule.source and "batch" in rule.held
    assert law("decay", power=-1).factors(BASE, at(width=256)).weight_decay == 0.25
    with pytest.raises(OutsideLaw, match="law=joint"):
        rule.factors(BASE, at(steps=200))


def test_no_law_names_the_laws() -> None:
    assert law("none").factors(BASE, at(width=256)) == Factors()
    for other in (at(steps=200), at(32), at(32, 50)):
        with pytest.raises(OutsideLaw, match="one of batch, decay, fit, horizon, joint, timescale"):
            law("none").factors(BASE, other)


@pytest.mark.parametrize("name", plugins()["law"])
def test_a_law_says_what_it_holds_and_changes_nothing_in_place(name: str) -> None:
    one = law(name)
    assert one.held and (one.source or name == "none") and type(one).__doc__
    assert one.factors(BASE, BASE) == Factors()


sizes = st.builds(
    at, st.integers(1, 64), st.integers(1, 500), width=st.integers(1, 999), parameters=st.just(7)
)


@pytest.mark.parametrize("name", ["horizon", "batch", "joint", "timescale", "decay"])
@given(base=sizes, middle=sizes, target=sizes)
def test_a_way_in_two_steps_is_the_way(
    name: str, base: Scale, middle: Scale, target: Scale
) -> None:
    def like(scale: Scale) -> Scale:
        """A scale that the law covers from the base."""
        if name == "horizon":
            return replace(scale, batch=base.batch, tokens=base.batch * scale.steps)
        if name == "batch":
            return replace(scale, tokens=base.tokens)
        same = {"batch": base.batch, "steps": base.steps, "tokens": base.tokens}
        return replace(scale, **same) if name == "decay" else scale

    rule = law(name) if name != "timescale" else law(name, ratio=-0.527)
    middle, target = like(middle), like(target)
    try:
        first = rule.factors(base, middle)
        at_middle = replace(middle, betas={**ADAM, **first.betas})
        second, whole = rule.factors(at_middle, target), rule.factors(base, target)
    except OutsideLaw as error:  # 1 - beta goes as the batch: beyond 1 there is none
        assume("negative" not in str(error))
        raise
    for key in ("eta", "eps", "weight_decay"):
        product = getattr(first, key) * getattr(second, key)
        assert product == pytest.approx(getattr(whole, key), rel=1e-9)
    ends = ({**ADAM, **first.betas, **second.betas}, {**ADAM, **whole.betas})
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_what_is_applied_multiplies_what_was_tuned() -> None:
    applied = AppliedLaw(
        name="joint",
        arguments={},
        source="a paper",
        held="beta1",
        base=BASE,
        target=at(64, 400),
        factors=Factors(eta=0.5, eps=2.0, betas={"beta2": 0.96}),
        notes=("mind this",),
    )
    moved = applied.apply(Log2Hps({"eta": -5.0, "one_minus_beta2": 1.0}))
    assert moved == {"eta": -6.0, "eps": 1.0, "one_minus_beta2": pytest.approx(3.0)}
    assert applied.betas == {"beta1": 0.9, "beta2": 0.96}
    assert applied.lines() == [
        "Law: joint, from 1,600 tokens (100 steps of 16) to 25,600 tokens (400 steps of 64)",
        "- changes: eta x 0.5, eps x 2, beta2 0.99 to 0.96",
        "- held fixed: beta1",
        "- source: a paper",
        "- note: mind this",
    ]
    hps = Log2Hps({"eta": -5.0})
    assert replace(applied, factors=Factors()).apply(hps) is hps
    with pytest.raises(ConfigError, match="momentum"):
        replace(applied, factors=Factors(betas={"momentum": 0.5}))


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("horizon", {"tokens": 5.0}, "tokens=5.0 is refused: an exponent from -4 to 4"),
        ("joint", {"eps": -math.pi * 2}, "eps="),
        ("batch", {"betas": ["beta3"]}, "betas='beta3' is refused"),
        ("batch", {"betas": "beta1"}, "betas='beta1' is refused"),
        ("timescale", {"ratio": "x"}, "ratio='x' is refused"),
        ("decay", {"power": math.nan}, "power=nan is refused"),
        ("decay", {"nope": 1}, "there is no such key"),
        ("fit", {"measured": {"tokens": -0.3}}, "is not given but measured"),
    ],
)
def test_bad_settings(name: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        law(name, **changed)
    assert said in str(refused.value)


def test_bad_scales_and_factors() -> None:
    for bad in ({"batch": 0}, {"tokens": -1}, {"width": 0}):
        with pytest.raises(ConfigError, match="at least 1"):
            replace(BASE, **bad)
    for worse in ({"eta": 0.0}, {"eps": math.inf}, {"weight_decay": -1.0}, {"betas": {"b": 1.0}}):
        with pytest.raises(ConfigError):
            Factors(**worse)
    without = replace(BASE, betas={})
    with pytest.raises(OutsideLaw, match="no beta2: take law=horizon"):
        law("joint").factors(without, replace(without, batch=32, tokens=3200))
    # Where nobody knows the betas, the rest of the law is as it is.
    unknown = replace(BASE, betas=None)
    assert law("joint").factors(unknown, replace(unknown, batch=64, tokens=6400)).betas == {}


class Measured:
    """Exponents of 1/2 and -1/4, measured to a tenth, of the tokens alone."""

    batches, tokens = (16, 16), (800, 3200)

    def log2_eta(self, direction: tuple[float, float]) -> tuple[float, float, float] | None:
        batch, tokens = direction
        return None if batch else (-0.25 * tokens, -0.35 * tokens, -0.15 * tokens)


def test_fit_goes_by_what_was_measured() -> None:
    fitted = Fit().fitted_to(Measured())
    assert fitted.factors(BASE, at(steps=1600)).eta == 0.5
    assert fitted.factors(BASE, at(width=128)) == Factors() and not fitted.notes(BASE, BASE)
    with pytest.raises(OutsideLaw, match=r"this direction, 2 times the batch and 2 times the tok"):
        fitted.factors(BASE, at(32))
    with pytest.raises(OutsideLaw, match="measure ladders over the steps"):
        Fit().factors(BASE, at(steps=200))
    near, beyond = (fitted.notes(BASE, at(steps=steps)) for steps in (800, 801))
    assert len(near) == 2 and "the factor on eta is 0.595, from 0.483 to 0.732" in near[0]
    assert len(beyond) == 3 and "4 times beyond the ladder's, 800 to 3,200" in beyond[2]


@pytest.mark.parametrize(
    ("asked", "ladder", "warned"),
    [(128, (8, 32), False), (129, (8, 32), True), (2, (8, 32), False), (1, (8, 32), True)],
)
def test_far_is_beyond_the_ladder_s_own_factor(
    asked: int, ladder: tuple[int, int], warned: bool
) -> None:
    assert bool(far("batch", asked, ladder)) is warned


def test_published_exponents_along_a_direction() -> None:
    told = {one.name: [one.along(d) for d in ((0, 1), (1, 0), (1, 1), (0, 2))] for one in PUBLISHED}
    assert told == {
        "horizon": [-0.32, None, None, -0.64],
        "batch": [None, 0.5, None, None],
        "joint": [-0.3, 0.5, pytest.approx(0.2), -0.6],
        "Complete(d)P": [-0.5, 0.5, 0.0, -1.0],
    }
