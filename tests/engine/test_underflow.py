"""The roots of second moments from first principles, and the fraction of them that eps exceeds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sweeper.engine.measurements import MEASUREMENTS, fraction_below_eps
from sweeper.launch.job import Control, Leave
from sweeper.scaling.spec import Update
from sweeper.trial import Trial
from tests.engine.optimizers import Member, OptimizerRun, shipped
from tests.engine.tiny_trials import corpus, tree, trial
from tests.specs import spec_of

STEPS = 5
MEMBERS = [Member(seed=0), Member(seed=1, values={"one_minus_beta2": 16.0})]


def trained(name: str) -> tuple[OptimizerRun, list[list[Tensor]], list[Tensor]]:
    """A batch after some steps, its gradients by parameter, and the optimizer's roots."""
    optimizer = shipped(name)
    run, grads = OptimizerRun(optimizer, MEMBERS), []
    for _ in range(STEPS):
        grads.append(run.grads())
        run.step(grads=[grad.clone() for grad in grads[-1]])
    roots = optimizer.second_moment_roots(run.state, run.update_hps, run.steps)  # type: ignore[attr-defined]
    return run, [list(each) for each in zip(*grads, strict=True)], roots


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_adam_s_roots_are_of_the_weighted_mean_of_squares(name: str) -> None:
    """Bias correction makes the weights (1 - beta2) beta2^(T - t) of the squares sum to 1."""
    run, grads, roots = trained(name)
    for kind, steps, root in zip(run.update_hps.kinds, grads, roots, strict=True):
        if kind is Update.ORTHOGONAL:
            assert root.shape == (2, 0)
            continue
        for k, beta2 in enumerate((0.999, 1 - 16 * 0.001)):
            weights = [beta2 ** (STEPS - 1 - t) for t in range(STEPS)]
            mean = sum(w * g[k] ** 2 for w, g in zip(weights, steps, strict=True)) / sum(weights)
            torch.testing.assert_close(root[k], mean.sqrt(), rtol=1e-9, atol=0)


def test_adafactor_s_roots_are_of_rows_and_columns() -> None:
    """Shazeer and Stern, Algorithm 4: the weight of the newest is t^-0.8."""
    run, grads, roots = trained("adafactor")
    for steps, root in zip(grads, roots, strict=True):
        mean = torch.zeros_like(steps[0])
        for t, g in enumerate(steps, 1):
            mean += t**-0.8 * (g**2 - mean)
        if root.dim() > 2:
            row, column = mean.mean(-1, keepdim=True), mean.mean(-2, keepdim=True)
            mean = row * column / row.mean(-2, keepdim=True)
        torch.testing.assert_close(root, mean.sqrt(), rtol=1e-9, atol=0)
    assert len(run.specs) == len(roots)


def with_eps(name: str, eps: float | None, steps: int = 1) -> Trial:
    made = tree("mup", steps=steps)
    optimizer = {"_target_": made["optimizer"]["_target_"].replace("first_order.AdamW", name)}
    optimizer |= {} if eps is None else {"eps": eps}
    return Trial(spec=spec_of({**made, "optimizer": optimizer}), log2_hps=trial("mup").log2_hps)


@pytest.mark.parametrize("name", ["first_order.AdamW", "muon.Muon", "first_order.Adafactor"])
def test_the_fraction_grows_with_eps_from_nothing_to_all(tmp_path: Path, name: str) -> None:
    """Of the 32 tokens a step meets at most 16: the others' embeddings have no gradient.

    Were they counted, the smallest eps would exceed their roots, too.
    """
    tokens = corpus(tmp_path)
    fractions = [
        fraction_below_eps(with_eps(name, eps), tokens) for eps in (1e-30, 1e-3, 1e-2, 1e30)
    ]
    assert fractions[0] == 0 and fractions[-1] == 1
    assert fractions == sorted(fractions) and 0 < fractions[1] < fractions[2]


def test_it_counts_what_a_loop_counts(tmp_path: Path) -> None:
    """After one step Adam's roots are the gradients themselves; eps is that of the parameter."""
    from sweeper.engine.batched import BatchedRun, BatchedTrials

    made, tokens, eps = with_eps("first_order.AdamW", 1e-3), corpus(tmp_path), 1e-3
    run = BatchedRun(BatchedTrials(trials=(made,), corpus=tokens))
    parameterization = run.prepared.parameterization
    factors = {s.name: parameterization.scale(s, made.hps).eps for s in run.prepared.specs}
    x, y = run.feed.batch(0)
    losses, grads = run._gradients(x[run.seed_rows], y[run.seed_rows])
    assert losses.isfinite().all()
    small = total = 0
    for name, grad in zip(run.params, grads, strict=True):
        for value in grad.detach().flatten().abs().tolist():
            total += value > 0
            small += 0 < value < eps * factors[name]
    assert fraction_below_eps(made, tokens) == pytest.approx(small / total, abs=1e-12)
    assert len(set(factors.values())) > 1


def test_optimizers_without_such_roots_and_broken_runs_have_no_fraction(tmp_path: Path) -> None:
    tokens = corpus(tmp_path)
    assert math.isnan(fraction_below_eps(with_eps("first_order.SGD", None), tokens))
    assert math.isnan(fraction_below_eps(with_eps("first_order.Lion", None), tokens))
    wild = Trial(
        spec=spec_of(tree("standard", steps=4)),
        log2_hps=trial("standard", eta=900.0).log2_hps,
        seed=0,
    )
    assert math.isnan(fraction_below_eps(wild, tokens))


# Kernels are of one batch at initialization: no step at which to ask.
@pytest.mark.parametrize("name", sorted(MEASUREMENTS.keys() - {"kernels"}))
def test_a_measurement_asks_at_every_step_whether_to_leave(name: str, tmp_path: Path) -> None:
    asked: list[int] = []

    def should_leave() -> bool:
        asked.append(1)
        return len(asked) == 3

    one = trial()
    with pytest.raises(Leave):
        MEASUREMENTS[name](one, corpus(tmp_path), "cpu", Control(should_leave=should_leave))
    assert len(asked) == 3
