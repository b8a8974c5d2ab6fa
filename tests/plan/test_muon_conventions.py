"""Plans for Muon: its matrices stand apart from what AdamW trains, in anybody's implementation.

Derived: a plan's rate is that of a step with singular values of 1. An implementation that
multiplies its step by f(rows, columns) takes that step at a rate of lr / f. Formulas are those of
the sources: torch's `_adjust_lr`, KellerJordan/Muon `muon_update`, Moonlight's
`adjust_lr_for_muon`, microsoft/dion `adjust_lr_spectral_norm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import sweeper
from sweeper.errors import BadInput, ConfigError
from sweeper.export.groups import Pytorch, Torchtitan
from sweeper.export.lacks import lacking
from sweeper.export.transformers import Hf
from sweeper.plan.muon_conventions import FLOORED, ROOT_MAX, documented
from sweeper.plan.plan import TransferPlan


class Net(nn.Module):
    """Matrices of three shapes for Muon, and all else for AdamW, a convolution among it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d, bias=False)
        self.mix = nn.Conv1d(d, d, 3, padding=1, groups=d)
        self.head = nn.Linear(d, 11, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h + self.mix(h.mT).mT
        out: Tensor = self.head(h + self.down(torch.relu(self.up(h))))
        return out


@cache
def planned(parameterization: str = "mup", **optimizer: Any) -> TransferPlan:
    rules: Any = {"optimizer": {"name": "muon", "weight_decay": 0.01, **optimizer}}
    rules["inputs"] = torch.zeros(2, 5, dtype=torch.long)
    return sweeper.plan_for(Net, {"d": 8}, {"d": 16}, parameterization, {"eta": 2.0**-7}, **rules)


def floored(rows: int, columns: int) -> float:
    return max(1.0, rows / columns) ** 0.5


SCALES: dict[str, Callable[[int, int], float]] = {
    "torch": floored,
    "keller_jordan": floored,
    "moonlight": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "dion": lambda rows, columns: math.sqrt(rows / columns),
    "plain": lambda rows, columns: 1.0,
}


class Orthogonal(torch.optim.Optimizer):
    """Muon by an exact decomposition, in the words of the implementation `kind`."""

    def __init__(self, groups: Any, kind: str) -> None:
        super().__init__(groups, {"lr": 1.0, "weight_decay": 0.0})
        self.scale = SCALES[kind]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                u, _, v = torch.linalg.svd(p.grad, full_matrices=False)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(u @ v, alpha=-group["lr"] * self.scale(*p.shape))


MATRICES = ["down.weight", "up.weight"]


def split(plan: TransferPlan, model: nn.Module, muon: str) -> tuple[list[Any], list[Any]]:
    """The groups for Muon and for AdamW, told by what the implementation asks of them."""
    groups = plan.param_groups(model, muon=muon)
    asked = {"keller_jordan": ("use_muon", True), "dion": ("algorithm", "muon")}
    key, value = asked.get(muon, ("update", "orthogonal"))
    return [g for g in groups if g[key] == value], [g for g in groups if g[key] != value]


@pytest.mark.parametrize(
    ("muon", "parameterization"), [("torch", "spectral_mup"), *((m, "mup") for m in [*SCALES][1:])]
)
def test_every_implementation_takes_the_plan_s_step(muon: str, parameterization: str) -> None:
    """A matrix moves by singular values of the plan's rate, and decays by the plan's share."""
    plan, model = planned(parameterization), Net(16).double()
    matrices, others = split(plan, model, muon)
    optimizer = Orthogonal(matrices, muon)
    documented_groups = muon in ("keller_jordan", "dion")
    does_not = pytest.warns(UserWarning, match="plan.check does not know Orthogonal")
    with nullcontext() if documented_groups else does_not:
        plan.check([optimizer, torch.optim.AdamW(others)], model)
    names = {id(p): name for name, p in model.named_parameters()}
    assert sorted(names[id(p)] for group in matrices for p in group["params"]) == MATRICES
    rates = {setting.name: setting.lr for setting in plan.absorbed()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    for name in MATRICES:
        moved = before[name] * (1 - 0.01) - model.get_parameter(name).detach()
        values = torch.linalg.svdvals(moved)
        assert torch.allclose(values, torch.full_like(values, rates[name]), rtol=1e-9)


def test_torch_s_own_muon_and_its_options() -> None:
    plan, model = planned(), Net(16)
    for muon, option in (("torch", None), ("moonlight", "match_rms_adamw")):
        matrices, others = split(plan, model, muon)
        optimizers = [torch.optim.Muon(matrices), torch.optim.AdamW(others)]
        plan.check(optimizers, model)
        plan.check(optimizers)
        # An option for all groups does not reach those that say their own.
        plan.check([torch.optim.Muon(matrices, adjust_lr_fn=option), optimizers[1]], model)
        schedules = [LambdaLR(each, lambda step: 0.5) for each in optimizers]
        assert schedules
        plan.check(optimizers, model)


def test_another_implementation_than_the_groups_are_for() -> None:
    plan, model = planned(), Net(16)
    matrices, others = split(plan, model, "dion")
    for option in ("original", "match_rms_adamw"):
        groups = [{**group, "adjust_lr_fn": option} for group in matrices]
        with pytest.raises(BadInput, match="not the plan's times one factor"):
            plan.check([torch.optim.Muon(groups), torch.optim.AdamW(others)], model)


def test_one_optimizer_for_all() -> None:
    plan, model = planned(), Net(16)
    everything = torch.optim.AdamW(plan.param_groups(model))
    for argument in (None, model):
        with pytest.raises(BadInput, match=r"AdamW's updates are entry by entry, the plan's orth"):
            plan.check(everything, argument)
    matrices, others = split(plan, model, "torch")
    with pytest.raises(BadInput, match=r"in no group: .*plan\.check\(\[muon, adamw\], model\)"):
        plan.check(torch.optim.Muon(matrices), model)
    # A matrix of AdamW's given to Muon: the head of the mamba in which all was one group.
    taken = next(g for g in others if model.head.weight in set(g["params"]))
    muon = torch.optim.Muon([*matrices, {**taken, "params": [model.head.weight]}])
    taken["params"] = [p for p in taken["params"] if p is not model.head.weight]
    with pytest.raises(BadInput, match="Muon's updates are orthogonal matrices, the plan's entry"):
        plan.check([muon, torch.optim.AdamW(others)], model)


class Foreign(torch.optim.Optimizer):
    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {})


@pytest.mark.parametrize(
    ("kind", "options", "step"),
    [
        (torch.optim.AdamW, {}, (False, "1")),
        (torch.optim.Adafactor, {}, (False, "1")),
        (torch.optim.Muon, {}, (True, FLOORED)),
        (torch.optim.Muon, {"adjust_lr_fn": "match_rms_adamw"}, (True, ROOT_MAX)),
        (Foreign, {"use_muon": True}, (True, FLOORED)),
        (Foreign, {"use_muon": False}, (False, "1")),
        (Foreign, {"algorithm": "muon", "adjust_lr": "rms_norm"}, (True, ROOT_MAX)),
        (Foreign, {"algorithm": "adamw", "adjust_lr": None}, (False, "1")),
        (Foreign, {}, None),
    ],
)
def test_what_a_step_is_is_said_by_class_and_options(
    kind: Any, options: dict[str, Any], step: tuple[bool, str] | None
) -> None:
    optimizer = kind([{"params": [Net(8).up.weight], **options}])
    convention = documented(optimizer, optimizer.param_groups[0])
    assert (convention and (convention.orthogonal, convention.factor)) == step


def test_an_unknown_implementation() -> None:
    with pytest.raises(
        ConfigError, match="one of torch, keller_jordan, moonlight, dion, normuon, plain"
    ):
        planned().param_groups(Net(16), muon="muon")


def test_the_text_names_the_update() -> None:
    text = str(planned())
    head = next(line for line in text.splitlines() if line.startswith("parameters"))
    assert head.split()[:3] == ["parameters", "role", "update"]
    row = next(line for line in text.splitlines() if "down.weight" in line)
    assert row.split()[-6:-4] == ["hidden", "orthogonal"]
    sizes, tokens = ({"d": 8}, {"d": 16}), torch.zeros(2, 5, dtype=torch.long)
    rules: Any = {"optimizer": "muon", "frozen": ["embed.*"]}
    frozen = sweeper.plan_for(Net, *sizes, "mup", {"eta": 0.1}, inputs=tokens, **rules)
    row = next(line for line in str(frozen).splitlines() if line.startswith("embed.weight"))
    assert row.split()[1:] == ["embedding", "-", "frozen", "-", "-", "-"]


def test_an_export_says_it() -> None:
    plan, model = planned(momentum=0.9, nesterov=False), Net(16)
    assert lacking(plan, Pytorch()) == ()
    for exporter in (Hf(family="granite"), Torchtitan()):
        assert "optimizer" in [lack.name for lack in lacking(plan, exporter)]
    space: dict[str, Any] = {}
    exec(Pytorch().files(plan, "A plan")["plan_pytorch.py"], space)
    muon, adamw = space["optimizers"](model)
    plan.check([muon, adamw], model)
    assert muon.defaults["momentum"] == 0.9 and not muon.defaults["nesterov"]
    assert adamw.defaults["betas"] == (0.9, 0.999)


# Stacks. Derived: an orthogonal step of rate lr moves the output of its own matrix [d_out, d_in] by
# lr sqrt(d_in / d_out) in RMS, for inputs of RMS 1: eta needs lr = eta sqrt(d_out / d_in), however
# many matrices are stacked. A count of heads that grows with the width is part of the matrix.


@cache
def by_muon(build: Callable[[int], nn.Module], *shape: int) -> TransferPlan:
    rules: Any = {"optimizer": "muon", "inputs": torch.randn(shape)}
    return sweeper.plan_for(build, {"d": 16}, {"d": 64}, "spectral_mup", {"eta": 1.0}, **rules)


class Stacked(nn.Module):
    """Experts in three ways of writing, and heads of a growing number in one parameter."""

    def __init__(self, d: int, experts: int) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, d), nn.Linear(d, 5)
        self.shared = nn.Parameter(torch.randn(experts, d, 4 * d))
        self.own = nn.Parameter(torch.randn(experts, 4 * d, d))
        self.turned = nn.Parameter(torch.randn(experts, d, d))
        self.heads = nn.Parameter(torch.randn(d // 4, 4, d))
        self.last = nn.Parameter(torch.randn(d, experts, d))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inp(x))
        e = torch.einsum("nd,edf->enf", h, self.shared)
        e = torch.einsum("enf,efd->end", torch.relu(e), self.own)
        e = torch.relu(e) @ self.turned.mT
        h = torch.einsum("nd,hkd->nhk", e.mean(0), self.heads).flatten(1)
        out: Tensor = self.out(torch.einsum("nd,def->nef", h, self.last).mean(1))
        return out


def test_a_stack_is_so_many_matrices() -> None:
    experts = 6
    plan = by_muon(lambda d: Stacked(d, experts), 3, 6)
    rates = {p.name: (str(p.update), p.target.lr) for p in plan.parameters}
    assert rates["shared"] == ("orthogonal", pytest.approx(2.0))
    assert rates["own"] == ("orthogonal", pytest.approx(0.5))
    assert rates["turned"] == rates["heads"] == ("orthogonal", pytest.approx(1.0))
    # Matrices between whose dimensions others lie are nobody's: AdamW trains them, and it is said.
    assert rates["last"][0] == "sign"
    specs = sweeper.classify(lambda d: Stacked(d, experts), {"d": 16}, {"d": 64}, torch.randn(3, 6))
    assert {n: specs[n].matrix for n in ("shared", "own", "turned", "heads", "last")} == {
        "shared": (experts, 64),
        "own": (experts, 256),
        "turned": (experts, 64),
        "heads": (1, 64),
        "last": (0, 0),
    }
    # Keller Jordan's takes the last two dimensions of three: two sides of a head are none of it.
    for name in ("keller_jordan", "dion"):
        with pytest.raises(ConfigError, match=r"heads \[16, 4, 64\]"):
            plan.param_groups(Stacked(64, experts), muon=name)
    assert plan.param_groups(Stacked(64, experts), muon="plain")
    # torch's Muon takes two dimensions: an export for it is not whole, and says so.
    (lack,) = lacking(plan, Pytorch())
    assert lack.name == "optimizer" and "muon of 3 dimensions" in str(lack)


class Layered(nn.Module):
    """Layers of experts in one parameter, and a bias for each expert, drawn by the author."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, d), nn.Linear(4 * d, 5)
        self.up = nn.Parameter(torch.randn(2, 3, d, 4 * d))
        self.up_bias = nn.Parameter(0.02 * torch.randn(2, 3, 1, 4 * d))
        self.positions = nn.Parameter(0.02 * torch.randn(7, d))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x) + self.positions
        layers = [torch.einsum("nd,edf->enf", h, self.up[i]) + self.up_bias[i] for i in (0, 1)]
        out: Tensor = self.out(torch.relu(sum(layers)).mean(0))
        return out


def test_a_stack_of_stacks_is_so_many_matrices_and_vectors() -> None:
    specs = sweeper.classify(Layered, {"d": 16}, {"d": 64}, torch.randn(7, 6))
    up = specs["up"]
    assert (up.matrix, up.fan_in, up.fan_out) == ((6, 64), 64, 256)
    # What one input makes in all experts has their number, and no positions: biases start at 0.
    starts = {n: (str(specs[n].role), specs[n].init) for n in specs if "b" in n or "pos" in n}
    biases = {"inp.bias", "out.bias", "up_bias"}
    assert {n for n, start in starts.items() if start == ("vector", "zeros")} == biases
    assert starts["positions"] == ("embedding", "normal")


class Convolutions(nn.Module):
    """Convolutions of one dimension, of two, and in two groups; experts beside them."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.inp, self.out = nn.Conv2d(3, d, 1), nn.Linear(d, 3)
        self.conv2, self.conv1 = nn.Conv2d(d, d, 3, padding=1), nn.Conv1d(d, d, 3)
        self.grouped = nn.Conv2d(d, 4 * d, 1, groups=2)
        self.down = nn.Conv2d(4 * d, d, 1)
        self.experts = nn.Parameter(torch.randn(3, d, d))

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(torch.relu(self.grouped(torch.relu(self.conv2(self.inp(x))))))
        h = torch.relu(self.conv1(h.flatten(2))).mean(-1)
        out: Tensor = self.out((h @ self.experts).mean(0))
        return out


def test_matrices_of_more_than_two_dimensions() -> None:
    """Derived: of a step with singular values of 1 along a group's own [out / groups, in / groups].

    As one matrix [out, in / groups] a tall one's groups would have singular values of groups^-1/2.
    """

    def without(*names: str) -> Callable[[int], nn.Module]:
        def build(d: int) -> nn.Module:
            model = Convolutions(d)
            for name in names:
                setattr(model, name, nn.Identity())
            if "grouped" in names:
                model.down = nn.Conv2d(d, d, 1)
            return model

        return build

    images = (2, 3, 5, 5)
    plan = by_muon(Convolutions, *images)
    matrices = {p.name: (p.matrix, p.target.lr) for p in plan.parameters}
    assert matrices["grouped.weight"] == ((2, 128), pytest.approx(2.0))
    # A matrix [64, 9 x 64] moves an output by as much as all of its 576 inputs do.
    assert matrices["conv2.weight"] == ((1, 0), pytest.approx((64 / 576) ** 0.5))
    assert matrices["experts"] == ((3, 64), pytest.approx(1.0))
    for name in ("keller_jordan", "dion"):
        with pytest.raises(ConfigError, match=r"grouped\.weight"):
            plan.param_groups(Convolutions(64), muon=name)
    build = without("grouped")
    for name in ("keller_jordan", "torch", "moonlight"):  # torch's takes no third dimension
        with pytest.raises(ConfigError, match=r"conv1.weight \[64, 64, 3\]"):
            by_muon(build, *images).param_groups(build(64), muon=name)
    # Dion's flattens a group's convolutions where it says so: [64, 576], of which its factor is.
    model = build(64)
    flat = {
        tuple(p.shape): (group["flatten"], group["lr"])
        for group in by_muon(build, *images).param_groups(model, muon="dion")
        if group["algorithm"] == "muon"
        for p in group["params"]
    }
    assert flat[(64, 64, 3, 3)] == flat[(64, 64, 3)] == (True, pytest.approx(1.0))
    assert flat[(3, 64, 64)] == (False, pytest.approx(1.0))
    # Keller Jordan's flattens images' kernels, and has the factor of a kernel's sides.
    build = without("grouped", "conv1")
    rates = {
        tuple(p.shape): group["lr"]
        for group in by_muon(build, *images).param_groups(build(64), muon="keller_jordan")
        if group["use_muon"]
        for p in group["params"]
    }
    assert rates[(64, 64, 3, 3)] == pytest.approx((64 / 576) ** 0.5)
    assert rates[(3, 64, 64)] == pytest.approx(1.0)
