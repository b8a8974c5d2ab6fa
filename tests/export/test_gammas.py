"""Gammas in exported files: by hand what they multiply, and what is said where they cannot be."""

from __future__ import annotations

from functools import cache

import pytest

from sweeper.export.exporter import EXPORTERS, build_exporter, is_table
from sweeper.export.lacks import lacking
from sweeper.export.megatron import Megatron
from sweeper.plan.plan import TransferPlan
from tests.export.plans import HPS, OPTIONS, UMUP, nano_plan, plan
from tests.export.test_megatron import flags

FIRST, HIDDEN = 8.0, 2.0
GAMMAS = ("eta_emb", "gamma_hidden", "gamma_readout", "gamma_norm", "gamma_first")


@cache
def planned(name: str, *gammas: str) -> TransferPlan:
    """From width 32 to 64, with some of the gammas of `plans.HPS`."""
    bare = {key: value for key, value in HPS["umup"].items() if key not in GAMMAS}
    hps = bare if name == "umup" else {"eta": 2.0**-7}
    chosen = {key: HPS["umup"][key] for key in gammas}
    groups = {"groups": UMUP["groups"]} if "gamma_first" in gammas else {}
    rules = {"name": name, **({"depth": "none"} if name == "mup" else {}), **groups}
    return nano_plan(64, 2, rules, hps | chosen)


@pytest.mark.parametrize("to", EXPORTERS)
def test_every_trainer_trains_with_them_or_is_said_not_to(to: str) -> None:
    exporter, whole = build_exporter(to, OPTIONS.get(to, {})), plan("umup")
    lacks = {lack.name for lack in lacking(whole, exporter)}
    asked, silent = {setting.name: setting.lr for setting in whole.absorbed()}, []
    for parameter in whole.parameters:
        setting = exporter.setting(whole, parameter)
        # A multiplier that stays in the forward pass is no part of the rate that is compared.
        lr = asked[parameter.name] / setting.forward
        if setting.lr != pytest.approx(lr, rel=1e-9):
            key = "embedding" if is_table(parameter) else parameter.role
            if f"{key}_lr" not in lacks:
                silent.append(parameter.name)
    assert not silent


@pytest.mark.parametrize("name", ["mup", "umup"])
def test_megatron_s_rate_has_the_hidden_gamma(name: str) -> None:
    """Its one rate is that of hidden matrices times m; embeddings and head have the same flag."""
    bare, tuned = planned(name), planned(name, "gamma_hidden")
    assert float(flags(tuned)["lr"]) == pytest.approx(HIDDEN * float(flags(bare)["lr"]))
    first = next(p for p in tuned.parameters if p.name == "h.0.qkv.weight")
    assert (first.gamma, first.lr_exponent) == (HIDDEN, 1.0 if name == "mup" else 0.5)


def test_megatron_says_what_it_cannot_train() -> None:
    """Under muP alone: u-muP's own rates of embeddings and head are not Megatron's anyway."""
    exporter = Megatron()
    assert not {lack.name for lack in lacking(planned("mup"), exporter)} & {
        "hidden_lr",
        "embedding_lr",
        "readout_lr",
    }
    for gamma, lacks in (
        ("gamma_hidden", {"embedding_lr", "readout_lr", "vector_lr"}),
        ("eta_emb", {"embedding_lr"}),
        ("gamma_readout", {"readout_lr"}),
        ("gamma_first", {"hidden_lr", "vector_lr"}),
    ):
        assert lacks <= {lack.name for lack in lacking(planned("mup", gamma), exporter)}, gamma
