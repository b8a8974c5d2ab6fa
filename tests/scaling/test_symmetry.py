"""The abc symmetry on whole training runs: equivalent rules train to the same losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.trial import Trial
from tests.engine.tiny_trials import PARAMETERIZATIONS, corpus, tree
from tests.specs import spec_of

FIRST = "sweeper.engine.optimizers.first_order"
OPTIMIZERS: dict[str, tuple[float, dict[str, Any]]] = {
    "SGD": (-4.0, {"_target_": f"{FIRST}.SGD", "momentum": 0.0, "weight_decay": 0.0}),
    "ADAM": (-5.0, {"_target_": f"{FIRST}.AdamW", "eps": 1e-3, "weight_decay": 0.0}),
    "LION": (-7.0, {"_target_": f"{FIRST}.Lion", "weight_decay": 0.0}),
    "MUON": (-5.0, {"_target_": "sweeper.engine.optimizers.muon.Muon", "weight_decay": 0.0}),
    "FACTORED": (-5.0, {"_target_": f"{FIRST}.Adafactor", "rms_floor": 1e-30}),
}
"""Each one's log2 of the rate, and its settings."""


STEPS = 12


def losses(folder: Path, parameterization: dict[str, Any], optimizer: str = "ADAM") -> torch.Tensor:
    """The losses at width 64 over a base of 16, in float64, and the held-out loss."""
    made = tree("ntk", steps=STEPS, batch_size=8)
    made["parameterization"] = parameterization
    made["model"] |= {"width": 64, "norm_gain": True}
    eta, made["optimizer"] = OPTIMIZERS[optimizer]
    names = PARAMETERIZATIONS["mup" if parameterization["_target_"].endswith("MuP") else "ntk"][1]
    hps = dict.fromkeys(names, 0.0) | {"eta": eta}
    run = BatchedRun(
        BatchedTrials(trials=(Trial(spec=spec_of(made), log2_hps=hps),), corpus=corpus(folder))
    )
    rows = torch.stack([*(run.step() for _ in range(STEPS)), run.heldout()[0]])
    assert float(rows[-6:].mean()) < float(rows[:3].mean()), "a run that learns says more"
    return rows


def parameterization(name: str, **fields: Any) -> dict[str, Any]:
    return {"_target_": PARAMETERIZATIONS[name][0], "alignment": "full", "depth": "none", **fields}


PAIRS = [
    (parameterization("standard"), parameterization("ntk")),
    (parameterization("mup"), parameterization("mean_field")),
    (parameterization("mup"), parameterization("mup", convention="everett")),
]


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


FULL = {"alignment": "full", "depth": "none"}
NONE = {"alignment": "none", "depth": "completep"}
CASES = [*zip(OPTIMIZERS, [0, 1, 2, 0, 1], [FULL, NONE, FULL, NONE, FULL], strict=True)]
"""Pairwise: every optimizer once, every pair with and without alignment."""


@pytest.mark.parametrize(("optimizer", "pair", "fields"), CASES)
def test_equivalent_parameterizations_train_alike(
    optimizer: str, pair: int, fields: dict[str, str], tmp_path: Path
) -> None:
    first, second = (losses(tmp_path, half | fields, optimizer) for half in PAIRS[pair])
    assert worst(first, second) <= 1e-12


def test_alignments_and_equivalence_classes_train_otherwise(tmp_path: Path) -> None:
    full, none = (losses(tmp_path, parameterization("ntk", alignment=a)) for a in ("full", "none"))
    assert worst(full, none) > 1e-3
    assert worst(full, losses(tmp_path, parameterization("mean_field"))) > 1e-3
