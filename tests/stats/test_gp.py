"""The Gaussian process against scikit-learn, SciPy's densities and fits by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import null_space
from scipy.stats import multivariate_normal, norm

from sweeper.stats.estimate import Array
from sweeper.stats.gp import Mixture, Process, alike_near, normal_draws, positive, shares

seeds = st.integers(0, 10**6)
X, PLACES = np.array([0.0, 0.4, 1.1, 1.9, 3.0, 3.2]), np.array([0.7, 2.5, 4.0])


def line(x: Array) -> Array:
    return np.vander(x, 2)


def process(seed: int) -> Process:
    generator = np.random.default_rng(seed)
    covariance = alike_near(X, X, 0.8) + np.diag(generator.uniform(0.01, 0.2, len(X)))
    return Process(covariance, generator.normal(size=len(X)), line(X))


def test_without_a_mean_it_is_scikit_learns() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    values = np.sin(X)
    peer = GaussianProcessRegressor(RBF(0.8), alpha=0.01, optimizer=None).fit(X[:, None], values)
    ours = Process(alike_near(X, X, 0.8) + 0.01 * np.eye(len(X)), values, np.empty((len(X), 0)))
    means, covariance = ours.at(
        alike_near(PLACES, X, 0.8), alike_near(PLACES, PLACES, 0.8), np.empty((len(PLACES), 0))
    )
    wanted, wanted_covariance = peer.predict(PLACES[:, None], return_cov=True)
    assert means[:, 0] == pytest.approx(wanted)
    assert covariance == pytest.approx(wanted_covariance, abs=1e-9)
    constant = len(X) * np.log(2 * np.pi) / 2
    assert ours.log_likelihood - constant == pytest.approx(peer.log_marginal_likelihood())


@settings(max_examples=20)
@given(first=seeds, other=seeds)
def test_the_restricted_likelihood_is_that_of_contrasts(first: int, other: int) -> None:
    # What no line explains, by any basis: its density differs from ours by a constant of the basis.
    contrasts = null_space(line(X).T)

    def density(ours: Process) -> float:
        covariance = contrasts.T @ ours.covariance @ contrasts
        return float(multivariate_normal(None, covariance).logpdf(contrasts.T @ ours.values))

    each, two = process(first), process(other)
    assert each.log_likelihood - two.log_likelihood == pytest.approx(
        density(each) - density(two), abs=1e-8
    )
    # A line more or less changes nothing.
    moved = Process(each.covariance, each.values + 3 - 2 * X, line(X))
    assert moved.log_likelihood == pytest.approx(each.log_likelihood, abs=1e-8)


@given(seed=seeds, scale=st.floats(0.01, 100))
def test_a_scale_that_is_not_known_does_not_matter(seed: int, scale: float) -> None:
    first = process(seed)
    scaled = Process(scale * first.covariance, first.values, first.basis)
    assert scaled.log_likelihood_of_any_scale == pytest.approx(first.log_likelihood_of_any_scale)
    assert scale * scaled.variance == pytest.approx(first.variance)
    assert first.freedom == len(X) - 2


@settings(max_examples=20)
@given(seed=seeds)
def test_a_point_left_out_is_what_the_others_say(seed: int) -> None:
    ours = process(seed)
    residuals, deviations = ours.left_out()
    for at in range(len(X)):
        rest = np.arange(len(X)) != at
        others = Process(ours.covariance[np.ix_(rest, rest)], ours.values[rest], line(X[rest]))
        mean, variance = others.at(
            ours.covariance[[at]][:, rest], ours.covariance[[at]][:, [at]], line(X[[at]])
        )
        assert residuals[at, 0] == pytest.approx(ours.values[at] - mean[0, 0], abs=1e-7)
        assert deviations[at] ** 2 == pytest.approx(variance[0, 0])


def test_a_stack_is_as_many_processes_and_copies_add_up() -> None:
    first, two = process(1), process(2)
    stack = Process(np.stack([first.covariance, two.covariance]), first.values, first.basis)
    other = Process(two.covariance, first.values, first.basis)
    assert stack.log_likelihood == pytest.approx(
        np.array([first.log_likelihood, other.log_likelihood])
    )
    values = np.column_stack([first.values, two.values])
    copies = Process(first.covariance, values, first.basis)
    alone = Process(first.covariance, two.values, first.basis)
    assert copies.log_likelihood == pytest.approx(first.log_likelihood + alone.log_likelihood)
    assert copies.freedom == 2 * first.freedom


@given(seed=seeds)
def test_the_estimator_makes_the_mean_and_leaves_a_line_as_it_is(seed: int) -> None:
    ours = process(seed)
    shared, own = alike_near(PLACES, X, 0.8), alike_near(PLACES, PLACES, 0.8)
    matrix = ours.estimator(shared, line(PLACES))
    assert matrix @ ours.values == pytest.approx(ours.at(shared, own, line(PLACES))[0][:, 0])
    assert matrix @ line(X) == pytest.approx(line(PLACES))


def test_a_term_of_one_point_alone_leaves_it_without_a_deviation() -> None:
    basis = np.eye(3)[:, :1]
    _, deviations = Process(np.eye(3), np.array([5.0, 0.1, -0.1]), basis).left_out()
    assert deviations[0] > 1e100
    assert deviations[1] == pytest.approx(1.0)


def test_draws_of_a_singular_covariance_have_it() -> None:
    covariance = np.outer([1.0, 2.0], [1.0, 2.0])
    drawn = normal_draws(np.random.default_rng(0), covariance, 20_000)
    assert np.cov(drawn.T) == pytest.approx(covariance, rel=0.05)
    assert drawn[:, 1] == pytest.approx(2 * drawn[:, 0])
    np.linalg.cholesky(positive(covariance))


def test_shares_are_priors_times_likelihoods() -> None:
    assert shares(np.log([1.0, 3.0])) == pytest.approx(np.array([0.25, 0.75]))
    assert shares(np.array([-1e6, -1e6]), np.array([0.2, 0.6])) == pytest.approx([0.25, 0.75])


@given(
    means=st.lists(st.floats(-5, 5), min_size=1, max_size=4), probability=st.floats(0.001, 0.999)
)
def test_a_mixtures_quantile_inverts_its_chance(means: list[float], probability: float) -> None:
    middle = np.array(means)
    mixture = Mixture(
        middle, np.linspace(0.5, 2, len(middle)), np.full(len(middle), 1 / len(middle))
    )
    assert mixture.below(mixture.quantile(probability)) == pytest.approx(probability, abs=1e-9)


def test_a_mixture_of_one_is_a_normal_and_mixtures_come_in_arrays() -> None:
    first = Mixture(np.array([1.0]), np.array([2.0]), np.array([1.0]))
    assert first.estimate().high == pytest.approx(norm(1, 2).ppf(0.975))
    both = Mixture(np.array([[1.0, 0.0]]), np.array([[2.0, 1.0]]), np.array([1.0]))
    assert both.quantile(0.025) == pytest.approx(norm([1, 0], [2, 1]).ppf(0.025))
    assert first.widened(1.5).deviations == pytest.approx(2.5)
    drawn = first.draws(50_000, np.random.default_rng(0))
    assert (drawn.mean(), drawn.std()) == pytest.approx((1.0, 2.0), abs=0.03)
