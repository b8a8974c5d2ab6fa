"""Which trials' losses are drawn over their steps."""

from __future__ import annotations

from sweeper.report.drawing import svg
from sweeper.report.figures import chosen_trials, chosen_widths, steps_figure
from sweeper.study.setup import Trials
from sweeper.trial import Log2Hps, Result, Status, Trial
from tests.layout import without_layout
from tests.specs import spec_of


def run(
    loss: float,
    *,
    width: int = 16,
    eta: float = 0.0,
    seed: int = 0,
    phase: str = "eta",
    status: Status = "complete",
) -> Result:
    spec = spec_of({"model": {"width": width, "depth": 1}, "base": {"width": 16, "depth": 1}})
    trial = Trial(spec=spec, log2_hps=Log2Hps({"eta": eta, "alpha": 1.0}), seed=seed, phase=phase)
    curve = tuple(loss + 1 / (step + 1) for step in range(10))
    return Result(trial=trial, status=status, objective=loss, curve=curve, steps=10)


def test_best_median_and_worst_of_those_that_ended() -> None:
    losses = [3.0, 1.0, 2.0, 5.0, 4.0]
    results = [run(loss, eta=loss) for loss in losses]
    results += [run(0.1, eta=8, status="pruned"), run(9.0, eta=9, status="diverged")]
    results += [run(0.5, width=32, phase="validate")]
    chosen = chosen_trials(Trials(results, 0))
    assert [(one.name, one.result.objective) for one in chosen] == [
        ("best", 1.0),
        ("median", 3.0),
        ("worst", 5.0),
    ]
    assert [one.name for one in chosen_trials(Trials(results[:1], 0))] == ["best"]
    assert chosen_trials(Trials([], 0)) == []


def test_each_width_at_the_least_mean_over_the_seeds() -> None:
    """A lucky seed does not choose the learning rate; the first seed is drawn."""
    results = [run(2.0, eta=0, seed=0), run(2.2, eta=0, seed=1)]
    results += [run(1.0, eta=1, seed=0, phase="validate")]
    results += [run(9.0, eta=1, seed=1, phase="validate")]
    results += [run(1.5, width=32, eta=1, seed=s, phase="validate") for s in (1, 0)]
    other = run(0.1, eta=0, seed=5)
    spec = other.trial.spec
    assert spec.depth == 1
    chosen = chosen_widths(Trials(results, 0))
    told = [(one.name, one.result.trial.log2_hps["eta"], one.result.trial.seed) for one in chosen]
    assert told == [("width 16", 0.0, 0), ("width 32", 1.0, 0)]
    assert chosen_widths(Trials(results[:2], 0)) == []


def test_the_drawing_says_its_numbers() -> None:
    chosen = chosen_trials(Trials([run(1.0), run(2.0, eta=1.0)], 0))
    with without_layout():
        text = svg(steps_figure(chosen, []))
    assert "best: 1.000" in text and "worst: 2.000" in text
    assert "best, log2 η 0, seed 0, step 10: 1.1000 nats" in text
    assert text.count('class="tip"') == 20
