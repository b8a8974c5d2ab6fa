"""Matrices of one growing side within a network's body: adapters, bottlenecks, depthwise kernels.

Derived for width n on base n0, m = n / n0, under muP and Adam. Down, h = A x: n terms of x of order
1, outputs of a fixed number that must be of order 1, as what follows works on them: A ~ n^-1/2, a
factor of m^-1/2 (a readout's 1/m would let h vanish). A step of eta in every entry, aligned with x,
moves h by n eta: eta / m. Up, y = B h: a fixed number of terms, so that neither start nor rate has
a power of n: eta. Their ratio, B's rate over A's, is m, as LoRA+ has it (Hayou et al.,
arXiv:2402.12354: eta_A = n^-1, eta_B = 1). Under SGD the gradient of y is n^-1; that of h sums over
n of them and is 1: A's rate goes as 1/m, B's as m. Neither is the input or the logits:
alpha_emb, eta_emb and alpha_output are not theirs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sweeper
from sweeper.plan.plan import TransferPlan

RANK = 4


class Adapter(nn.Module):
    """A hidden layer that is frozen, and two matrices beside it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.first, self.base = nn.Linear(6, d), nn.Linear(d, d).requires_grad_(False)
        self.a, self.b = nn.Linear(d, RANK, bias=False), nn.Linear(RANK, d, bias=False)
        self.head = nn.Linear(d, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        out: Tensor = self.head(torch.relu(self.base(h) + self.b(self.a(h))))
        return out


class Shared(Adapter):
    """A step size of few numbers that multiplies what grows, as Mamba's B and C."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        out: Tensor = self.head((h.unsqueeze(-1) * F.softplus(self.a(h)).unsqueeze(-2)).sum(-1))
        return out


class Attention(Adapter):
    """Attention all of which is of a fixed size: `a` is the query, `b` the way out.

    Between keys, values and what grows there are further weights of a fixed size.
    """

    def __init__(self, d: int) -> None:
        super().__init__(d)
        self.k, self.v = nn.Linear(d, RANK), nn.Linear(d, RANK)
        self.mix = nn.GRU(RANK, RANK, num_layers=2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        q, k, v = self.a(h), *(self.mix(of(h))[0] for of in (self.k, self.v))
        out: Tensor = self.head(h + self.b(torch.softmax(q @ k.mT, -1) @ v))
        return out


class Router(Adapter):
    """Shares of what grows: equal ones to begin with."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        shares = torch.softmax(self.a(h), -1)
        out: Tensor = self.head((h.unsqueeze(-1) * shares.unsqueeze(-2)).sum(-1))
        return out


class End(Adapter):
    """Nothing behind the last matrix that grows does."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(torch.relu(self.first(x)))) @ torch.ones(RANK, 3)


class Recurrent(Adapter):
    """A state of a fixed size enters what grows at the next step, and an end that is larger."""

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), RANK)
        for now in x.unbind(1):
            state = torch.sigmoid(self.a(torch.relu(self.first(now) + self.b(state))))
        return state @ torch.ones(RANK, 999)


class Conditioned(Adapter):
    """An input of its own, into the middle: `b` is fed by nothing that grows."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.base(self.first(x)) + self.b(x[..., :RANK])))
        return out


CASES: list[tuple[type[Adapter], dict[str, str]]] = [
    (Adapter, {"a.weight": "down", "b.weight": "up", "first.weight": "embedding"}),
    (Shared, {"a.weight": "down"}),
    (Attention, dict.fromkeys(("a.weight", "k.weight", "v.weight"), "down") | {"b.weight": "up"}),
    (Router, {"a.weight": "readout"}),
    (End, {"a.weight": "readout"}),
    (Recurrent, {"a.weight": "down", "b.weight": "up", "first.weight": "embedding"}),
    (Conditioned, {"b.weight": "embedding"}),
]


@pytest.mark.parametrize(("kind", "expected"), CASES, ids=[kind.__name__ for kind, _ in CASES])
def test_roles(kind: type[Adapter], expected: dict[str, str]) -> None:
    x = torch.randn(2, 7, 6)
    specs = sweeper.classify(kind, {"d": 16}, {"d": 32}, x)
    assert {name: str(specs[name].role) for name in expected} == expected
    head = specs["head.weight"].role
    assert head == ("fixed" if kind in (End, Recurrent) else "readout")


def planned(width: int, **more: Any) -> TransferPlan:
    hps = {"eta": 2.0**-6, "alpha_output": 8.0, "alpha_emb": 4.0, "eta_emb": 2.0}
    rules: dict[str, Any] = {"parameterization": "mup", "hps": hps, **more}
    x = torch.randn(2, 6)
    return sweeper.plan_for(Adapter, {"d": 64}, {"d": width}, inputs=x, roles=None, **rules)


@pytest.mark.parametrize(
    ("parameterization", "optimizer", "down", "up"),
    [("mup", "adamw", -1, 0), ({"name": "mup", "convention": "everett"}, "sgd", -1, 1)],
)
def test_numbers(parameterization: Any, optimizer: str, down: int, up: int) -> None:
    small, large = (
        {s.name: s for s in planned(
            width, parameterization=parameterization, optimizer=optimizer
        ).absorbed()}
        for width in (64, 1024)
    )  # fmt: skip
    assert [p.name for p in planned(64).parameters if p.frozen] == ["base.weight", "base.bias"]
    m = 16.0
    for name, rate, std in (("a.weight", down, -0.5), ("b.weight", up, 0.0)):
        assert small[name].lr == pytest.approx(2.0**-6)
        assert large[name].lr == pytest.approx(2.0**-6 * m**rate)
        assert large[name].init_std == pytest.approx(small[name].init_std * m**std)
    assert small["a.weight"].init_std == pytest.approx(1 / 8)
    assert small["b.weight"].init_std == pytest.approx(1 / 2)


def test_other_rules() -> None:
    """u-muP has a hidden weight's rules for both, spectral ones go by fans, gammas by the body."""
    unit = {p.name: p.target for p in planned(256, parameterization="umup", hps={}).parameters}
    for name, fan_in in (("a.weight", 256), ("b.weight", RANK)):
        assert unit[name].multiplier == pytest.approx(fan_in**-0.5)
        assert unit[name].lr == pytest.approx(fan_in**-0.5 * unit["head.weight"].lr)
    hps = {"eta": 1.0, "gamma_hidden": 3.0, "gamma_readout": 5.0, "gamma_embedding": 7.0}
    for rule in ("spectral", "spectral_mup"):
        rates = {s.name: s.lr for s in planned(256, parameterization=rule, hps=hps).absorbed()}
        assert rates["a.weight"] == pytest.approx(3 / 256)
        assert rates["b.weight"] == pytest.approx(3 / RANK)
