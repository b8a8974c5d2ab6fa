"""The abc symmetry on whole training runs: equivalent rules train to the same losses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.scaling.abc import STANDARD, ABExponents
from sweeper.scaling.relative import Relative
from sweeper.scaling.spec import Role
from sweeper.trial import Trial
from tests.engine.tiny_trials import PARAMETERIZATIONS, corpus, tree
from tests.specs import spec_of

SGD = {
    "_target_": "sweeper.engine.optimizers.first_order.SGD",
    "momentum": 0.0,
    "weight_decay": 0.0,
}
ADAM = {"_target_": "sweeper.engine.optimizers.first_order.AdamW", "eps": 1e-3, "weight_decay": 0.0}
SCALED = {**ADAM, "_target_": "tests.engine.optimizers.ScaledAdam"}
LION = {"_target_": "sweeper.engine.optimizers.first_order.Lion", "weight_decay": 0.0}
MUON = {"_target_": "sweeper.engine.optimizers.muon.Muon", "weight_decay": 0.0}
FACTORED = {"_target_": "sweeper.engine.optimizers.first_order.Adafactor", "rms_floor": 1e-30}
ETA = {"SGD": -4.0, "ADAM": -5.0, "SCALED": -5.0, "LION": -7.0, "MUON": -5.0, "FACTORED": -5.0}
OPTIMIZERS = {
    "SGD": SGD, "ADAM": ADAM, "SCALED": SCALED, "LION": LION, "MUON": MUON, "FACTORED": FACTORED
}  # fmt: skip
CLOSE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Shifted(Relative):
    """The standard exponents, each role shifted by a theta of its own."""

    embedding: float = 0.0
    hidden: float = 0.0
    readout: float = 0.0

    def ab_exponents(self) -> ABExponents:
        thetas = (self.embedding, self.hidden, self.readout)
        return {
            role: (STANDARD[role][0] + theta, STANDARD[role][1] - theta)
            for role, theta in zip(STANDARD, thetas, strict=True)
        }


STEPS = 12
TRAINED: dict[str, torch.Tensor] = {}
"""Losses by what was asked for: many tests compare with the same run."""


def losses(
    folder: Path,
    parameterization: dict[str, Any],
    optimizer: str = "ADAM",
    **changed: Any,
) -> torch.Tensor:
    """The losses at width 64 over a base of 16, in float64, and the held-out loss."""
    asked = json.dumps([parameterization, optimizer, changed], sort_keys=True)
    if asked not in TRAINED:
        TRAINED[asked] = trained(folder, parameterization, optimizer, changed)
    return TRAINED[asked]


def trained(
    folder: Path, parameterization: dict[str, Any], optimizer: str, changed: dict[str, Any]
) -> torch.Tensor:
    made = tree("ntk", steps=STEPS, batch_size=8)
    made["parameterization"] = parameterization
    made["model"] |= {"width": 64, "norm_gain": True}
    made["optimizer"] = OPTIMIZERS[optimizer] | changed
    names = PARAMETERIZATIONS["mup" if parameterization["_target_"].endswith("MuP") else "ntk"][1]
    hps = dict.fromkeys(names, 0.0) | {"eta": ETA[optimizer]}
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
EVERY_RUN = [
    ("SGD", 0, FULL), ("ADAM", 1, NONE), ("SCALED", 2, FULL),
    ("LION", 0, NONE), ("MUON", 1, FULL), ("FACTORED", 2, NONE),
]  # fmt: skip
"""Pairwise: every optimizer once, every pair with and without alignment; the product is `long`."""


@pytest.mark.parametrize(
    ("optimizer", "pair", "fields"),
    [
        pytest.param(*case, marks=() if case in EVERY_RUN else pytest.mark.long)
        for case in product(OPTIMIZERS, range(len(PAIRS)), (FULL, NONE))
    ],
)
def test_equivalent_parameterizations_train_alike(
    optimizer: str, pair: int, fields: dict[str, str], tmp_path: Path
) -> None:
    first, second = (losses(tmp_path, half | fields, optimizer) for half in PAIRS[pair])
    assert worst(first, second) <= CLOSE


@pytest.mark.parametrize("decay", ["independent", "scaled"])
def test_a_tiny_epsilon_and_decays_that_follow_the_weight_keep_the_symmetry(
    decay: str, tmp_path: Path
) -> None:
    fields = {"epsilon": "fixed", "decay": decay}
    first, second = (
        losses(tmp_path, half | fields, eps=1e-30, weight_decay=0.05) for half in PAIRS[1]
    )
    assert worst(first, second) <= CLOSE


def test_atan2_needs_no_epsilon(tmp_path: Path) -> None:
    fields = {"epsilon": "fixed"}
    first, second = (losses(tmp_path, half | fields, atan2=True) for half in PAIRS[0])
    assert worst(first, second) <= CLOSE


def test_a_fixed_epsilon_breaks_it(tmp_path: Path) -> None:
    first, second = (losses(tmp_path, half | {"epsilon": "fixed"}) for half in PAIRS[0])
    assert worst(first, second) > 1e-6


def test_coupled_decay_breaks_it(tmp_path: Path) -> None:
    first, second = (
        losses(tmp_path, half | {"decay": "coupled"}, weight_decay=0.5) for half in PAIRS[0]
    )
    assert worst(first, second) > 1e-6


def test_alignments_and_equivalence_classes_train_otherwise(tmp_path: Path) -> None:
    """The comparison can tell: what is not equivalent does not agree."""
    full, none = (losses(tmp_path, parameterization("ntk", alignment=a)) for a in ("full", "none"))
    assert worst(full, none) > 1e-3
    assert worst(full, losses(tmp_path, parameterization("mean_field"))) > 1e-3


thetas = st.floats(-1.5, 1.5)


@given(embedding=thetas, hidden=thetas, readout=thetas, optimizer=st.sampled_from(list(OPTIMIZERS)))
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shift_leaves_every_loss_unchanged(
    embedding: float, hidden: float, readout: float, optimizer: str, tmp_path: Path
) -> None:
    assert Shifted(hidden=0.5).ab_exponents()[Role.HIDDEN] == (0.5, 0.0)
    target = f"{__name__}.{Shifted.__qualname__}"
    moved = {"_target_": target, "embedding": embedding, "hidden": hidden, "readout": readout}
    first, second = (losses(tmp_path, s, optimizer) for s in ({"_target_": target}, moved))
    assert worst(first, second) <= CLOSE
