"""Which ablation explains a failure: by hand, and of failures planted in a made-up world."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.decide.diagnosis import (
    MAX_SEVERITY,
    Ablation,
    Diagnosis,
    distance_to_divergence,
    explained_fraction,
    judge_ablation,
    rank,
    severity,
)
from sweeper.decide.transfer import SizeVerdict, judge_ladder
from sweeper.records import to_json
from sweeper.report.output import Output
from sweeper.report.present import Silent
from sweeper.report.sentences_diagnosis import conclusion_text, result_text
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import LadderRule
from tests.engine.tiny_trials import corpus
from tests.golden import Golden
from tests.plan.simulated import simulate
from tests.stats.curves import BASE, LARGE, Valley, table

RULE = LadderRule(widths=(32, 256))


SILENT = Silent()


def size(shift: float, gap: float, half: float = 0.1, loss: float = 3.0) -> SizeVerdict:
    def estimate(value: float) -> Estimate:
        return Estimate(value=value, low=value - half, high=value + half)

    exact = Estimate(value=loss, low=loss, high=loss)
    return SizeVerdict(
        size=LARGE,
        optimum_log2=estimate(shift),
        shift_log2=estimate(shift),
        loss=exact,
        regret=estimate(gap),
        loss_gap=estimate(gap),
        at_end=False,
        answer="fails",
        reason="",
    )


def test_a_failure_in_thresholds_by_hand() -> None:
    """Thresholds: 1 in log2, and 0.03 nats (1 % of 3)."""
    assert severity(-2.0, 0.015, 3.0, RULE) == 2
    assert severity(0.5, 0.09, 3.0, RULE) == pytest.approx(3)
    assert severity(0.0, math.inf, 3.0, RULE) == severity(math.nan, 0, 3.0, RULE) == MAX_SEVERITY


def test_doubt_comes_first() -> None:
    ablation = Ablation(name="hidden", change="x", cause="the hidden rule is wrong")
    before, sure, wide = size(-3.38, 0.5), size(-0.3, 0.0), size(-0.37, 0.0, half=4.0)

    def conclusion(after: SizeVerdict) -> str:
        results = (judge_ablation(ablation, before, after, RULE),)
        return conclusion_text(Diagnosis(axis="width", answer="fails", results=results))

    assert conclusion(sure).startswith("The likeliest cause (hidden): the hidden rule is wrong.")
    assert conclusion(sure).endswith("of the failure is gone.")
    assert conclusion(wide).startswith("No ablation surely explains the failure: by its interval")
    assert conclusion(wide).endswith("of the failure seems gone.")


def test_all_ablations_have_one_progress() -> None:
    trainer, _ = simulate(*PLANTED["standard"])
    trainer.diagnose(["rules", "decay", "stability", "horizon"], SILENT)
    parts = trainer.monitor.parts  # type: ignore[attr-defined]
    assert [name.split()[1:] for name, *_ in parts] == [
        [f"({n}", "of", f"{len(parts)})"] for n in range(1, len(parts) + 1)
    ]
    befores, afters = [one[1] for one in parts], [one[2] for one in parts]
    assert befores[0] == 0 and sorted(set(befores)) == befores
    assert afters[-1] == 0 and sorted(set(afters), reverse=True) == afters


def test_what_is_explained_by_hand() -> None:
    """From 2 thresholds to 0.5: three quarters; its shift of 0.4 to 0.6 makes 0.7 to 0.8."""
    found = explained_fraction(size(-2.0, 0.0), size(0.5, 0.0, half=0.0), RULE)
    assert found == Estimate(value=0.75, low=0.75, high=0.75)
    wide = explained_fraction(
        size(-2.0, 0.0), replace(size(0.5, 0.0), loss_gap=Estimate(value=0, low=0, high=0)), RULE
    )
    assert (wide.low, wide.high) == (pytest.approx(0.7), pytest.approx(0.8))
    assert explained_fraction(size(-2.0, 0.0), size(-3.0, 0.0), RULE).value == 0


def test_the_ranking_and_its_words(golden: Golden) -> None:
    before = size(-2.0, 0.0)
    names = {"some": -1.2, "most": 0.02, "none": -2.1}
    made = [
        judge_ablation(
            Ablation(name=n, change=f"no {n}", cause=f"it is {n}"), before, size(s, 0, 0.01), RULE
        )
        for n, s in names.items()
    ]
    broken = judge_ablation(Ablation(name="x", change="y", cause="z"), before, "no such key", RULE)
    order = rank([broken, *made])
    assert [result.ablation.name for result in order] == ["most", "some", "none", "x"]
    golden.says(result_text(order[0]))
    golden.says(result_text(order[1]))
    golden.says(result_text(order[2]))
    golden.says(result_text(order[3]))
    found = Diagnosis(axis="width", answer="fails", results=order)
    golden.says(conclusion_text(found))
    none = Diagnosis(axis="width", answer="fails", results=order[1:])
    golden.says(conclusion_text(none))
    json.dumps(to_json(found), allow_nan=False)


def test_noise_is_admitted(golden: Golden) -> None:
    found = judge_ablation(
        Ablation(name="a", change="b", cause="c"), size(-2, 0), size(0.1, 0, 5), RULE
    )
    assert found.explained.low <= 0 < found.explained.high
    golden.says(result_text(found))


def test_the_margin_to_the_edge() -> None:
    assert distance_to_divergence(table({-1: 3.2, 0: 3.0, 1: 3.1, 2: math.inf})) == 2
    assert distance_to_divergence(table({-1: 3.2, 0: 3.0})) == math.inf
    assert distance_to_divergence(table({-1: math.inf, 0: math.inf})) == math.inf


def test_a_verdict_serves_as_it_is() -> None:
    curves = [
        Valley(noise=0.001).curve(BASE),
        Valley(optimum=-2, noise=0.001).curve(LARGE),
    ]
    verdict = judge_ladder("width", curves, 0.0, BASE, RULE)
    assert verdict.answer == "fails"
    large = verdict.sizes[1]
    assert explained_fraction(large, large, RULE).value == 0


PLANTED = {
    "standard": ["parameterization=standard"],
    "coupled decay": [
        "parameterization=mup",
        "parameterization.decay=coupled",
        "optimizer.weight_decay=0.9",
    ],
    "readout": [
        "parameterization=mup",
        f"parameterization._target_={__package__}.simulated.WrongReadout",
    ],
    "gains": ["parameterization=mup", "model.norm_gain=true"],
}
NAMES = {
    "standard": {"rules", "hidden"},
    "coupled decay": {"decay"},
    "readout": {"readout"},
    "gains": {"gains"},
}
RIVALS = ["rules", "hidden", "readout", "embedding", "decay", "gains"]


@pytest.mark.parametrize(
    "planted",
    [pytest.param(p, marks=pytest.mark.long if p in ("readout", "gains") else ()) for p in PLANTED],
)
def test_a_planted_failure_is_named(planted: str, golden: Golden) -> None:
    trainer, world = simulate(*PLANTED[planted])
    found = trainer.diagnose(RIVALS, SILENT)
    assert found.answer == "fails"
    first = {result.ablation.name for result in found.results[: len(NAMES[planted])]}
    assert first == NAMES[planted], found.conclusion
    shares = {f.ablation.name: f.explained.value for f in found.results}
    assert found.results[0].explained.value > 0.8
    innocent = shares.keys() - NAMES[planted] - ({"readout"} if planted == "standard" else set())
    assert innocent and all(shares[name] < 0.5 for name in innocent)
    golden.says(found.conclusion)
    assert len(world.trained) == len(set(world.trained))


def test_eps_is_measured_at_both_sizes(tmp_path: Path) -> None:
    """By real runs, where its ablation is wanted; here eps is above all second moments."""
    words = [*PLANTED["readout"], "parameterization.epsilon=fixed", "optimizer.eps=1e4"]
    words += ["check.scale_steps=1", "train.seq_len=8", "train.batch_size=2"]
    trainer, _ = simulate(*words)
    experiment = replace(trainer.pair.experiment, corpus=corpus(tmp_path, classes=256))
    trainer = replace(trainer, pair=replace(trainer.pair, experiment=experiment))
    text = StringIO()
    told = Output(people=Console(file=text), watchers=Console(file=text, width=200))
    (result,) = trainer.diagnose(["epsilon"], told).results
    both = "100 % of entries at width 16, depth 1 and 100 % of entries at width 64, depth 1"
    assert result.ablation.evidence.endswith(f"root of the second moment for {both}")
    first = "Second moments at width 16, depth 1 and width 64, depth 1: 1 steps"
    assert text.getvalue().splitlines()[0] == first
    text.truncate(0)
    trainer.diagnose(["decay"], told)
    assert "Second moments" not in text.getvalue()


def test_a_transfer_that_holds_needs_no_experiment(golden: Golden) -> None:
    trainer, world = simulate("parameterization=mup")
    found = trainer.diagnose(["rules", "decay", "stability", "horizon"], SILENT)
    assert found.answer == "holds" and found.results == ()
    golden.says(found.conclusion)
    known = trainer.study.known.values()  # type: ignore[attr-defined]
    assert len(world.trained) == len(known) and {r.trial.width for r in known} == {16, 64}


def test_again_trains_nothing_and_says_the_same() -> None:
    trainer, _ = simulate(*PLANTED["readout"])
    first = trainer.diagnose(["readout", "decay"], SILENT)
    again, world = simulate(*PLANTED["readout"], study=trainer.study)  # type: ignore[arg-type]
    assert to_json(again.diagnose(["readout", "decay"], SILENT)) == to_json(first)
    assert world.trained == []


def test_a_change_of_width_rules_alone_trains_no_base_again() -> None:
    trainer, _ = simulate(*PLANTED["readout"])
    trainer.diagnose(["readout", "decay"], SILENT)
    widths = {"adjusted": set(), "decay": set()}  # type: dict[str, set[int]]
    for one in trainer.study.known.values():  # type: ignore[attr-defined]
        spec = one.trial.spec
        if spec.parameterization.name == "adjusted":
            widths["adjusted"].add(one.trial.width)
        if spec.optimizer.arguments["weight_decay"] == 0:
            widths["decay"].add(one.trial.width)
    assert widths == {"adjusted": {64}, "decay": {16, 64}}
