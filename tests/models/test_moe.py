"""Mixtures of experts: routing by hand, roles, the rules of granularity, and batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sweeper.engine.architecture import architecture
from sweeper.engine.prepare import prepare
from sweeper.models.moe import Experts, Routing
from sweeper.trial import Trial
from tests.engine.tiny_trials import points, tree
from tests.models.own import drawn
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
