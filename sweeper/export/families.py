"""Models of transformers whose configuration has multipliers: what its fields do.

A family writes multipliers into fields and reads them back; what it has no field for reads back as
the usual value. Sources: the modeling files of transformers 5, and MiniCPM's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from sweeper.errors import ConfigError

Fields = Mapping[str, Any]
LARGEST = 2.0**32
"""Beyond any size or multiplier of a model, and its inverse below any: what is there is a slip."""


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """Factors of a forward pass: of rows, q k^T, outputs of each kind of branch, and logits."""

    embedding: float = 1.0
    attention: float
    attention_branch: float = 1.0
    ffn_branch: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Width, layers, and the size of a head."""

    width: int
    depth: int
    head_size: int

    @property
    def usual_attention(self) -> float:
        """The usual factor of q k^T, head size^-1/2."""
        return float(self.head_size**-0.5)


@dataclass(frozen=True, kw_only=True)
class Family:
    """`classes` are the models' names without their ending."""

    classes: tuple[str, ...]
    write: Callable[[Multipliers, Shape], dict[str, Any]]
    read: Callable[[Fields, Shape], Multipliers]


def _write_granite(m: Multipliers, shape: Shape) -> dict[str, Any]:
    """Logits are divided by `logits_scaling`; one factor serves both kinds of branches."""
    return {
        "embedding_multiplier": m.embedding,
        "attention_multiplier": m.attention,
        "residual_multiplier": m.attention_branch,
        "logits_scaling": 1 / m.logits,
    }


def _read_granite(fields: Fields, shape: Shape) -> Multipliers:
    branch = number(fields, "residual_multiplier", 1.0)
    return Multipliers(
        embedding=number(fields, "embedding_multiplier", 1.0),
        attention=number(fields, "attention_multiplier", 1.0),
        attention_branch=branch,
        ffn_branch=branch,
        logits=1 / number(fields, "logits_scaling", 1.0),
    )


def _write_hyperclovax(m: Multipliers, shape: Shape) -> dict[str, Any]:
    """Granite's fields, but logits are multiplied by `logits_scaling`, not divided."""
    return {**_write_granite(m, shape), "logits_scaling": m.logits}


def _read_hyperclovax(fields: Fields, shape: Shape) -> Multipliers:
    # Attention's field is null by default, and then the usual; Granite's default is 1.
    usual = {"attention_multiplier": shape.usual_attention}
    present = {name: value for name, value in fields.items() if value is not None}
    flipped = 1 / number(fields, "logits_scaling", 1.0)
    return _read_granite({**usual, **present, "logits_scaling": flipped}, shape)


def _write_minicpm(m: Multipliers, shape: Shape) -> dict[str, Any]:
    """dim_model_base is a whole number; attention has no field."""
    return {
        "scale_emb": m.embedding,
        "scale_depth": m.attention_branch * sqrt(shape.depth),
        "dim_model_base": max(1, round(m.logits * shape.width)),
    }


def _read_minicpm(fields: Fields, shape: Shape) -> Multipliers:
    """What is missing is MiniCPM's own, 12, 1.4 and 256; null is neutral."""
    usual = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, **fields}
    branch = number(usual, "scale_depth", sqrt(shape.depth)) / sqrt(shape.depth)
    return Multipliers(
        embedding=number(usual, "scale_emb", 1.0),
        attention=shape.usual_attention,
        attention_branch=branch,
        ffn_branch=branch,
        logits=number(usual, "dim_model_base", shape.width) / shape.width,
    )


_SSM_INPUTS = 5
"""Parts of the state space's input, each with a multiplier."""


def _write_falcon_h1(m: Multipliers, shape: Shape) -> dict[str, Any]:
    """Keys are multiplied; attention and state space are one branch, each with its factor."""
    return {
        "embedding_multiplier": m.embedding,
        "lm_head_multiplier": m.logits,
        "key_multiplier": m.attention / shape.usual_attention,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": m.attention_branch,
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": m.attention_branch,
        "ssm_multipliers": [1.0] * _SSM_INPUTS,
        "mlp_multipliers": [1.0, m.ffn_branch],
    }


def _read_falcon_h1(fields: Fields, shape: Shape) -> Multipliers:
    """What multiplies the input of attention is in q, in k and, through v, in the output."""
    # So q k^T has it squared, and the branch's output once. `mlp_multipliers`: gate, down.
    into = number(fields, "attention_in_multiplier", 1.0)
    pair = fields.get("mlp_multipliers") or (1.0, 1.0)
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ConfigError("mlp_multipliers", pair, "a list of 2 positive numbers")
    return Multipliers(
        embedding=number(fields, "embedding_multiplier", 1.0),
        attention=shape.usual_attention * number(fields, "key_multiplier", 1.0) * into**2,
        attention_branch=number(fields, "attention_out_multiplier", 1.0) * into,
        ffn_branch=number({"mlp_multipliers[1]": pair[1]}, "mlp_multipliers[1]", 1.0),
        logits=number(fields, "lm_head_multiplier", 1.0),
    )


FAMILIES: Mapping[str, Family] = {
    "granite": Family(classes=("Granite",), write=_write_granite, read=_read_granite),
    "granitemoe": Family(
        classes=("GraniteMoe", "GraniteMoeShared", "GraniteMoeHybrid"),
        write=_write_granite,
        read=_read_granite,
    ),
    "hyperclovax": Family(
        classes=("HyperCLOVAX",), write=_write_hyperclovax, read=_read_hyperclovax
    ),
    "minicpm3": Family(classes=("MiniCPM3",), write=_write_minicpm, read=_read_minicpm),
    "falcon_h1": Family(classes=("FalconH1",), write=_write_falcon_h1, read=_read_falcon_h1),
}


def family_of_class(model: str) -> str | None:
    """The family of a class such as GraniteForCausalLM, if it is one of these."""
    stem = model.removesuffix("ForCausalLM")
    return next((name for name, family in FAMILIES.items() if stem in family.classes), None)


def number(fields: Fields, name: str, otherwise: float) -> float:
    """A field as a number; `otherwise` where it is missing or null, ConfigError for another."""
    value = fields.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(name, value, "a positive number")
    if not 1 / LARGEST <= value <= LARGEST:
        raise ConfigError(name, value, "a number from 2^-32 to 2^32")
    return float(value)
