import math

import pytest

from sweeper.decide.ladder_verdict import missed_optimum
from sweeper.report.sentences_transfer import missed_text
from sweeper.stats.curve import fit_curve
from sweeper.stats.ladder import LadderRule, SizeCurve
from tests.golden import Golden
from tests.stats.curves import Valley, table

RULE = LadderRule(widths=(32,))


def missed(curve: SizeCurve, transferred: float, rule: LadderRule = RULE) -> object:
    return missed_optimum(fit_curve(curve, transferred), transferred, rule)


def test_an_optimum_is_missed_beyond_the_loss_gap_allowed() -> None:
    """0.05 (x - 1)^2 passes 1 % of 3 nats where x is 0.775 away."""
    curve = Valley(optimum=1.0, noise=1e-5).curve()
    assert missed(curve, 0.24) is None
    found = missed_optimum(fit_curve(curve, 0.0), 0.0, RULE)
    assert found is not None and found.optimum_log2 == pytest.approx(1.0, abs=1e-3)
    assert found.loss == pytest.approx(0.05, abs=1e-4)
    assert missed(curve, 0.0, LadderRule(widths=(32,), max_loss_gap=0.02)) is None


def test_noise_one_seed_and_a_curve_that_ends_too_early_show_nothing() -> None:
    assert missed(Valley(optimum=1.0, noise=0.3).curve(), 0.0) is None
    one = Valley(optimum=1.0).curve(rule=LadderRule(widths=(32,), seeds=1))
    assert missed(one, 0.0) is None
    assert missed(Valley(optimum=9.0, curvature=1e-4).curve(), 0.0) is None
    assert missed_optimum(None, 0.0, RULE) is None


def test_a_transferred_eta_that_diverges_is_missed(golden: Golden) -> None:
    losses = {-1.0: (3.1, 3.101), -0.5: (3.0, 3.002), 0.0: (3.1, 3.1), 0.5: math.inf}
    found = missed_optimum(fit_curve(table(losses), 0.5), 0.5, RULE)
    assert found is not None
    golden.says(missed_text(found))
