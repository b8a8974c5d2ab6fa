"""Weights that a model makes of its parameters: what it multiplies is what the plan prescribes.

Derived: a weight norm multiplies w = g v / |v|, so that w is v where g = |v|: g starts there. A
readout's w is 1/m of its start at the base. Where g has a number for each of its inputs (a
transposed convolution) the output sums over n steps of g, so that g learns at eta / m. Elsewhere
y moves by a share of itself, that by which g moves: g learns at eta times the growth of its start.
W / sigma(W) is the same whatever W is drawn as: no start can be prescribed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import sweeper
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.measure import is_measured
from sweeper.errors import BadInput
from sweeper.plan.plan import TransferPlan
from tests.engine.tiny_trials import corpus, tree, trial
from tests.plan.helpers import plan
from tests.specs import spec_of
from tests.toy_models import PlainNet

Wrap = Callable[[Any], Any]


def old(module: nn.Module) -> nn.Module:
    with pytest.warns(FutureWarning):
        return torch.nn.utils.weight_norm(module)


class ByHand(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, bias=False)
        self.gain = nn.Parameter(torch.ones(sizes[1], 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.gain * F.normalize(self.weight, dim=1))


class Net(nn.Module):
    """Convolutions in, within, back and out, each wrapped."""

    def __init__(self, c: int, wrap: Wrap) -> None:
        super().__init__()
        self.inp = wrap(nn.Conv1d(1, c, 5, padding=2))
        self.mid = wrap(nn.Conv1d(c, c, 3, padding=1))
        self.back = wrap(nn.ConvTranspose1d(c, c, 3, padding=1))
        self.out = wrap(nn.ConvTranspose1d(c, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.mid(torch.relu(self.inp(x))))
        out: Tensor = self.out(torch.relu(self.back(h)))
        return out


PARTS = ("inp", "mid", "back", "out")
X = torch.zeros(2, 1, 12)


def planned(wrap: Wrap, width: int = 64, **more: Any) -> TransferPlan:
    hps = {"eta": 2.0**-7, "alpha_output": 2.0, "alpha_emb": 4.0}
    return sweeper.plan_for(
        lambda c: Net(c, wrap), {"c": 16}, {"c": width}, "mup", hps, inputs=X, **more
    )


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, old], ids=["new", "old"])
def test_a_weight_norm_multiplies_what_the_plan_prescribes(wrap: Wrap) -> None:
    plan, plain = planned(wrap), {s.name: s for s in planned(lambda module: module).absorbed()}
    model = plan.init_(Net(64, wrap), seed=1)
    model(X)  # the old one makes its weight when it is called
    settings = {s.name: s for s in plan.absorbed()}
    for part in PARTS:
        weight, expected = getattr(model, part).weight, plain[f"{part}.weight"]
        assert float(weight.detach().std()) == pytest.approx(expected.init_std, rel=0.2)
        names = [n for n in settings if n.startswith(f"{part}.") and "bias" not in n]
        gain, direction = sorted(names, key=lambda name: settings[name].init == "normal")
        assert settings[direction].lr == expected.lr
        readout = part == "out"
        assert settings[gain].lr == pytest.approx(expected.lr if readout else 2.0**-7)
    roles = {p.name: p.role for p in plan.parameters if p.init == "norm"}
    assert sorted(roles.values()) == ["readout", "vector", "vector", "vector"]


class Normed(nn.Module):
    def __init__(self, w: int, dim: int | None, tokens: bool) -> None:
        super().__init__()
        inp = nn.Embedding(11, w) if tokens else nn.Linear(6, w)
        layers = {"inp": inp, "mid": nn.Linear(w, w), "out": nn.Linear(w, 3)}
        for name, layer in layers.items():
            self.add_module(name, parametrizations.weight_norm(layer, dim=dim))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.mid(torch.relu(self.inp(x)))))
        return out


# Entries start at s: 1 of words, 6^-1/2 of numbers, n^-1/2 within. Under muP a head's are n^-1/2 at
# the base and fall as 1/m; under standard rules they are n^-1/2. g is s k^1/2 of k entries normed.
# Its rate is eta times the growth of that:
#            dim 0, a row                dim 1, a column             None, all
#   words     s n^1/2: m^1/2              s 11^1/2: 1                 s (11 n)^1/2: m^1/2
#   numbers  s 6^1/2: 1                  s n^1/2: m^1/2              s (6 n)^1/2: m^1/2
#   within   n^-1/2 n^1/2: 1             1                           n^-1/2 n: m^1/2
#   head     m^-1 n^1/2: m^-1/2, or      a number an input: 1/m      m^-1 (3 n)^1/2: m^-1/2, or 1
#            n^-1/2 n^1/2: 1
GAIN_POWERS = {
    ("mup", False, 0): (0, 0, -0.5),
    ("mup", False, 1): (0.5, 0, -1),
    ("mup", False, None): (0.5, 0.5, -0.5),
    ("mup", True, 0): (0.5, 0, -0.5),
    ("mup", True, 1): (0, 0, -1),
    ("mup", True, None): (0.5, 0.5, -0.5),
    ("standard, full", False, 0): (0, 0, 0),
    ("standard, full", False, 1): (0.5, 0, -1),
    ("standard, full", False, None): (0.5, 0.5, 0),
    # One rate for all, whatever is normed.
    ("standard", False, None): (0, 0, 0),
    # Absolute: u-muP's entries multiply as n^-1/2, its words' as 1, a head's as 1/n.
    ("umup", True, None): (0.5, 0.5, -0.5),
    ("spectral", False, None): (0.5, 0.5, 0),
}


def normed(rules: str, tokens: bool, dim: int | None, width: int, **more: Any) -> TransferPlan:
    name, _, alignment = rules.partition(", ")
    x = torch.zeros(4, dtype=torch.long) if tokens else torch.zeros(4, 6)
    build, rule = lambda w: Normed(w, dim, tokens), {"name": name}
    rule |= {"alignment": alignment} if alignment else {}
    hps = {"eta": 2.0**-7}
    return sweeper.plan_for(build, {"w": 16}, {"w": width}, rule, hps, inputs=x, **more)


@pytest.mark.parametrize("case", GAIN_POWERS, ids=str)
def test_a_gain_moves_by_a_share_of_its_start(case: tuple[str, bool, int | None]) -> None:
    at_base, plan = (
        {s.name: s.lr for s in normed(*case, width).absorbed() if s.init == "norm"}
        for width in (16, 256)
    )
    powers = [math.log(plan[name] / at_base[name], 16) for name in plan]
    assert powers == pytest.approx(GAIN_POWERS[case])
    if case[0] not in ("umup", "spectral"):
        first = [at_base[name] for name in [*plan][:2]]
        assert first == pytest.approx([2.0**-7] * 2)  # rules of growth change nothing at the base


def test_absolute_rules_and_gradients_have_the_size_of_a_gain() -> None:
    """[64, 64] entries of n^-1/2 have the norm 8: eta 8, and 8^2 / 4^2 of the base's for SGD."""
    name = "mid.parametrizations.weight.original0"
    rates = {s.name: s.lr for s in normed("spectral", False, None, 64).absorbed()}
    assert rates[name] == pytest.approx(8 * 2.0**-7)
    steps = {s.name: s.lr for s in normed("mup", False, None, 64, optimizer="sgd").absorbed()}
    assert steps[name] == pytest.approx(4 * 2.0**-7)


class Layers(nn.Module):
    def __init__(self, w: int, layer: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, w), nn.Linear(w, 3)
        self.mid = layer(w)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.mid(self.inp(x))))
        return out


class Made(nn.Linear):
    def __init__(self, w: int, make: Wrap) -> None:
        super().__init__(w, w, bias=False)
        self.make = make

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.make(self.weight))


def layers(layer: Callable[[int], nn.Module], **more: Any) -> TransferPlan:
    build, x, hps = lambda w: Layers(w, layer), torch.zeros(2, 6), {"eta": 2.0**-7}
    return sweeper.plan_for(build, {"w": 16}, {"w": 64}, "mup", hps, inputs=x, **more)


REFUSED: dict[str, Callable[[int], nn.Module]] = {
    "spectral norm": lambda w: parametrizations.spectral_norm(nn.Linear(w, w)),
    "old spectral norm": lambda w: torch.nn.utils.spectral_norm(nn.Linear(w, w)),
    "standardized": lambda w: Made(w, lambda v: v / v.std(1, keepdim=True)),
    "unit rows": lambda w: Made(w, lambda v: F.normalize(v, dim=1)),
    "bent": lambda w: Made(w, torch.tanh),
}
TAKEN: dict[str, Wrap] = {
    "masked": lambda v: v * torch.tril(torch.ones_like(v)),
    "scaled": lambda v: 0.5 * v,
    "symmetric": lambda v: v + v.T,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_prescribed_is_refused_by_name(kind: str) -> None:
    with pytest.raises(BadInput, match=r"other weights than those that are drawn(.|\n)*\n  mid\."):
        layers(REFUSED[kind])
    if kind != "unit rows":
        return
    kept = {p.name: p.init for p in layers(REFUSED[kind], keep_init=["mid.*"]).parameters}
    assert {init for name, init in kept.items() if name.startswith("mid.")} == {"kept"}
    (weight,) = (name for name in kept if name.startswith("mid.") and "bias" not in name)
    roles = {p.name: p.role for p in layers(REFUSED[kind], roles={weight: "hidden"}).parameters}
    assert roles[weight] == "hidden"


@pytest.mark.parametrize("kind", TAKEN)
def test_linear_functions_of_a_weight_are_taken(kind: str) -> None:
    roles = {p.name: p.role for p in layers(lambda w: Made(w, TAKEN[kind])).parameters}
    assert roles["mid.weight"] == "hidden"


def test_a_norm_by_hand_and_one_that_is_kept() -> None:
    plan = layers(lambda w: ByHand(w, w))
    model = plan.init_(Layers(64, lambda w: ByHand(w, w)))
    norms = model.mid.weight.detach().norm(dim=1, keepdim=True)
    assert torch.allclose(model.mid.gain.detach(), norms)
    kept = layers(lambda w: ByHand(w, w), keep_init=["mid.weight"])
    assert {p.name: p.init for p in kept.parameters}["mid.gain"] == "kept"


def test_a_parametrization_s_modules_have_no_rows() -> None:
    assert is_measured("out.parametrizations.weight.original1", ["out"])
    assert not is_measured("out.weight.original1", ["out"])


class Tokens(PlainNet):
    """A model of a configuration: two weight norms between a table and a readout."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__(width, depth, classes, "linear", residual=False)
        parametrizations.weight_norm(self.layers[0])
        parametrizations.weight_norm(self.head)


def test_a_trial_starts_as_its_plan_says(tmp_path: Path) -> None:
    made = tree("mup")
    size = {"width": 32, "depth": 1}
    made["model"] = {"_target_": "tests.plan.test_reparameterized.Tokens", **size}
    made["base"] = {"width": 8, "depth": 1}
    made_trial = replace(trial("mup"), spec=spec_of(made))
    run = BatchedRun(BatchedTrials(trials=(made_trial,), corpus=corpus(tmp_path)))
    model = Tokens(**size, classes=made["data"]["classes"]).double()
    start = plan("mup", made).init_(model, seed=made_trial.seed).state_dict()
    assert "head.parametrizations.weight.original0" in run.params
    for name, value in run.params.items():
        assert torch.allclose(value[0].detach(), start[name])
    before = run.params["head.parametrizations.weight.original0"].detach().clone()
    run.step()
    assert not torch.equal(before, run.params["head.parametrizations.weight.original0"])
