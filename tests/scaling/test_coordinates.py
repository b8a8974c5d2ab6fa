"""The theory's own table, re-measured: how far one step moves each layer's output, over widths.

A net of one embedding, one hidden and one readout layer takes a step under a parameterization; what
its changed weights add to each layer's output has an RMS that goes as a power of the width: slope 0
where the parameterization is stable, and the slope that the exponents predict where it is not.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sweeper.registry import build_plugin
from sweeper.scaling.spec import ParamSpec, Role, Update

CLASSES, WIDTHS, BASE, BATCH = 16, (64, 128, 256, 512), 64, 4
ROLES = (Role.EMBEDDING, Role.HIDDEN, Role.READOUT)
PLACE = "sweeper.scaling"
PARAMETERIZATIONS = {
    "standard, one rate": {"_target_": f"{PLACE}.relative.Standard"},
    "standard, full": {"_target_": f"{PLACE}.relative.Standard", "alignment": "full"},
    "scaled embedding": {"_target_": f"{PLACE}.relative.ScaledEmbedding"},
    "scaled embedding, over width": {
        "_target_": f"{PLACE}.relative.ScaledEmbedding",
        "shared": "over_width",
    },
    "standard, none": {"_target_": f"{PLACE}.relative.Standard", "alignment": "none"},
    "ntk": {"_target_": f"{PLACE}.relative.Ntk", "alignment": "full"},
    "mup": {"_target_": f"{PLACE}.relative.MuP"},
    "mup, none": {"_target_": f"{PLACE}.relative.MuP", "alignment": "none"},
    "mean field": {"_target_": f"{PLACE}.relative.MeanField", "alignment": "full"},
    "umup": {"_target_": f"{PLACE}.umup.UMuP"},
    "umup, plain embedding": {"_target_": f"{PLACE}.umup.UMuP", "scaled_embedding_lr": False},
    "maximal-update (s=1)": {"_target_": f"{PLACE}.effective_theory.EffectiveTheory", "s": 1.0},
    "neural-tangent (s=0)": {"_target_": f"{PLACE}.effective_theory.EffectiveTheory", "s": 0.0},
}
ADAM = {
    "standard, one rate": (0.0, 1.0, 1.0),
    "standard, full": (0.0, 0.0, 0.0),
    # All layers alike: one factor on the one rate makes them all flat.
    "scaled embedding": (1.0, 1.0, 1.0),
    "scaled embedding, over width": (0.0, 0.0, 0.0),
    "standard, none": (0.0, 0.5, 0.5),
    "ntk": (0.0, 0.0, 0.0),
    "mup": (0.0, 0.0, 0.0),
    "mup, none": (0.0, 0.5, 0.5),
    "mean field": (0.0, 0.0, 0.0),
    # Its embedding's rate shrinks on purpose (u-muP paper, Appendix A.3).
    "umup": (-0.5, 0.0, 0.0),
    "umup, plain embedding": (0.0, 0.0, 0.0),
    "maximal-update (s=1)": (0.0, 0.0, 0.0),
    "neural-tangent (s=0)": (-0.5, -0.5, 0.0),
}
SGD = {
    "standard, full": (0.0, 0.0, 0.0),
    "ntk": (0.0, 0.0, 0.0),
    "mup": (0.0, 0.0, 0.0),
    "mean field": (0.0, 0.0, 0.0),
    # One rate: gradients of embedding and hidden weights shrink as n^-1/2, the readout's do not.
    "standard, one rate": (-0.5, 0.5, 1.0),
}


def specs(width: int) -> list[ParamSpec]:
    shapes = {
        Role.EMBEDDING: (CLASSES, width),
        Role.HIDDEN: (width, width),
        Role.READOUT: (CLASSES, width),
    }
    specs = []
    for role in ROLES:
        rows, columns = shapes[role]
        fans = (rows, columns) if role is Role.EMBEDDING else (columns, rows)
        grown = [BASE if size == width else size for size in (rows, columns, *fans)]
        specs.append(
            ParamSpec(
                name=str(role),
                role=role,
                shape=(rows, columns),
                base_shape=(grown[0], grown[1]),
                fan_in=fans[0],
                fan_out=fans[1],
                base_fan_in=BASE if fans[0] == width else fans[0],
                base_fan_out=BASE if fans[1] == width else fans[1],
                width=width,
                base_width=BASE,
                lookup=role is Role.EMBEDDING,
            )
        )
    return specs


def forward(weights: list[Tensor], tokens: Tensor, multipliers: list[float]) -> list[Tensor]:
    """Outputs of the three layers."""
    h = multipliers[0] * weights[0][tokens]
    z = multipliers[1] * h @ weights[1].T
    return [h, z, multipliers[2] * torch.relu(z) @ weights[2].T]


def moves(config: dict[str, object], update: Update, width: int, seed: int) -> list[float]:
    """RMS of what one step of each layer's weights adds to its output."""
    parameterization = build_plugin(config)
    ones = dict.fromkeys(parameterization.hyperparameters, 1.0)
    scales = [parameterization.scale(spec, ones, update) for spec in specs(width)]
    torch.manual_seed(seed)
    weights = [
        (torch.randn(spec.shape, dtype=torch.float64) * scale.init_std).requires_grad_()
        for spec, scale in zip(specs(width), scales, strict=True)
    ]
    tokens, targets = torch.randint(CLASSES, (BATCH,)), torch.randint(CLASSES, (BATCH,))
    multipliers = [scale.multiplier for scale in scales]
    h, z, logits = forward(weights, tokens, multipliers)
    gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, targets), weights)
    step = 1e-3  # small: the slope is that of the first order
    changes = [
        -step * scale.lr * (g.sign() if update is Update.SIGN else g)
        for scale, g in zip(scales, gradients, strict=True)
    ]
    added = [
        multipliers[0] * changes[0][tokens],
        multipliers[1] * h @ changes[1].T,
        multipliers[2] * torch.relu(z) @ changes[2].T,
    ]
    return [float(change.detach().pow(2).mean().sqrt()) for change in added]


def slopes(config: dict[str, object], update: Update) -> np.ndarray:
    """Slope in log-log over the widths, of the mean over seeds, for each layer."""
    table = [
        np.mean([moves(config, update, width, seed) for seed in range(4)], axis=0)
        for width in WIDTHS
    ]
    return np.polyfit(np.log(WIDTHS), np.log(np.array(table)), 1)[0]


@pytest.mark.parametrize("name", ADAM)
def test_adam(name: str) -> None:
    assert slopes(PARAMETERIZATIONS[name], Update.SIGN) == pytest.approx(ADAM[name], abs=0.12)


@pytest.mark.parametrize("name", SGD)
def test_sgd(name: str) -> None:
    assert slopes(PARAMETERIZATIONS[name], Update.GRADIENT) == pytest.approx(SGD[name], abs=0.12)
