"""Megatron-LM's flags: what its documented rules make of them, and its own code where installed."""

from __future__ import annotations

import shlex
from functools import cache
from math import sqrt
from typing import Any

import pytest

from sweeper.export.megatron import Megatron, output_multiplier
from sweeper.plan.plan import PlannedParameter, TransferPlan
from tests.export.plans import decoder, made, missing, nano_plan
from tests.golden import Golden

EMBEDDINGS = ("wte.weight", "wpe.weight", "lm_head.weight")
"""What its LanguageModule marks as embedding-like under muP: embeddings and the head."""


@cache
def planned(m: int, optimizer: Any = "adamw", decay: float = 0.0, **hps: float) -> TransferPlan:
    """muP without a rule of depth, at m times the base's width, without decay unless asked for."""
    rules = {"name": "mup", "depth": "none"}
    chosen = {"name": optimizer, "weight_decay": decay}
    return nano_plan(32 * m, 2, rules, {"eta": 2.0**-7, **hps}, chosen)


def by_name(plan: TransferPlan) -> dict[str, PlannedParameter]:
    return {parameter.name: parameter for parameter in plan.parameters}


def flags(plan: TransferPlan, **options: Any) -> dict[str, str]:
    text = made(plan, "megatron", **options)["plan_megatron.args"]
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [(shlex.split(line)[0].removeprefix("--"), shlex.split(line)[1:]) for line in lines]
    return {name: value[0] if value else "" for name, value in pairs}


@pytest.mark.parametrize("m", [1, 4])
def test_flags_are_the_plan_s_numbers(m: int) -> None:
    """Its table has hidden learning rate and eps over m, all else as flagged, logits over m."""
    plan = planned(m, alpha_emb=3.0, alpha_output=2.0, alpha_attn=0.5)
    flag, parameters = flags(plan), by_name(plan)
    hidden = parameters["h.0.qkv.weight"].target
    assert flag["mup-base-hidden-size"] == "32" and "use-mup" in flag
    assert float(flag["lr"]) / m == pytest.approx(hidden.lr)
    assert float(flag["lr"]) == parameters["wte.weight"].target.lr == 2.0**-7
    assert float(flag["adam-eps"]) / m == pytest.approx(hidden.eps)
    assert float(flag["init-method-std"]) / sqrt(m) == pytest.approx(hidden.init_std)
    assert float(flag["mup-embedding-mult"]) == 3
    assert float(flag["mup-output-mult"]) == pytest.approx(2 / m)
    scale = sqrt(float(flag["mup-base-head-dim"])) / 8 ** float(flag["mup-attn-scale-power"])
    assert scale == pytest.approx(0.5 / 8)
    assert not missing(plan, "megatron").keys() & {"hidden_lr", "output", "attention", "residual"}


def test_the_proposed_recipe_has_flags_of_its_own() -> None:
    """NVIDIA/Megatron-LM pull request 4998 has them."""
    today, proposed = (
        flags(planned(4, alpha_attn=0.5)),
        flags(planned(4, alpha_attn=0.5), recipe=True),
    )
    assert proposed["scaling-recipe"] == "mup" and proposed["scaling-base-hidden-size"] == "32"
    assert proposed["scaling-base-head-dim"] == today["mup-base-head-dim"]
    assert "use-mup" not in proposed and proposed["lr"] == today["lr"]


# What the flags cannot say ----------------------------------------------------------------------


def test_an_output_multiplier_of_1_is_silently_replaced_and_so_it_is_refused(
    golden: Golden,
) -> None:
    assert output_multiplier(1.0, 4) == 0.25 and output_multiplier(1.0, 1) == 1.0
    assert output_multiplier(0.5, 4) == 0.5
    (line,) = missing(planned(4, alpha_output=4.0), "megatron")["output"]
    golden.says(line)
    assert "output" not in missing(planned(4, alpha_output=2.0), "megatron")
    assert "output" not in missing(planned(1, alpha_output=1.0), "megatron")


def test_independent_decay_is_refused(golden: Golden) -> None:
    lines = missing(planned(4, decay=2.0**-13), "megatron")["weight_decay"]
    golden.says("\n".join(lines))
    assert "weight_decay" not in missing(planned(4), "megatron")


def test_its_sgd_is_torch_s() -> None:
    """Decay goes through the momentum there, and there is no flag for Nesterov's step."""
    lines = missing(planned(1, "sgd", decay=2.0**-13), "megatron")["weight_decay"]
    assert "sgd's decay goes through its momentum" in lines
    assert "weight_decay" not in missing(planned(1, "sgd"), "megatron")
    nesterov = nano_plan(64, 2, "mup", {"eta": 0.1}, {"name": "sgd", "nesterov": True})
    assert missing(nesterov, "megatron")["optimizer"] == ["sgd with Nesterov's momentum"]
    assert "Nesterov's momentum 0.9" in made(nesterov, "pytorch")["plan_pytorch.py"]
    assert "nesterov" in made(nesterov, "megatron")["plan_megatron.args"]


def test_eps_of_embedding_and_output_is_the_base_s(golden: Golden) -> None:
    lines = missing(planned(4), "megatron")["eps"]
    golden.says("\n".join(lines))
    assert not any(line.startswith("hidden") for line in lines)
    assert "eps" not in missing(planned(1), "megatron")
    assert "eps" not in missing(planned(4, "lion"), "megatron")


# Its own code -----------------------------------------------------------------------------------


def settings(plan: TransferPlan) -> dict[str, tuple[float, float, float]]:
    core = pytest.importorskip("megatron.core.optimizer")
    utils = pytest.importorskip("megatron.core.optimizer_param_scheduler")
    flag = flags(plan)
    model, m = decoder(plan), plan.target.width / plan.base.width
    config = core.OptimizerConfig(
        optimizer=flag["optimizer"],
        lr=float(flag["lr"]),
        weight_decay=float(flag["weight-decay"]),
        adam_eps=float(flag.get("adam-eps", 1e-8)),
    )
    overrides = {
        **core.get_standard_config_overrides(config),
        **core.get_mup_config_overrides(config, m, flag["optimizer"]),
    }
    settings = {}
    for name, parameter in model.named_parameters():
        parameter.is_embedding_parameter = name in EMBEDDINGS  # type: ignore[attr-defined]
        rules = [rule for key, rule in overrides.items() if key.matches(parameter, name)]
        merged = utils.combine_param_group_overrides(rules)
        lr = merged.get("max_lr", config.lr)
        decay = lr * config.weight_decay * merged.get("wd_mult", 1.0)
        settings[name] = (lr, merged.get("eps", config.adam_eps), decay)
    return settings


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion"])
@pytest.mark.parametrize("m", [*(pytest.param(m, marks=pytest.mark.long) for m in (1, 8)), 4])
def test_its_own_groups_have_the_numbers_of_the_rules(m: int, optimizer: str) -> None:
    plan = planned(m, optimizer, decay=2.0**-13, eta_emb=2.0, alpha_output=3.0)
    exporter = Megatron()
    for name, (lr, eps, decay) in settings(plan).items():
        expected = exporter.setting(plan, by_name(plan)[name])
        assert (lr, decay) == pytest.approx((expected.lr, expected.weight_decay)), name
        if optimizer == "adamw":
            assert eps == pytest.approx(expected.eps), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("m", [1, 4])
def test_its_own_configuration_has_the_factors_of_the_rules(m: int) -> None:
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    plan = planned(m, alpha_attn=0.5, alpha_emb=3.0, alpha_output=float(m))
    flag, exporter = flags(plan), Megatron()
    theirs = config.TransformerConfig(
        num_layers=2,
        hidden_size=32 * m,
        num_attention_heads=4 * m,
        use_mup=True,
        mup_base_hidden_size=int(flag["mup-base-hidden-size"]),
        mup_embedding_mult=float(flag["mup-embedding-mult"]),
        mup_output_mult=float(flag["mup-output-mult"]),
        mup_base_head_dim=float(flag["mup-base-head-dim"]),
        mup_attn_scale_power=float(flag["mup-attn-scale-power"]),
        init_method_std=float(flag["init-method-std"]),
        embedding_init_method_std=float(flag["embedding-init-method-std"]),
    )
    by_kind = {(f.kind, f.factor): exporter.applied(plan, f) for f in plan.factors or ()}
    parameters = by_name(plan)
    assert theirs.softmax_scale == pytest.approx(by_kind["attention", "logit"])
    head = exporter.setting(plan, parameters["lm_head.weight"])
    assert theirs.mup_output_mult == pytest.approx(head.forward)
    stds = {
        "h.0.qkv.weight": theirs.init_method,
        "h.0.out.weight": theirs.output_layer_init_method,
        "h.0.down.weight": theirs.output_layer_init_method,
        "wte.weight": theirs.embedding_init_method,
        "lm_head.weight": theirs.embedding_init_method,
    }
    for name, method in stds.items():
        expected = exporter.setting(plan, parameters[name]).init_std
        assert method.keywords["std"] == pytest.approx(expected), name
