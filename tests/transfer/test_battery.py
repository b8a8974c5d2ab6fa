"""Which ablations apply to a setup, and that each is a configuration that can be trained."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sweeper.config import compose_tree
from sweeper.scaling.adjusted import Change
from sweeper.scaling.spec import Role
from sweeper.settings import Settings, placeholder_data, resolve
from sweeper.training.prepare import prepare
from sweeper.transfer.battery import BATTERY, Ablation, Head, Situation, ablations, deviations
from sweeper.transfer.explain import explain
from sweeper.transfer.ladder import Size
from sweeper.transfer.plan import make_plan
from sweeper.trial import defaults, plain

SMALL = ["model.width=16", "model.depth=1", "model.head_size=8", "transfer.widths=[16,64]"]
LARGE = Size(width=64, depth=1)


def settings_of(*words: str) -> Settings:
    return resolve(compose_tree([*SMALL, *words]))


def situation(*words: str, **changes: Any) -> Situation:
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
    return Situation(**{**given, "parameters": plan.parameters, **changes})


def found(s: Situation) -> dict[str, Ablation]:
    return {ablation.name: ablation for ablation in ablations(s)}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "adafactor", "muon"])
@pytest.mark.parametrize("scheme", ["mup", "mean_field"])
def test_schemes_that_train_as_mup_do_not_deviate(scheme: str, optimizer: str) -> None:
    words = [f"parameterization={scheme}", f"optimizer={optimizer}", "model.norm_gain=true"]
    if scheme == "mup":
        words.append("parameterization.convention=everett")
    assert deviations(situation(*words).rows) == {}


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
def test_what_a_scheme_lacks_to_mup(words: list[str], lacks: dict[str, Change]) -> None:
    """By hand from the tables of the papers (u-muP, Table 1; Everett et al., Table 1)."""
    assert deviations(situation(*words).rows) == {Role(k): v for k, v in lacks.items()}


CASES = [
    ["parameterization=mup"],
    ["parameterization=umup"],
    ["parameterization=standard", "optimizer=sgd", "model.norm_gain=true"],
    ["parameterization=spectral", "optimizer=muon"],
    ["parameterization=mup", "parameterization.decay=coupled", "parameterization.epsilon=fixed"],
]


@pytest.mark.parametrize("words", CASES)
def test_every_experiment_is_a_configuration_of_its_own(words: list[str]) -> None:
    s = situation(*words)
    trees = [ablation.tree(s.tree) for ablation in ablations(s)]
    assert len(trees) > 4
    for index, tree in enumerate(trees):
        assert tree != s.tree and tree not in trees[:index]
        assert resolve(tree).space.keys() == s.best.keys()


def test_what_applies_to_mup() -> None:
    """No rule deviates: only the embedding's is tried, the u-muP paper's way."""
    names = set(found(situation("parameterization=mup")))
    assert names == {"embedding", "decay", "epsilon", "warmup", "stability", "horizon", "batch"}


def test_what_is_seen_comes_first() -> None:
    s = situation("parameterization=standard", "model.norm_gain=true", margins=(3.0, 0.5))
    seen = [bool(ablation.seen) for ablation in ablations(s)]
    assert seen == sorted(seen, reverse=True)
    assert {e.name for e in ablations(s) if e.seen} == {
        "rules",
        "hidden",
        "readout",
        "gains",
        "warmup",
        "stability",
    }


def test_the_edge_of_stability_speaks_for_a_warm_up_and_for_clipping() -> None:
    s = situation("parameterization=mup", margins=(3.0, 0.5))
    told = found(s)
    said = "the optimum lies below the first rate that diverges, in log2: "
    both = "by 3 at width 16, depth 1, by 0.5 at width 64, depth 1"
    assert told["warmup"].seen == told["stability"].seen == said + both
    assert told["stability"].overrides == {"train.clip": 1.0}
    one = found(situation("parameterization=mup", margins=(math.inf, 1.0)))["stability"]
    assert one.seen.endswith("none diverges at width 16, depth 1, by 1 at width 64, depth 1")
    far = found(situation("parameterization=mup", margins=(1.5, math.inf)))["stability"]
    assert far.seen == ""
    assert "stability" not in found(situation("parameterization=mup", "train.clip=5"))


def test_coupled_decay_is_kept_at_the_base_s_strength() -> None:
    """muP: a hidden weight's rate, and with it the decay, falls to a quarter at 4 x the width."""
    words = ["parameterization=mup", "parameterization.decay=coupled", "optimizer.weight_decay=0.5"]
    decay = found(situation(*words))["decay"]
    kept = 0.5 * 2.0**-8
    assert decay.overrides == {
        "parameterization.decay": "independent",
        "optimizer.weight_decay": pytest.approx(kept),
    }
    assert f"{kept:.3g} of a hidden weight at the base and {kept / 4:.3g}" in decay.seen
    scaled = ["parameterization=mup", "parameterization.decay=scaled"]
    assert found(situation(*scaled))["decay"].seen == ""
    assert "decay" not in found(situation("parameterization=mup", "optimizer.weight_decay=0"))


@pytest.mark.parametrize(("power", "applies"), [(0.5, True), (1.0, False)])
def test_attention_over_a_head_size_that_grows(power: float, applies: bool) -> None:
    heads = (Head(size=8, logit=8**-power), Head(size=32, logit=32**-power))
    tried = found(situation("parameterization=standard", heads=heads)).get("attention")
    assert (tried is not None) == applies
    if tried:
        scheme = tried.overrides["parameterization"]
        assert (scheme["attention"], scheme["head_size"]) == (0.5, 8)
        assert "from 8 to 32" in tried.seen
    same = (Head(size=8, logit=1.0), Head(size=8, logit=1.0))
    assert "attention" not in found(situation("parameterization=standard", heads=same))


def test_over_depth_the_rules_of_width_are_left_out() -> None:
    s = situation("parameterization=mup")
    deep = Situation(**{**vars(s), "rows": (), "large": Size(width=16, depth=4)})
    names = found(deep)
    assert names["depth"].overrides == {"parameterization.depth": "completep"}
    assert not {"embedding", "hidden", "readout", "rules"} & set(names)


def test_eps_without_atan2_is_made_smaller() -> None:
    made = found(situation("parameterization=mup", "optimizer=adafactor"))["epsilon"]
    assert made.overrides == {"optimizer.eps": 1e-15 * 2.0**-10}
    assert "epsilon" not in found(situation("parameterization=mup", "optimizer.atan2=true"))
    fixed = situation("parameterization=mup", "parameterization.epsilon=fixed")
    assert "gradients shrink" in found(fixed)["epsilon"].seen


@pytest.mark.parametrize("rule", ["fixed", "scaled"])
def test_eps_that_was_measured_to_matter_speaks_for_itself(rule: str) -> None:
    words = ["parameterization=mup", f"parameterization.epsilon={rule}"]

    def seen(*shares: float) -> str:
        return found(situation(*words, below_eps=shares))["epsilon"].seen

    measured = (
        "eps exceeds the root of the second moment for 3 % of entries at width 16, depth 1 and "
        "41 % of entries at width 64, depth 1"
    )
    assert measured in seen(0.03, 0.41)
    assert ("eps is the same at all sizes" in seen(0.03, 0.41)) == (rule == "fixed")
    assert bool(seen(0.0, 0.001)) == bool(seen(math.nan, math.nan)) == (rule == "fixed")
    assert "root" not in seen(math.nan, 0.5)


def test_tied_embeddings_of_a_model_that_has_them() -> None:
    s = situation("parameterization=mup")
    tree = {**s.tree, "model": {**s.tree["model"], "tie_embeddings": True}}
    tied = found(Situation(**{**vars(s), "tree": tree}))["tied"]
    assert tied.overrides == {"model.tie_embeddings": False}


def test_only_those_wanted() -> None:
    s = situation("parameterization=standard")
    assert [e.name for e in ablations(s, ["batch", "hidden"])] == ["hidden", "batch"]
    assert set(BATTERY) > {"hidden", "batch"} and s.margins == (math.inf, math.inf)
