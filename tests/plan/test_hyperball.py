"""Plans for weights of fixed norm: the published rules, what a step then does, and who may step.

Published (marin's CompletedAdamHHeuristic, ArchScale's HyperP): with batch B, tokens T, depth d,
each over the base's, AdamH's rate is sqrt(B) T^-0.3 (MuonH's sqrt(B) T^-0.32) times d^-1/2 on
residual branches; Adam's is sqrt(B / T), eps its inverse, beta2 goes to the power B. No width.

Derived: a step of relative length lr moves a layer's output by lr |W| |u x| / |u| over |x|. With
|W| kept, a rank-one direction of equal entries adds up over the fan-in n, so that the output moves
by lr n^1/2; an orthogonal one does not, and moves it by lr.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sweeper
from sweeper.errors import BadInput
from sweeper.export.groups import Pytorch, Torchtitan
from sweeper.export.lacks import lacking
from sweeper.export.transformers import Hf
from sweeper.plan import plan_for
from sweeper.plan.plan import TransferPlan
from sweeper.scaling.relative import MuP, Standard
from sweeper.scaling.spec import ParamSpec, Role, Update
from sweeper.scaling.spectral import Spectral, SpectralMup
from sweeper.scaling.umup import UMuP
from tests.plan.helpers import reading_once
from tests.scaling.test_relative import moved
from tests.scaling.weights import weight
from tests.toy_models import TOKENS, NanoDecoder


class Net(NanoDecoder):
    def __init__(self, n_embd: int, n_layer: int) -> None:
        super().__init__(n_embd, n_layer)
        for block in self.h:
            nn.init.zeros_(block.out.weight)


BASE = {"n_embd": 8, "n_layer": 2}
RUN = {"steps": 100, "batch_size": 4, "seq_len": 16}
PUBLISHED = {"name": "standard", "depth": "depth_mup", "epsilon": "fixed"}


def planned(optimizer: Any, target: dict[str, int], **more: Any) -> TransferPlan:
    rules: dict[str, Any] = {"parameterization": PUBLISHED, "hps": {"eta": 0.01}, **more}
    return sweeper.plan_for(Net, BASE, target, optimizer=optimizer, inputs=TOKENS, **rules)


POINTS = random.Random(7)
TWELVE = [
    {
        "n_embd": 8 * POINTS.choice([1, 2, 4, 8, 16]),
        "n_layer": POINTS.choice([1, 2, 3, 6]),
        "batch_size": POINTS.choice([1, 2, 4, 8, 32]),
        "steps": POINTS.choice([10, 50, 100, 300, 1600]),
    }
    for _ in range(12)
]
READ_ONCE = reading_once()


@pytest.mark.parametrize("name", ["adamh", "muonh"])
def test_factors_are_the_published_rules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_for, "read_model", READ_ONCE)
    for point in TWELVE:
        size = {key: point[key] for key in BASE}
        run = {"batch_size": point["batch_size"], "steps": point["steps"], "seq_len": 16}
        plan = planned(
            name, size, law="hyperball", base_run=RUN, target_run=run,
            hps={"eta": 0.01, "gamma_adam": 3.0},
        )  # fmt: skip
        batch = point["batch_size"] / 4
        tokens = batch * point["steps"] / 100
        depth = math.sqrt(2 / point["n_layer"])
        on_sphere = batch**0.5 * tokens ** (-0.32 if name == "muonh" else -0.3)
        adam = (batch / tokens) ** 0.5
        for setting in plan.absorbed():
            on_branch = setting.name.startswith("h.")
            rate = 0.01 * on_sphere if setting.update.holds_norm else 0.03 * adam
            assert setting.lr == pytest.approx(rate * (depth if on_branch else 1.0), rel=1e-12)
            assert setting.eps == pytest.approx(1e-8 / adam, rel=1e-12)
            assert setting.weight_decay == 0.0
        if batch != 1:
            assert plan.betas == pytest.approx((0.9, 0.95**batch), rel=1e-12)


def test_who_trains_what() -> None:
    kinds = {p.name: p.update for p in planned("muonh", {"n_embd": 16, "n_layer": 2}).parameters}
    assert kinds["h.0.up.weight"] == kinds["h.1.down.weight"] == "orthogonal_hyperball"
    assert kinds["lm_head.weight"] == "hyperball"
    # Of norm 0 it would stay 0.
    assert kinds["wte.weight"] == kinds["h.0.norm.weight"] == kinds["h.0.out.weight"] == "sign"
    adamh = {p.name: p.update for p in planned("adamh", {"n_embd": 16, "n_layer": 2}).parameters}
    assert {n for n, kind in adamh.items() if kind == "hyperball"} == {
        "lm_head.weight",
        *(f"h.{layer}.{part}.weight" for layer in (0, 1) for part in ("qkv", "up", "down")),
    }


def matrix(role: Role, out: int, into: int, base: int = 16) -> ParamSpec:
    grows = {Role.HIDDEN: (base * out // into if out > into else base, base)}
    return weight(role, out, into, grows.get(role, (out, base)))


WIDTHS = (64, 128, 256)
RULES = {
    "mup": MuP(),
    "standard, full alignment": Standard(alignment="full"),
    "spectral": Spectral(),
    "spectral_mup": SpectralMup(),
    "umup": UMuP(),
}


STEPS = [
    (rule, update, role)
    for rule in RULES
    for update, role in (
        (Update.HYPERBALL, Role.HIDDEN),
        (Update.HYPERBALL, Role.READOUT),
        (Update.HYPERBALL, Role.DOWN),
        (Update.ORTHOGONAL_HYPERBALL, Role.HIDDEN),
    )
    if not (update.orthogonal and rule == "umup")
]
"""u-muP has no rule for orthogonal steps."""


@pytest.mark.parametrize(("rule", "update", "role"), STEPS)
def test_a_step_moves_the_output_alike_at_every_width(
    rule: str, update: Update, role: Role
) -> None:
    rules = RULES[rule]
    ones = dict.fromkeys(rules.hyperparameters, 1.0)
    changes = []
    for width in WIDTHS:
        out = width if role is Role.HIDDEN else 10
        scale = rules.scale(matrix(role, out, width), ones, update)
        size = scale.multiplier * moved(update, scale.init_std, out, width, "full")
        changes.append(scale.lr * size)
    slope = np.polyfit(np.log2(WIDTHS), np.log2(changes), 1)[0]
    assert slope == pytest.approx(0.0, abs=0.06), changes


class AdamH(torch.optim.Optimizer):
    """Known by its name, as MuonH is."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 1.0})


class MuonH(AdamH): ...


class Other(AdamH):
    """Its name tells nothing."""


def test_check_knows_who_holds_the_norm() -> None:
    plan, model = planned("muonh", {"n_embd": 16, "n_layer": 2}), Net(16, 2)
    groups = plan.param_groups(model)
    kinds = {g["update"]: [] for g in groups}
    assert kinds.keys() == {"sign", "hyperball", "orthogonal_hyperball"}
    for group in groups:
        kinds[group["update"]].append(group)
    adam, adamh = torch.optim.Adam(kinds["sign"]), AdamH(kinds["hyperball"])
    plan.check([MuonH(kinds["orthogonal_hyperball"]), adamh, adam], model)
    with pytest.warns(UserWarning, match="plan.check does not know Other"):
        plan.check([Other(kinds["orthogonal_hyperball"]), adamh, adam], model)
    for wrong in (
        [torch.optim.AdamW(kinds["orthogonal_hyperball"]), adamh, adam],
        [AdamH(groups)],
        [AdamH(kinds["orthogonal_hyperball"]), adamh, adam],
    ):
        with pytest.raises(BadInput, match="hyperball"):
            plan.check(wrong, model)


def test_what_a_trainer_can_say_of_it() -> None:
    plan = planned("adamh", {"n_embd": 16, "n_layer": 2})
    for exporter in (Pytorch(), Torchtitan(), Hf(family="granite")):
        [optimizer] = [lack for lack in lacking(plan, exporter) if lack.name == "optimizer"]
        assert "adamh" in optimizer.differences[0].what
    text = Pytorch().files(plan, "A plan")["plan_pytorch.py"]
    space: dict[str, Any] = {}
    exec(text, space)
    groups = space["param_groups"](Net(16, 2))
    assert {g["update"] for g in groups} == {"sign", "hyperball"}
    muon = planned({"name": "muon", "normuon": 0.95}, {"n_embd": 16, "n_layer": 2})
    assert "normuon" in str(lacking(muon, Pytorch()))
    with pytest.raises(BadInput, match="normuon or plain"):
        muon.param_groups(Net(16, 2))
    matrices = [g for g in muon.param_groups(Net(16, 2), muon="normuon") if g["use_muon"]]
    assert {g["beta2"] for g in matrices} == {0.95} and "update" not in matrices[0]
