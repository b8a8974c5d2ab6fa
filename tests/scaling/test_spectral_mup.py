"""How far a step of Muon moves the logits, through a readout of the standard init and of muP's."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest
import torch

from sweeper.registry import build_plugin
from sweeper.scaling.spec import ParamSpec, Role, Update

BASE, CLASSES, BATCH = 64, 8, 4


def spec(role: Role, width: int) -> ParamSpec:
    rows = CLASSES if role is Role.READOUT else width
    base = CLASSES if role is Role.READOUT else BASE
    return ParamSpec(
        name=str(role), role=role, shape=(rows, width), base_shape=(base, BASE), fan_in=width,
        fan_out=rows, base_fan_in=BASE, base_fan_out=base, width=width, base_width=BASE,
    )  # fmt: skip


def parameterization(name: str) -> tuple[object, dict[str, float]]:
    built = build_plugin({"_target_": name})
    return built, dict.fromkeys(built.hyperparameters, 1.0)


SPECTRAL, SPECTRAL_MUP = (
    "sweeper.scaling.spectral.Spectral",
    "sweeper.scaling.spectral.SpectralMup",
)


def logits_moved(name: str, width: int) -> float:
    """RMS of the readout of what one orthogonalised step adds to the last activations.

    The gradient of the hidden weights comes through the readout, from any errors of the logits.
    """
    made, ones = parameterization(name)
    hidden, readout = (
        made.scale(spec(role, width), ones, update)  # type: ignore[attr-defined]
        for role, update in ((Role.HIDDEN, Update.ORTHOGONAL), (Role.READOUT, Update.SIGN))
    )
    generator = torch.Generator().manual_seed(width)
    head = torch.randn(CLASSES, width, generator=generator) * readout.init_std
    inputs = torch.randn(width, BATCH, generator=generator)
    errors = torch.randn(CLASSES, BATCH, generator=generator)
    left, _, right = torch.linalg.svd(head.T @ errors @ inputs.T, full_matrices=False)
    step = hidden.lr * left[:, :BATCH] @ right[:BATCH]
    return float((head @ step @ inputs).square().mean().sqrt())


@pytest.mark.parametrize(("name", "slope"), [(SPECTRAL, 0.5), (SPECTRAL_MUP, 0.0)])
def test_logits_move_alike_at_every_width_with_the_readout_of_mup(name: str, slope: float) -> None:
    small, large = logits_moved(name, 64), logits_moved(name, 1024)
    assert log2(large / small) / 4 == pytest.approx(slope, abs=0.06)


def test_only_the_readout_s_start_differs_and_nothing_at_the_base() -> None:
    (plain, ones), (muon, _) = parameterization(SPECTRAL), parameterization(SPECTRAL_MUP)
    for role in Role:
        for width in (BASE, 4 * BASE):
            for update in (Update.SIGN, Update.ORTHOGONAL):
                given = spec(role, width)
                usual = plain.scale(given, ones, update)  # type: ignore[attr-defined]
                smaller = role is Role.READOUT and width > BASE
                want = replace(usual, init_std=1 / 32) if smaller else usual
                assert muon.scale(given, ones, update) == want  # type: ignore[attr-defined]
