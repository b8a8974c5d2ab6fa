"""Plans to export: of a small decoder and of models of transformers, by three rules."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import sweeper
from sweeper.export.exporter import build_exporter
from sweeper.export.lacks import header, lacking
from sweeper.plan.plan import TransferPlan
from tests.plan.helpers import reading_once
from tests.toy_models import DECAY, TOKENS, NanoDecoder

MUP = {"name": "mup", "depth": "none"}
COMPLETEP = {"name": "mup", "depth": "completep", "decay": "scaled"}
UMUP = {"name": "umup", "groups": {"first": "h.0.*"}}
PARAMETERIZATIONS: dict[str, Any] = {"mup": MUP, "umup": UMUP, "completep": COMPLETEP}
READ_ONCE = reading_once()
OPTIONS: dict[str, dict[str, Any]] = {"hf": {"family": "granite"}}
"""Options that an exporter does not do without here."""
HPS = {
    "mup": {"eta": 2.0**-7, "eta_emb": 4.0, "alpha_emb": 3.0, "alpha_output": 2.0},
    "umup": {
        "eta": 1.0,
        "alpha_attn": 2.0,
        "alpha_loss_softmax": 0.5,
        "eta_emb": 4.0,
        "gamma_hidden": 2.0,
        "gamma_readout": 0.25,
        "gamma_norm": 1.5,
        "gamma_first": 8.0,
    },
    "completep": {"eta": 2.0**-7, "alpha_attn": 0.5},
}
"""Values under which few factors are 1; u-muP's have gammas, one of a group of parameters."""


@cache
def plan(
    parameterization: str, optimizer: str = "adamw", width: int = 128, depth: int = 4
) -> TransferPlan:
    """From width 32 and depth 2; the decoder has heads of 8."""
    rules, hps = PARAMETERIZATIONS[parameterization], HPS[parameterization]
    return nano_plan(width, depth, rules, hps, {"name": optimizer, "weight_decay": DECAY})


def nano_plan(
    width: int, depth: int, rules: Any, hps: dict[str, float], optimizer: Any = "adamw", **more: Any
) -> TransferPlan:
    """Any plan of the decoder; it is read once at each size."""
    base, target = {"n_embd": 32, "n_layer": 2}, {"n_embd": width, "n_layer": depth}
    with patch("sweeper.plan.plan_for.read_model", READ_ONCE):
        return sweeper.plan_for(
            NanoDecoder, base, target, rules, hps, optimizer=optimizer, inputs=TOKENS, **more
        )


def made(planned: TransferPlan, to: str, **options: Any) -> dict[str, str]:
    exporter = build_exporter(to, {**OPTIONS.get(to, {}), **options})
    lacks = lacking(planned, exporter)
    return exporter.files(planned, header(planned, exporter, lacks, {lack.name for lack in lacks}))


def missing(planned: TransferPlan, to: str, **options: Any) -> dict[str, list[str]]:
    exporter = build_exporter(to, {**OPTIONS.get(to, {}), **options})
    return {lack.name: lack.details() for lack in lacking(planned, exporter)}


def executed(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "export", "exec"), names)
    return names


def decoder(planned: TransferPlan) -> nn.Module:
    torch.manual_seed(0)
    return NanoDecoder(planned.target.width, planned.target.depth)


Settings = dict[str, tuple[float, ...]]


def settings_of(
    groups: Any, names: dict[int, str], *, keys: tuple[str, ...] = ("lr", "eps", "weight_decay")
) -> Settings:
    """Every parameter's numbers, by name; each must be in one group alone."""
    settings: Settings = {}
    for group in groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            assert name not in settings, f"{name} is in two groups"
            settings[name] = tuple(float(group[key]) for key in keys)
    return settings


def planned_settings(planned: TransferPlan, *, over_lr: bool = True) -> Settings:
    """Learning rate, eps and decay of every parameter, the last for torch's AdamW or as a share."""
    return {
        p.name: (p.lr, p.eps, p.weight_decay / (p.lr if over_lr else 1.0))
        for p in planned.absorbed()
        if not p.frozen
    }


def names_of(model: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}
