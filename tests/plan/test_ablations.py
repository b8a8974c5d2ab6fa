"""Which ablations apply to a configuration, and that each can be trained."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sweeper.config.compose import compose_tree
from sweeper.config.settings import Settings, placeholder_data, resolve
from sweeper.decide.diagnosis import (
    ABLATIONS,
    Ablation,
    FailedTransfer,
    HeadScale,
    applicable_ablations,
    mup_deviations,
)
from sweeper.engine.prepare import prepare
from sweeper.plan.explain import explain
from sweeper.plan.plan import make_plan
from sweeper.report.sentences_diagnosis import worded_ablation
from sweeper.scaling.relative import Change
from sweeper.scaling.spec import Role
from sweeper.stats.ladder import Size
from sweeper.trial import defaults, plain
from tests.golden import Golden

SMALL = ["model.width=16", "model.depth=1", "model.head_size=8", "transfer.widths=[16,64]"]
LARGE = Size(width=64, depth=1)


def settings_of(*words: str) -> Settings:
    return resolve(compose_tree([*SMALL, *words]))


def failed_transfer(*words: str, **changes: Any) -> FailedTransfer:
    """Of a study with these overrides, its hyperparameters at their defaults."""
    settings, large = settings_of(*words), changes.get("large", LARGE)
    base, best = settings.base, defaults(settings.space)
    hps = plain(best)

    def prepared(size: Size) -> Any:
        return prepare(settings.spec(placeholder_data(settings), "float32", size))

    wide = prepared(large)
    plan = make_plan(wide, base, large, hps, {})
    rows = explain(plan, prepared(Size(width=base.width, depth=large.depth)), wide, hps)
    given = {"tree": settings.raw, "best_log2": best, "base": base, "large": large, "rows": rows}
    return FailedTransfer(**{**given, "parameters": plan.parameters, **changes})


def found(s: FailedTransfer) -> dict[str, Ablation]:
    return {each.name: worded_ablation(each) for each in applicable_ablations(s)}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "adafactor", "muon"])
@pytest.mark.parametrize(
    "parameterization", [pytest.param("mup", marks=pytest.mark.long), "mean_field"]
)
def test_parameterizations_that_train_as_mup_do_not_deviate(
    parameterization: str, optimizer: str
) -> None:
    words = [
        f"parameterization={parameterization}",
        f"optimizer={optimizer}",
        "model.norm_gain=true",
    ]
    if parameterization == "mup":
        words.append("parameterization.convention=everett")
    assert mup_deviations(failed_transfer(*words).rows) == {}


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        (["parameterization=standard"], {"hidden": Change(c=1), "readout": Change(b=0.5, c=1)}),
        (
            ["parameterization=standard", "parameterization.alignment=full"],
            {"readout": Change(b=0.5)},
        ),
        (["parameterization=ntk"], {"readout": Change(b=0.5)}),
        (["parameterization=umup"], {"embedding": Change(c=-0.5)}),
        (["parameterization=umup", "parameterization.scaled_embedding_lr=false"], {}),
    ],
)
def test_what_a_parameterization_lacks_to_mup(words: list[str], lacks: dict[str, Change]) -> None:
    """By hand from the tables of the papers (u-muP, Table 1; Everett et al., Table 1)."""
    assert mup_deviations(failed_transfer(*words).rows) == {Role(k): v for k, v in lacks.items()}


CASES = [
    ["parameterization=mup"],
    ["parameterization=umup"],
    ["parameterization=standard", "optimizer=sgd", "model.norm_gain=true"],
    ["parameterization=spectral", "optimizer=muon"],
    ["parameterization=mup", "parameterization.decay=coupled", "parameterization.epsilon=fixed"],
]


@pytest.mark.parametrize("words", CASES)
def test_every_ablation_is_a_configuration_of_its_own(words: list[str]) -> None:
    s = failed_transfer(*words)
    trees = [ablation.apply(s.tree) for ablation in applicable_ablations(s)]
    assert len(trees) > 4
    for index, tree in enumerate(trees):
        assert tree != s.tree and tree not in trees[:index]
        assert resolve(tree).space.keys() == s.best_log2.keys()


def test_what_applies_to_mup() -> None:
    """No rule deviates: only the embedding's is tried, the u-muP paper's way."""
    names = set(found(failed_transfer("parameterization=mup")))
    assert names == {"embedding", "decay", "epsilon", "warmup", "stability", "horizon", "batch"}


def test_what_has_evidence_comes_first() -> None:
    s = failed_transfer(
        "parameterization=standard", "model.norm_gain=true", distances_to_divergence=(3.0, 0.5)
    )
    assert all(bool(worded_ablation(e).evidence) == e.seen for e in applicable_ablations(s))
    evidence = [ablation.seen for ablation in applicable_ablations(s)]
    assert evidence == sorted(evidence, reverse=True)
    assert {e.name for e in applicable_ablations(s) if e.seen} == {
        "rules",
        "hidden",
        "readout",
        "gains",
        "warmup",
        "stability",
    }


def test_the_edge_of_stability_speaks_for_a_warm_up_and_for_clipping() -> None:
    s = failed_transfer("parameterization=mup", distances_to_divergence=(3.0, 0.5))
    told = found(s)
    said = "distance in log2 from the optimum to the first rate that diverges: "
    both = "3 at width 16, depth 1; 0.5 at width 64, depth 1"
    assert told["warmup"].evidence == told["stability"].evidence == said + both
    assert told["stability"].overrides == {"train.clip": 1.0}
    one = found(failed_transfer("parameterization=mup", distances_to_divergence=(math.inf, 1.0)))[
        "stability"
    ]
    assert one.evidence.endswith("none diverges at width 16, depth 1; 1 at width 64, depth 1")
    far = found(failed_transfer("parameterization=mup", distances_to_divergence=(1.5, math.inf)))[
        "stability"
    ]
    assert far.evidence == ""
    assert "stability" not in found(failed_transfer("parameterization=mup", "train.clip=5"))


def test_coupled_decay_is_kept_at_the_base_s_strength() -> None:
    """muP: a hidden weight's rate, and with it the decay, falls to a quarter at 4 x the width."""
    words = ["parameterization=mup", "parameterization.decay=coupled", "optimizer.weight_decay=0.5"]
    decay = found(failed_transfer(*words))["decay"]
    kept = 0.5 * 2.0**-8
    assert decay.overrides == {
        "parameterization.decay": "independent",
        "optimizer.weight_decay": pytest.approx(kept),
    }
    assert f"{kept:.3g} of a hidden weight at the base and {kept / 4:.3g}" in decay.evidence
    scaled = ["parameterization=mup", "parameterization.decay=scaled"]
    assert found(failed_transfer(*scaled))["decay"].evidence == ""
    assert "decay" not in found(failed_transfer("parameterization=mup", "optimizer.weight_decay=0"))


@pytest.mark.parametrize(("power", "applies"), [(0.5, True), (1.0, False)])
def test_attention_over_a_head_size_that_grows(power: float, applies: bool, golden: Golden) -> None:
    heads = (
        HeadScale(head_size=8, logit=8**-power),
        HeadScale(head_size=32, logit=32**-power),
    )
    tried = found(failed_transfer("parameterization=standard", attention=heads)).get("attention")
    assert (tried is not None) == applies
    if tried:
        parameterization = tried.overrides["parameterization"]
        assert (parameterization["attention"], parameterization["head_size"]) == (0.5, 8)
        golden.says(tried.evidence)
    same = (HeadScale(head_size=8, logit=1.0), HeadScale(head_size=8, logit=1.0))
    assert "attention" not in found(failed_transfer("parameterization=standard", attention=same))


def test_over_depth_the_rules_of_width_are_left_out() -> None:
    s = failed_transfer("parameterization=mup")
    deep = FailedTransfer(**{**vars(s), "rows": (), "large": Size(width=16, depth=4)})
    names = found(deep)
    assert names["depth"].overrides == {"parameterization.depth": "completep"}
    assert not {"embedding", "hidden", "readout", "rules"} & set(names)


def test_eps_without_atan2_is_made_smaller(golden: Golden) -> None:
    made = found(failed_transfer("parameterization=mup", "optimizer=adafactor"))["epsilon"]
    assert made.overrides == {"optimizer.eps": 1e-15 * 2.0**-10}
    assert "epsilon" not in found(failed_transfer("parameterization=mup", "optimizer.atan2=true"))
    fixed = failed_transfer("parameterization=mup", "parameterization.epsilon=fixed")
    golden.says(found(fixed)["epsilon"].evidence)


def test_a_command_s_eps_is_made_smaller_since_its_script_steps_by_itself() -> None:
    s = failed_transfer("parameterization=mup")
    assert found(s)["epsilon"].overrides == {"optimizer.atan2": True}
    of_command = replace(s, tree={**s.tree, "runner": {"command": ["python", "train.py"]}})
    eps = s.tree["optimizer"]["eps"]
    assert found(of_command)["epsilon"].overrides == {"optimizer.eps": eps * 2.0**-10}


@pytest.mark.parametrize("rule", ["fixed", "scaled"])
def test_eps_that_was_measured_to_matter_speaks_for_itself(rule: str) -> None:
    words = ["parameterization=mup", f"parameterization.epsilon={rule}"]

    def evidence(*fractions: float) -> str:
        return found(failed_transfer(*words, below_eps=fractions))["epsilon"].evidence

    measured = (
        "eps exceeds the root of the second moment for 3 % of entries at width 16, depth 1 and "
        "41 % of entries at width 64, depth 1"
    )
    assert measured in evidence(0.03, 0.41)
    assert ("eps is the same at all sizes" in evidence(0.03, 0.41)) == (rule == "fixed")
    assert bool(evidence(0.0, 0.001)) == bool(evidence(math.nan, math.nan)) == (rule == "fixed")
    assert "root" not in evidence(math.nan, 0.5)


def test_tied_embeddings_of_a_model_that_has_them() -> None:
    s = failed_transfer("parameterization=mup")
    tree = {**s.tree, "model": {**s.tree["model"], "tie_embeddings": True}}
    tied = found(FailedTransfer(**{**vars(s), "tree": tree}))["tied"]
    assert tied.overrides == {"model.tie_embeddings": False}


def test_only_those_wanted() -> None:
    s = failed_transfer("parameterization=standard")
    assert [e.name for e in applicable_ablations(s, ["batch", "hidden"])] == ["hidden", "batch"]
    assert set(ABLATIONS) > {"hidden", "batch"} and s.distances_to_divergence == (
        math.inf,
        math.inf,
    )
