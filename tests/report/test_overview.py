"""What tuning small saved, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.report.documents import Documents, TargetDocuments
from sweeper.report.sections import cards, cost_rows, flops_of, saving, saving_words, times
from sweeper.study.setup import Trials
from sweeper.trial import Log2Hps, Result, Trial, TrialSpec
from tests.report import samples
from tests.specs import spec_of

PLAN = {"target": {"width": 64, "depth": 2}, "hps": {"eta": 2.0}}


def flops(spec: TrialSpec) -> float:
    """As many as a model's weights, times its steps."""
    return float(spec.width**2 * spec.train.steps)


def run(width: int, seconds: float, phase: str = "eta", **changes: object) -> Result:
    spec = replace(spec_of({"model": {"width": 16, "depth": 2}}), width=width)
    trial = Trial(spec=spec, log2_hps=Log2Hps({"eta": 0.0}), phase=phase)
    result = Result(
        trial=trial, status="complete", objective=3.0, seconds=seconds, steps=10, device="cpu"
    )
    return replace(result, **changes)  # type: ignore[arg-type]


def documents(results: list[Result], plan: object = PLAN) -> Documents:
    target = TargetDocuments(name="w64-d2", plan=plan, validation={})  # type: ignore[arg-type]
    search = samples.search()
    return Documents(
        name="a", search=search, targets=(target,), config="", trials=Trials(results, 0)
    )


def test_the_same_trials_at_the_target_are_counted_step_for_step() -> None:
    stopped = run(16, 1.0, steps=5)
    ladder = run(32, 8.0, phase="validate")
    found = saving(documents([run(16, 2.0), stopped, ladder]), PLAN, flops)
    assert found is not None
    # One and a half runs of 16^2 x 10 and of 64^2 x 10; the proof is one of 32^2 x 10.
    assert (found.tuning.flops, found.proving.flops) == (3840, 10240)
    assert found.at_target.flops == 61440 and found.factor == 16
    assert found.factor_with_proof == pytest.approx(61440 / 14080)
    # The widest timed trial makes 10240 FLOPs in 8 seconds.
    assert found.at_target.hours * 3600 == pytest.approx(48)
    assert (found.timed_width, found.device) == (32, "cpu")
    first, second, third = cost_rows([found], "width 16, depth 2")
    assert (first["trials"], first["time"]) == ("2", "3 s")
    assert (second["what"], third["time"]) == ("proving it on ladders", "≈ 48 s")
    words = (
        "16 times fewer FLOPs than the same tuning at width 64 would, and with the proof 4.4 times"
    )
    assert words in saving_words(found)
    assert (times(16.0), times(0.25)) == ("16 times fewer", "4 times more")


def test_a_law_s_longer_run_costs_more() -> None:
    plan = PLAN | {"law": {"target": {"batch": 1, "steps": 40}}}
    found = saving(documents([run(16, 2.0)]), plan, flops)
    assert found is not None and found.at_target.flops == 64**2 * 40


def test_what_is_not_known_is_said() -> None:
    spec = replace(spec_of(), runner={"name": "command"})
    assert math.isnan(flops_of(spec))
    found = saving(documents([run(16, 2.0)]), PLAN, lambda _: math.nan)
    assert found is not None and "not known" in saving_words(found)
    assert [row["flops"] for row in cost_rows([found], "the base")] == ["not known"] * 2
    assert cost_rows([found], "the base")[1]["time"] == "not known"


@pytest.mark.parametrize("plan", [{}, {"target": {"depth": 2}}, {"target": {"width": "x"}}])
def test_without_a_target_nothing_is_said(plan: dict[str, object]) -> None:
    assert saving(documents([run(16, 2.0)], plan), plan, flops) is None
    assert saving(documents([]), PLAN, flops) is None


def test_flops_are_those_of_the_engine() -> None:
    """Those that `compare` counts: 6 a weight and token, and the attention's."""
    data = {"digest": "0" * 64, "classes": 16}
    spec = spec_of({"data": data, "model": {"width": 64, "depth": 1}, "train": {"seq_len": 4}})
    from sweeper.engine.prepare import prepare

    prepared = prepare(spec)
    weights = sum(math.prod(one.shape) for one in prepared.specs if one.role != "embedding")
    assert flops_of(spec) == 10 * 4 * (6 * weights + 12 * 64 * 4)


def test_the_best_eta_is_the_curve_s_where_there_is_one(tmp_path: Path) -> None:
    validation = samples.validation()
    validation["axes"][0]["sizes"][0]["is_base"] = True
    folder = samples.study(tmp_path / "demo", samples.search(), w256=validation)
    eta, loss, planned, _ = cards(Documents.read(folder))
    assert eta["value"] == f"{2**1.52:.4g}" and "95 % interval 2.66 to 3.1" in eta["note"]
    assert loss == {
        "name": "Training loss",
        "value": "3.4120 nats",
        "note": "of the best configuration, mean over 3 seeds",
    }
    assert planned["value"] == "2.828" and planned["name"] == "Planned η for width 256"
    folder = samples.study(tmp_path / "bare", samples.search(), w256=None)
    assert "no interval" in cards(Documents.read(folder))[0]["note"]
