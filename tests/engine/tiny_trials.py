"""Small trials to train in tests."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.data.corpus import TokenCorpus
from sweeper.trial import Trial
from tests.specs import spec_of

GAMMAS = ("eta", "gamma_embedding", "gamma_hidden", "gamma_readout")
ALPHAS = ("alpha_attn", "alpha_ffn_act", "alpha_residual", "alpha_residual_attn_ratio")
PARAMETERIZATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "umup": ("sweeper.scaling.umup.UMuP", ("eta", *ALPHAS, "alpha_loss_softmax")),
    "mup": (
        "sweeper.scaling.relative.MuP",
        ("eta", "eta_emb", "sigma_init", "alpha_emb", "alpha_attn", "alpha_output"),
    ),
    "standard": ("sweeper.scaling.relative.Standard", GAMMAS),
    "ntk": ("sweeper.scaling.relative.Ntk", GAMMAS),
    "mean_field": ("sweeper.scaling.relative.MeanField", GAMMAS),
    "spectral": ("sweeper.scaling.spectral.Spectral", GAMMAS),
    "effective_theory": (
        "sweeper.scaling.effective_theory.EffectiveTheory",
        ("eta", "weight_decay"),
    ),
}
ETA = {"umup": 0.0, "spectral": -4.0, "effective_theory": -2.0}
ETA |= dict.fromkeys(("mup", "standard", "ntk", "mean_field"), -7.0)


def corpus(folder: Path, classes: int = 32) -> TokenCorpus:
    """A small corpus of skewed random tokens."""
    generator = np.random.default_rng(0)
    tokens = (classes * generator.random(4000) ** 2).astype(np.uint8)
    path = folder / "tokens.npy"
    np.save(path, tokens)
    return TokenCorpus(path=path, digest="0" * 64, classes=classes, heldout_fraction=0.1)


@cache
def tokens() -> TokenCorpus:
    """The corpus of all tests in this process that ask for no other."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return corpus(folder)


def tree(parameterization: str = "umup", **train: Any) -> dict[str, Any]:
    """A configuration of a tiny decoder, base width 16, target width 32."""
    settings = {"steps": 8, "batch_size": 2, "seq_len": 8, "precision": "float64"}
    settings |= {"warmup": 0.25, "heldout_batches": 2}
    llama = "sweeper.models.llama.Llama"
    return {
        "parameterization": {"_target_": PARAMETERIZATIONS[parameterization][0]},
        "model": {"_target_": llama, "width": 32, "depth": 2, "head_size": 8},
        "base": {"width": 16, "depth": 1},
        "optimizer": {"_target_": "sweeper.engine.optimizers.first_order.AdamW"},
        "data": {"digest": "0" * 64, "classes": 32, "heldout_fraction": 0.1},
        "train": settings | train,
    }


def check_tree(parameterization: str, steps: int) -> dict[str, Any]:
    """The configuration of a run of a coordinate check: at one rate, on 4 sequences of 16."""
    rates = {"warmup": 0.0, "final_lr": 1.0, "precision": "float32"}
    return tree(parameterization, steps=steps, batch_size=4, seq_len=16, **rates)


def trial(
    parameterization: str = "umup",
    seed: int = 0,
    train: dict[str, Any] | None = None,
    **changed: float,
) -> Trial:
    """A trial at the parameterization's defaults but for `changed` (log2)."""
    spec, hps = spec_of(tree(parameterization, **(train or {}))), points(parameterization)[0]
    return Trial(spec=spec, log2_hps=hps | changed, seed=seed)


def points(parameterization: str) -> list[dict[str, float]]:
    """The defaults (log2), every other hyperparameter moved, and the rest moved."""
    names = PARAMETERIZATIONS[parameterization][1]
    hps = dict.fromkeys(names, 0.0) | {"eta": ETA[parameterization]}
    return [hps, *(hps | {name: hps[name] + 1.0 for name in names[i::2]} for i in range(2))]
