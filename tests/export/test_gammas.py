"""Gammas in exported files: by hand what they multiply, and what is said where they cannot be."""

from __future__ import annotations

from functools import cache

import pytest

from sweeper.export.exporter import EXPORTERS, build_exporter, is_table
from sweeper.export.lacks import lacking
from sweeper.export.megatron import Megatron
from sweeper.plan.plan import TransferPlan
from tests.export.plans import HPS, MUP, OPTIONS, UMUP, nano_plan, plan


@cache
def planned(*gammas: str) -> TransferPlan:
    """By muP from width 32 to 64, with some of the gammas of `plans.HPS`."""
    chosen = {key: HPS["umup"][key] for key in gammas}
    groups = {"groups": UMUP["groups"]} if "gamma_first" in gammas else {}
    return nano_plan(64, 2, MUP | groups, {"eta": 2.0**-7} | chosen)


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


def test_megatron_says_what_it_cannot_train() -> None:
    """Under muP alone: u-muP's own rates of embeddings and head are not Megatron's anyway."""
    exporter = Megatron()
    assert not {lack.name for lack in lacking(planned(), exporter)} & {
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
        assert lacks <= {lack.name for lack in lacking(planned(gamma), exporter)}, gamma
