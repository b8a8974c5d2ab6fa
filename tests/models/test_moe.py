"""Mixtures of experts: routing by hand, roles, the rules of granularity, and batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sweeper.check.judge import CheckRule, check_coordinates
from sweeper.engine.architecture import architecture
from sweeper.engine.measure import ModuleMeasurement, measure_modules
from sweeper.engine.prepare import prepare
from sweeper.models.moe import Experts, Routing
from sweeper.stats.ladder import ModelSize
from sweeper.trial import Trial
from tests.engine.tiny_trials import ETA, points, tokens, tree
from tests.models.own import drawn, made
from tests.specs import spec_of

ROUTER = "layers.0.experts.router.weight"
UP, DOWN = "layers.0.experts.up_gate.weight", "layers.0.experts.down.weight"


def moe_tree(
    parameterization: str, base: int = 16, train: dict[str, Any] | None = None, **model: Any
) -> Any:
    config = tree(parameterization, **(train or {}))
    sizes = {"width": 32, "depth": 1, "head_size": 8, "experts": 4, "top_k": 2}
    roles = ["*.router.weight=hidden"]
    target = "sweeper.models.moe.MoE"
    config["model"] = {"_target_": target, **sizes, "roles": roles, **model}
    config["base"] = {"width": base, "depth": 1}
    return config


def test_experts_are_feed_forward_layers_of_the_tokens_that_chose_them() -> None:
    """Written out, token by token and expert by expert."""
    model = drawn("moe", granularity=2, shared=1)
    layer: Experts = model.layers[0].experts
    layer.routing.bias.copy_(torch.linspace(-0.2, 0.2, 8))
    x = torch.randn(2, 3, 16)
    out = layer.eval()(x)
    assert layer.shared is not None
    for token, mixed, shared in zip(
        x.view(6, 16), out.view(6, 16), layer.shared(x).view(6, 16), strict=True
    ):
        gates = torch.sigmoid(layer.router.weight @ token)
        expected = shared.clone()
        for e in (gates + layer.routing.bias).argsort(descending=True)[:4]:
            up, gate = (layer.up_gate.weight[e] @ token).chunk(2)
            expected += gates[e] * (layer.down.weight[e] @ (up * F.silu(gate))) / 4
        torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-5)


def test_biases_move_by_what_a_load_lacks_in_training_alone() -> None:
    """Two of four experts, and all tokens want the first two: loads 1, 1, 0, 0."""
    routing = Routing(4, 2, 0.1)
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).expand(5, 4)
    gates, chosen = routing(logits)
    assert chosen.tolist() == [[0, 1]] * 5
    torch.testing.assert_close(gates, torch.sigmoid(logits[:, :2]))
    torch.testing.assert_close(routing.bias, torch.tensor([-0.05, -0.05, 0.05, 0.05]))
    routing.eval()(logits)
    torch.testing.assert_close(routing.bias, torch.tensor([-0.05, -0.05, 0.05, 0.05]))


def test_loads_even_out() -> None:
    torch.manual_seed(0)
    routing = Routing(8, 2, 0.02)
    logits = torch.randn(256, 8) + torch.linspace(-2, 2, 8)

    def uneven() -> float:
        taken = routing(logits)[1].flatten().bincount(minlength=8)
        return float((taken / 256 - 0.25).abs().max())

    first = uneven()
    for _ in range(200):
        last = uneven()
    assert first > 0.4 and last < 0.08


def test_roles_and_fans() -> None:
    specs = {s.name: s for s in architecture(spec_of(moe_tree("mup")), False).specs}
    assert {specs[name].role for name in (ROUTER, UP, DOWN)} == {"hidden"}
    assert specs["head.weight"].role == "readout"
    assert (specs[ROUTER].fan_in, specs[UP].fan_in, specs[DOWN].fan_in) == (32, 32, 64)
    assert (specs[UP].base_fan_in, specs[DOWN].base_fan_in) == (16, 32)
    assert all(specs[name].inner_growth == 1 for name in specs)


@pytest.mark.parametrize(
    "parameterization", ["mup", "mean_field", "umup", "spectral", "effective_theory"]
)
def test_the_rules_of_granularity(parameterization: str) -> None:
    """arXiv:2601.20205, Table 1: of the second matrices init 1/alpha_ffn, rate 1/alpha_ffn.

    Cut in four, alpha_ffn is a quarter. What a parameterization writes as a multiplier counts to
    both.
    """
    numbers = []
    for granularity in (1, 4):
        prepared = prepare(spec_of(moe_tree(parameterization, granularity=granularity)))
        hps = prepared.complete(
            Trial(spec=prepared.spec, log2_hps=points(parameterization)[0], seed=0).hps
        )
        numbers.append({s.name: prepared.prescription(s, hps) for s in prepared.specs})
    for name, factor in {DOWN: 4, UP: 1, ROUTER: 1}.items():
        whole, cut = (by_name[name] for by_name in numbers)
        more = cut.multiplier / whole.multiplier
        assert more * cut.lr / whole.lr == pytest.approx(factor)
        assert more * cut.init_std / whole.init_std == pytest.approx(factor)


AXES = {"granularity": (1, 4), "experts": (4, 8), "top_k": (1, 2)}


def measured(axis: str) -> dict[ModelSize, list[list[ModuleMeasurement]]]:
    """Two steps at every size, of experts 256 wide or what is left of them."""
    settings = {"steps": 2, "batch_size": 6, "seq_len": 16, "warmup": 0.0, "final_lr": 1.0}
    by_size, data = {}, tokens()
    for value in AXES[axis]:
        model = {"ffn_ratio": 8.0, axis: value}
        spec = spec_of(moe_tree("mup", base=32, train=settings, **model))
        hps = points("mup")[0] | {"eta": ETA["mup"] - 2}
        runs = [measure_modules(Trial(spec=spec, log2_hps=hps, seed=s), data) for s in range(3)]
        by_size[ModelSize(width=32, depth=1, **{axis: value})] = runs
    return by_size


RULE = CheckRule(steps=2, seeds=3, threshold=0.35)


@pytest.mark.parametrize(
    "axis", [pytest.param(a, marks=() if a == "experts" else pytest.mark.long) for a in AXES]
)
def test_what_experts_move_by_does_not_depend_on_their_number_or_size(
    axis: str,
) -> None:
    check = check_coordinates(axis, measured(axis), RULE)
    direct = {m.name: s.slope.value for m in check.modules for s in m.slopes if s.step == 2
              and s.quantity == "direct"}  # fmt: skip
    assert len(direct) == 7 and max(map(abs, direct.values())) < 0.35, direct


def test_all_experts_at_once_are_one_feed_forward_layer() -> None:
    """top_k = experts, all gates alike: cutting experts changes nothing but the sum's order."""
    torch.manual_seed(0)
    whole, cut = (made("moe", experts=1, top_k=1, granularity=g).layers[0].experts for g in (1, 2))
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        torch.nn.init.zeros_(whole.router.weight)
        torch.nn.init.zeros_(cut.router.weight)
        ups, gates = whole.up_gate.weight[0].chunk(2)
        pairs = zip(ups.chunk(2), gates.chunk(2), strict=True)
        cut.up_gate.weight.copy_(torch.stack([torch.cat(pair) for pair in pairs]))
        cut.down.weight.copy_(2 * torch.stack(whole.down.weight[0].chunk(2, 1)))
    x = torch.randn(1, 4, 16)
    torch.testing.assert_close(cut(x), whole(x))
