"""Plans of anybody's model: the same numbers as a study's plan, and as microsoft/mup's."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import sweeper
from sweeper.decide.ladder_verdict import Verdict, judge_ladder
from sweeper.decide.target import NO_THEORY
from sweeper.decide.trend import fit_trend
from sweeper.engine.optimizers.first_order import SGD
from sweeper.errors import BadInput, ConfigError
from sweeper.laws.law import AppliedLaw, Factors, Scale
from sweeper.plan.plan import PlannedParameter, TransferPlan
from sweeper.records import from_json, to_json
from sweeper.scaling.relative import MuP
from sweeper.stats.ladder import Size, SizeCurve
from tests.decide.test_ladder_verdict import RULE
from tests.golden import Golden
from tests.plan.helpers import plain_plan, reading_once
from tests.refusals import raises_config_error, refused
from tests.stats.curves import BASE, LARGE, Valley
from tests.toy_models import DECAY, TOKENS, NanoDecoder, Residual

HPS = {"eta": 2.0**-7}
READ_ONCE = reading_once()


def decoder_plan(
    parameterization: Any = "mup", hps: dict[str, float] | None = None, depth: int = 2, **more: Any
) -> TransferPlan:
    """From width 32 and depth 2 to width 128, with a decay."""
    more = {"optimizer": {"name": "adamw", "weight_decay": DECAY}} | more
    base, target = {"n_embd": 32, "n_layer": 2}, {"n_embd": 128, "n_layer": depth}
    with patch("sweeper.plan.plan_for.read_model", READ_ONCE):
        return sweeper.plan_for(
            NanoDecoder, base, target, parameterization, hps or HPS, inputs=TOKENS, **more
        )


def made(build: Any, base: dict[str, Any], target: dict[str, Any]) -> TransferPlan:
    return sweeper.plan_for(build, base, target, "mup", HPS, inputs=TOKENS)


def by_name(plan: TransferPlan) -> dict[str, PlannedParameter]:
    return {parameter.name: parameter for parameter in plan.parameters}


def test_it_is_the_plan_that_a_study_makes() -> None:
    hps = {"eta": 2.0**-7, "eta_emb": 4.0, "alpha_emb": 2.0, "alpha_output": 4.0}
    sizes = {"width": 8, "depth": 2}, {"width": 16, "depth": 2}
    adamw = {"name": "adamw", "weight_decay": 0.01, "decayed": "all"}
    more: Any = {"optimizer": adamw, "inputs": (TOKENS, TOKENS)}
    made = sweeper.plan_for(Residual, *sizes, "mup", hps, **more)
    study = plain_plan()
    assert made.parameters == study.parameters and made.hps == study.hps
    assert (made.base, made.target) == (study.base, study.target)
    assert made.parameterization == "mup" and made.optimizer is not None
    assert made.optimizer.name == "adamw" and made.optimizer.arguments == {"weight_decay": 0.01}


def test_a_model_without_a_depth_among_its_sizes() -> None:
    plan = sweeper.plan_for(NanoDecoder, {"n_embd": 32}, {"n_embd": 64}, "umup", {}, inputs=TOKENS)
    assert plan.target == Size(width=64, depth=1)
    assert any(need.startswith("depth: no size of the model") for need in plan.needs)
    assert not any("depth: no size" in need for need in decoder_plan("umup", {"eta": 1.0}).needs)


def test_inputs_may_depend_on_the_sizes_by_the_user_s_names() -> None:
    asked: list[dict[str, Any]] = []

    def inputs(sizes: dict[str, Any]) -> torch.Tensor:
        asked.append(sizes)
        return TOKENS

    base = {"n_embd": 32, "n_layer": 2}
    sweeper.plan_for(NanoDecoder, base, {"n_embd": 96, "n_layer": 2}, "mup", HPS, inputs=inputs)
    assert all(sizes.keys() == {"n_embd", "n_layer"} for sizes in asked)
    assert {sizes["n_embd"] for sizes in asked} == {32, 64, 96}


class TestHyperparameters:
    def test_missing_ones_take_the_space_s_defaults(self) -> None:
        """conf/parameterization/mup.yaml: eta 2^-8, all others 2^0."""
        plan = decoder_plan(hps={"alpha_output": 2.0})
        assert plan.hps["eta"] == 2.0**-8 and plan.hps["alpha_output"] == 2.0
        assert next(iter(plan.hps)) == "eta" and plan.hps["sigma_init"] == 1.0

    def test_factors_of_the_optimizer_are_known_too(self) -> None:
        plan = decoder_plan(hps={"weight_decay": 2.0, "eps": 4.0})
        target = by_name(plan)["lm_head.weight"].target
        assert target.weight_decay == pytest.approx(2 * 2.0**-13)
        assert target.eps == pytest.approx(4e-8 / 4)  # gradients shrink as 1/m, m = 4

    @pytest.mark.parametrize("hps", [{"etaa": 1.0}, {"alpha_ffn_act": 1.0}, {"eta": -8}])
    def test_what_cannot_be_is_refused(self, hps: dict[str, Any], golden: Golden) -> None:
        [(name, value)] = hps.items()
        with raises_config_error(f"hps[{name!r}]", golden=golden) as caught:
            decoder_plan(hps=hps)
        assert caught.value.value is value


class TestRules:
    def test_options_and_objects_are_the_same(self) -> None:
        options = decoder_plan({"name": "mup", "depth": "completep"}, depth=4)
        made = decoder_plan(MuP(depth="completep"), depth=4)
        assert options.parameters == made.parameters
        assert options.parameterization == made.parameterization == "mup"
        assert options.source["parameterization"]["arguments"] == {"depth": "completep"}

    def test_an_optimizer_s_object(self) -> None:
        """Hidden weights under SGD have mup's rate of 1, the readout's multiplier its 1/m."""
        plan = decoder_plan(optimizer=SGD(momentum=0.5))
        assert plan.optimizer is not None and plan.optimizer.name == "sgd"
        assert by_name(plan)["h.0.qkv.weight"].update == "gradient"

    @pytest.mark.parametrize(
        ("parameterization", "optimizer"),
        [
            *product(("mpu", {"depth": "none"}, {"name": "mup", "dept": 1}, MuP, 3), ["adamw"]),
            *(("mup", "adam"), ("umup", "sgd")),
        ],
    )
    def test_what_is_none_is_refused(
        self, parameterization: Any, optimizer: Any, golden: Golden
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            decoder_plan(parameterization, {}, optimizer=optimizer)
        assert caught.value.key.partition(".")[0] in ("parameterization", "optimizer")
        golden.says(caught)

    def test_a_parameterization_of_ones_own_needs_all_its_hyperparameters(self) -> None:
        class Own(MuP):
            pass

        with raises_config_error("hps['eta_emb']", None):
            decoder_plan(Own(), {"eta": 1.0})


@pytest.mark.parametrize("key", ["keep_init", "frozen"])
def test_a_pattern_that_matches_nothing(key: str) -> None:
    with raises_config_error(key, "wpee.weight"):
        decoder_plan(**{key: ["wpee.weight"]})
    with raises_config_error(key, "wpe.weight"):
        decoder_plan(**{key: "wpe.weight"})


RUNS: dict[str, Any] = {
    "base_run": {"steps": 1000, "batch_size": 8, "seq_len": 64},
    "target_run": {"steps": 4000, "batch_size": 32, "seq_len": 64},
}


def test_layers_that_no_size_is_the_depth_of_are_told(golden: Golden) -> None:
    plan = made(lambda n_embd: NanoDecoder(n_embd, n_embd // 16), {"n_embd": 32}, {"n_embd": 64})
    (need,) = (need for need in plan.needs if "no depth differs" in need)
    golden.says(need)
    named = ({"n_embd": 32, "n_blocks": 2}, {"n_embd": 64, "n_blocks": 4})
    plan = made(lambda n_embd, n_blocks: NanoDecoder(n_embd, n_blocks), *named)
    assert plan.target.depth == 4 and not any("no depth" in need for need in plan.needs)


def test_a_depth_that_changes_nothing_is_told() -> None:
    sizes = ({"n_embd": 32, "n_layer": 2}, {"n_embd": 64, "n_layer": 4})
    plan = made(lambda n_embd, n_layer: NanoDecoder(n_embd), *sizes)
    assert any("it ignores its depth, or its layers share them" in need for need in plan.needs)


class TestLaw:
    def test_its_factors_multiply_the_parameterization_s(self, golden: Golden) -> None:
        """Four times the batch and 16 times the tokens: by hand."""
        without, plan = by_name(decoder_plan()), decoder_plan(law="joint", **RUNS)
        eta, eps = 4**0.5 * 16**-0.3, (4 / 16) ** -0.5
        for name, planned in by_name(plan).items():
            assert planned.target.lr == pytest.approx(eta * without[name].target.lr)
            assert planned.target.eps == pytest.approx(eps * without[name].target.eps)
            assert planned.base == without[name].base
        assert plan.betas == pytest.approx((0.9, 0.999**4))
        assert plan.law is not None
        golden.says(str(plan))
        assert from_json(TransferPlan, to_json(plan)).parameters == plan.parameters

    def test_tokens_per_parameter_and_a_coupled_decay_s_note(self, golden: Golden) -> None:
        rules: dict[str, Any] = {"parameterization": {"name": "mup", "decay": "coupled"}}
        law = {"name": "timescale", "ratio": -0.5}
        plan, plain = decoder_plan(law=law, **rules, **RUNS), decoder_plan(**rules)
        weights = {w: sum(p.numel() for p in NanoDecoder(w).parameters()) for w in (32, 128)}
        per_parameter = 16 / (weights[128] / weights[32])
        factor = 4 / 16 / per_parameter**-0.5
        for name, planned in by_name(plan).items():
            expected = factor * by_name(plain)[name].target.weight_decay
            assert planned.target.weight_decay == pytest.approx(expected)
        assert plan.law is not None
        golden.says(" ".join(plan.law.notes))

    def test_numbers_of_numpy_s(self) -> None:
        runs = {k: {n: np.int64(v) for n, v in run.items()} for k, run in RUNS.items()}
        assert decoder_plan(law="joint", **runs).law == decoder_plan(law="joint", **RUNS).law
        assert json.loads(json.dumps(to_json(decoder_plan(law="joint", **runs))))["law"]

    def test_examples_and_the_width_alone(self, golden: Golden) -> None:
        run = {"steps": 10, "batch_size": 4}
        rules: Any = {"frozen": ["wpe.weight"], "keep_init": ["scale"]}
        plan = decoder_plan(law="decay", base_run=run, target_run=run, **rules)
        assert plan.law is not None and plan.law.factors.weight_decay == pytest.approx(0.5)
        golden.says(str(plan))

    @pytest.mark.parametrize(
        "arguments",
        [
            {"base_run": RUNS["base_run"]},
            {"law": "joint"},
            {**RUNS, "law": "joint", "target_run": {"steps": 4}},
            {**RUNS, "law": "joint", "target_run": {"steps": 4, "batch_size": 2}},
            {"law": "joint", "base_run": {"steps": 4, "batch_size": 2}}
            | {"target_run": RUNS["target_run"]},
            {**RUNS, "law": "joint", "base_run": "x"},
            {**RUNS, "law": "joint", "base_run": {**RUNS["base_run"], "x": 1}},
            {**RUNS, "law": "fit"},
            {**RUNS, "law": "batch"},
        ],
    )
    def test_what_is_refused(self, arguments: dict[str, Any], golden: Golden) -> None:
        with refused(golden):
            decoder_plan(**arguments)


@pytest.mark.parametrize(
    ("base", "target"),
    [
        ({"n_embd": 32}, {"n_embd": 64, "n_layer": 2}),
        ({"n_layer": 2}, {"n_layer": 3}),
        ({"n_embd": "32"}, {"n_embd": "64"}),
        ({"n_embd": 0}, {"n_embd": 64}),
        ({"width": 32, "block": 8}, {"width": 32, "block": 16}),
    ],
)
def test_sizes_that_cannot_be(base: dict[str, Any], target: dict[str, Any], golden: Golden) -> None:
    with refused(golden):
        made(NanoDecoder, base, target)


SIZES: Any = ({"n_embd": 32, "n_layer": 2}, {"n_embd": 64, "n_layer": 2})


@pytest.mark.parametrize(
    ("argument", "key", "meant"),
    [
        ({"build": NanoDecoder(n_embd=32, n_layer=2)}, "build", "a class or function"),
        ({"build": lambda **_: 5}, "build", "it returned 5, of type int"),
        ({"hps": {"lr": 0.1}}, "hps['lr']", "eta is the learning rate here"),
        ({"hps": {"wd": 0.1}}, "hps['wd']", "the decay is the optimizer's"),
        ({"optimizer": torch.optim.AdamW}, "optimizer", "an object"),
    ],
)
def test_what_is_given_wrongly_is_told_by_its_name(
    argument: dict[str, Any], key: str, meant: str
) -> None:
    base, target = SIZES
    right = {"build": NanoDecoder, "base": base, "target": target, "hps": HPS, "inputs": TOKENS}
    with raises_config_error(key) as caught:
        sweeper.plan_for(**{**right, "parameterization": "mup", **argument})
    assert meant in caught.value.allowed


def test_no_weight_decays_that_nobody_asked_to() -> None:
    plan = made(NanoDecoder, *SIZES)
    assert {parameter.target.weight_decay for parameter in plan.parameters} == {0.0}
    model = NanoDecoder(**SIZES[1])
    assert {group["weight_decay"] for group in plan.param_groups(model)} == {0.0}
    # Adam's decay goes through the moments, which does nothing where there is none.
    plan.check(torch.optim.Adam(plan.param_groups(model)), model)


def test_a_study_s_folder_stands_for_its_plan_or_lists_them(tmp_path: Path) -> None:
    plan, study = decoder_plan(), tmp_path / "runs/a"
    (study / "transfer/w128-d2").mkdir(parents=True)
    with pytest.raises(BadInput, match="is no study that has a plan"):
        TransferPlan.load(study)
    (study / "config.yaml").write_text("")
    with pytest.raises(BadInput, match="sweeper transfer --study a --to-width N"):
        TransferPlan.load(study)
    plan.save(study / "transfer/w128-d2")
    assert TransferPlan.load(study) == TransferPlan.load(str(study)) == plan
    (study / "transfer/w256-d2").mkdir()
    plan.save(study / "transfer/w256-d2")
    with pytest.raises(BadInput, match=r"has 2 plans, name one: .*w128-d2, .*w256-d2"):
        TransferPlan.load(study)


SCALE = Scale(width=8, depth=2, batch=8, steps=64, tokens=512, betas={"beta1": 0.9, "beta2": 0.99})
LAW = AppliedLaw(
    name="mine",
    arguments={},
    source="",
    fixed="nothing",
    base=SCALE,
    target=replace(SCALE, batch=32, tokens=2048),
    factors=Factors(eta=2.0, eps=0.5, weight_decay=4.0, betas={"beta2": 0.96}),
)


def planned() -> TransferPlan:
    return replace(plain_plan(), law=LAW)


def test_groups_carry_the_betas_and_the_check_asks_for_them(golden: Golden) -> None:
    model = Residual(16, 2)
    groups = planned().param_groups(model)
    assert {group["betas"] for group in groups} == {(0.9, 0.96)}
    assert all("betas" not in group for group in plain_plan().param_groups(model))
    optimizer = torch.optim.AdamW(groups)
    planned().check(optimizer)
    planned().check(optimizer, model)
    assert torch.optim.AdamW(groups, betas=(0.5, 0.5)).param_groups[0]["betas"] == (0.9, 0.96)
    for group in optimizer.param_groups:
        group["betas"] = (0.9, 0.99)
    with refused(golden):
        planned().check(optimizer)


def judged(shift: float, planned_log2: float) -> Verdict:
    base = Valley(noise=0.002, number=1).curve(BASE)
    large = Valley(optimum=shift, noise=0.002, number=2).curve(LARGE)
    large = replace(large, planned_log2=planned_log2)
    return judge_ladder("width", [base, large], 0.0, BASE, RULE, "law=mine")


@pytest.mark.parametrize(
    ("shift", "planned_log2", "answer"),
    [(-1.3, 0.0, "fails"), (-1.3, -1.3, "holds"), (0.0, 0.0, "holds"), (0.0, 1.5, "fails")],
)
def test_a_verdict_is_on_what_the_law_leaves(
    shift: float, planned_log2: float, answer: str
) -> None:
    verdict = judged(shift, planned_log2)
    larger = verdict.sizes[1]
    assert larger.answer == answer and larger.planned_log2 == planned_log2
    assert larger.shift_log2.value == pytest.approx(shift - planned_log2, abs=0.1)
    assert larger.shift_log2.low <= shift - planned_log2 <= larger.shift_log2.high
    record = to_json(verdict)
    assert record["law"] == "law=mine" and record["sizes"][1]["planned_log2"] == planned_log2
    bare = to_json(replace(verdict, law=""))
    assert "law" not in bare


def test_a_trend_over_width_is_of_what_the_law_leaves() -> None:
    def ladder(planned: float) -> list[SizeCurve]:
        return [
            replace(
                Valley(optimum=-0.4 * i, noise=0.002, number=i).curve(
                    replace(BASE, width=32 * 2**i)
                ),
                planned_log2=planned * i,
            )
            for i in range(4)
        ]

    bare, lawful = (fit_trend("width", ladder(p), 0.0, 512, NO_THEORY) for p in (0.0, -0.4))
    assert bare is not None and lawful is not None
    assert bare.slope.value == pytest.approx(-0.4, abs=0.03)
    assert lawful.slope.value == pytest.approx(bare.slope.value + 0.4, abs=1e-9)
    assert bare.warranted and not lawful.warranted
