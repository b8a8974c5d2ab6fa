"""Batched equals alone: every model, optimizer and parameterization that has a config.

Pairs of them are in every run of the tests; all combinations are in `make test-long`.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeper.config.compose import compose_tree
from sweeper.config.settings import read_space
from sweeper.data.arrays import Digits
from sweeper.data.corpus import Corpus
from sweeper.data.spans import Corruption, SpanCorpus
from sweeper.engine.prepare import optional_hyperparameters, prepare
from sweeper.errors import ConfigError
from sweeper.trial import Trial, defaults
from tests.engine.runs import assert_as_alone
from tests.engine.tiny_trials import corpus
from tests.specs import spec_of

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")

CONF = Path(__file__).parents[2] / "conf"
STEPS = 6
CORRUPTION = Corruption(rate=0.3, mean_span=2.0, target="whole", sentinels=2)
CALM = 4.0
"""How far below its default, in log2, eta is."""


@cache
def configs(group: str) -> dict[str, dict[str, Any]]:
    """Those of the engine: presets and what commands do by themselves are none."""
    read = {path.stem: yaml.safe_load(path.read_text()) for path in (CONF / group).glob("*.yaml")}
    return {name: config for name, config in read.items() if "_target_" in config and name != "own"}


@cache
def parameterization_config(name: str) -> dict[str, Any]:
    """As composed, since ends of ranges may be interpolations; a tenth of a second each."""
    composed: dict[str, Any] = compose_tree([f"parameterization={name}"])["parameterization"]
    return composed


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Corpus]:
    """Tokens, and arrays for the models that take them."""
    folder = tmp_path_factory.mktemp("data")
    digits, tokens = Digits().prepare(folder), corpus(folder)
    spans = SpanCorpus(tokens=tokens, corruption=CORRUPTION)
    return {"vit": digits, "mlp": digits, "encoder_decoder": spans} | dict.fromkeys(
        ("llama", "hf", "moe"), tokens
    )


def trials(model: str, optimizer: str, parameterization: str, where: Corpus) -> list[Trial]:
    """Three trials at base width 8, target 16: each differs in every hyperparameter and seed."""
    rules = parameterization_config(parameterization)
    size = {"head_size": 4, "patch_size": 4, "width": 16, "depth": 1}
    train = {"steps": STEPS, "batch_size": 2, "seq_len": 8, "heldout_batches": 2, "warmup": 0.5}
    tree = {
        "parameterization": {k: v for k, v in rules.items() if k != "space"},
        "model": {k: size.get(k, v) for k, v in configs("model")[model].items()},
        "base": {"width": 8, "depth": 1},
        "optimizer": configs("optimizer")[optimizer],
        "data": where.identity(),
        "train": train | {"precision": "float64"},
    }
    spec = spec_of(tree)
    extra = optional_hyperparameters(prepare(spec).optimizer)
    usual = defaults(read_space(rules, extra))
    # Far below the edge of stability, beyond which rounding grows from step to step.
    middle = {**dict.fromkeys(extra, 0.0), **usual, "eta": usual["eta"] - CALM}
    moves = {name: 0.25 * (-1) ** j for j, name in enumerate(middle)}
    return [
        Trial(spec=spec, seed=i % 2, log2_hps={n: middle[n] + i * moves[n] for n in middle})
        for i in range(3)
    ]


REFUSED = {
    ("adafactor", "effective_theory"): "parameterization.s",
    ("sgd", "spectral"): "parameterization.rule",
    ("sgd", "spectral_mup"): "parameterization.rule",
    ("sgd", "umup"): "parameterization",
    ("sgd", "standard_embedding"): "parameterization",
    ("adafactor", "standard_embedding"): "parameterization",
} | {
    (optimizer, parameterization): key
    for optimizer in ("muon", "shampoo", "soap", "adamh", "muonh")
    for parameterization, key in (
        ("effective_theory", "parameterization.s"),
        ("umup", "parameterization"),
        ("standard_embedding", "parameterization"),
    )
    if (optimizer, parameterization) != ("adamh", "umup")
}
"""Optimizers that a parameterization has no rule for, and the key that says so."""


def is_quick(model: str, optimizer: str, parameterization: str) -> bool:
    """What an MLP is refused; each optimizer, and each parameterization, in a decoder."""
    if model == "mlp" and (optimizer, parameterization) in REFUSED:
        return True
    usual = (optimizer == "adamw", parameterization == "mup")
    return any(usual) if model == "llama" else all(usual)


COMBINATIONS = [
    pytest.param(*names, marks=() if is_quick(*names) else pytest.mark.long)
    for names in product(configs("model"), configs("optimizer"), configs("parameterization"))
]


@pytest.mark.parametrize(("model", "optimizer", "parameterization"), COMBINATIONS)
def test_batched_equals_alone(
    model: str, optimizer: str, parameterization: str, data: dict[str, Corpus]
) -> None:
    where = data[model]
    if (optimizer, parameterization) in REFUSED:
        with pytest.raises(ConfigError) as refused:
            trials(model, optimizer, parameterization, where)
        assert refused.value.key == REFUSED[optimizer, parameterization]
    else:
        group = trials(model, optimizer, parameterization, where)
        # SOAP steps as far along directions of which the gradient has hardly any as along others.
        # Where these directions lie is a matter of rounding.
        assert_as_alone(group, where, rel=1e-5 if optimizer == "soap" else 1e-10, alone=[1])
