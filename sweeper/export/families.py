"""Models of transformers whose configuration has multipliers: what its fields do.

A family writes multipliers into fields and reads them back; what it has no field for reads back as
the usual value. Sources: the modeling files of transformers 5, and MiniCPM's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isclose, sqrt
from typing import Any, ClassVar

from sweeper.errors import BadInput, ConfigError
from sweeper.scaling.relative import MuP
from sweeper.scaling.spec import ParamScale, ParamSpec, Role, ScaledOp
from sweeper.trial import PlainHps

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

    @classmethod
    def of(cls, fields: Fields) -> Shape:
        """The sizes in a config.json; BadInput names a field that is missing or no such number."""
        width, depth = (_whole(fields, name) for name in ("hidden_size", "num_hidden_layers"))
        heads = _whole(fields, "num_attention_heads")
        # `head_dim` counts where a family says it: heads need not add up to the width.
        parts = [name for name in _HEAD_PARTS if fields.get(name) is not None]
        if len(parts) == len(_HEAD_PARTS):
            size = sum(_whole(fields, name) for name in parts)
        elif fields.get("head_dim") is not None:
            size = _whole(fields, "head_dim")
        elif heads > width:
            raise ConfigError("num_attention_heads", heads, f"at most hidden_size, {width}")
        else:
            size = width // heads
        return cls(width=width, depth=depth, head_size=size)


_HEAD_PARTS = ("qk_nope_head_dim", "qk_rope_head_dim")
"""Of latent attention, a head's entries without positions and with them."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """`names` are a config's `model_type`s, `classes` the models' names without their ending.

    `tied`: whether the head is the embedding where a configuration does not say.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    write: Callable[[Multipliers, Shape], dict[str, Any]]
    read: Callable[[Fields, Shape], Multipliers]
    tied: bool = False


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
    """As Granite, but that logits are multiplied by `logits_scaling`, not divided."""
    return {**_write_granite(m, shape), "logits_scaling": m.logits}


def _read_hyperclovax(fields: Fields, shape: Shape) -> Multipliers:
    # Attention's field is null by default, and then the usual; Granite's default is 1.
    usual = {"attention_multiplier": shape.usual_attention}
    present = {name: value for name, value in fields.items() if value is not None}
    flipped = 1 / number(fields, "logits_scaling", 1.0)
    return _read_granite({**usual, **present, "logits_scaling": flipped}, shape)


def _write_minicpm(m: Multipliers, shape: Shape) -> dict[str, Any]:
    """Branches times scale_depth / sqrt(layers); logits times dim_model_base / width.

    dim_model_base is a whole number. Attention has no field.
    """
    return {
        "scale_emb": m.embedding,
        "scale_depth": m.attention_branch * sqrt(shape.depth),
        "dim_model_base": max(1, round(m.logits * shape.width)),
    }


def _read_minicpm(fields: Fields, shape: Shape) -> Multipliers:
    """What is missing is MiniCPM's own, 12, 1.4 and 256; null is neutral."""
    known = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, **fields}
    branch = number(known, "scale_depth", sqrt(shape.depth)) / sqrt(shape.depth)
    return Multipliers(
        embedding=number(known, "scale_emb", 1.0),
        attention=shape.usual_attention,
        attention_branch=branch,
        ffn_branch=branch,
        logits=number(known, "dim_model_base", shape.width) / shape.width,
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
    _, down = numbers(fields, "mlp_multipliers", (1.0, 1.0))
    return Multipliers(
        embedding=number(fields, "embedding_multiplier", 1.0),
        attention=shape.usual_attention * number(fields, "key_multiplier", 1.0) * into**2,
        attention_branch=number(fields, "attention_out_multiplier", 1.0) * into,
        ffn_branch=down,
        logits=number(fields, "lm_head_multiplier", 1.0),
    )


FAMILIES: Mapping[str, Family] = {
    "granite": Family(
        names=("granite",), classes=("Granite",), write=_write_granite, read=_read_granite
    ),
    "granitemoe": Family(
        names=("granitemoe", "granitemoeshared", "granitemoehybrid"),
        classes=("GraniteMoe", "GraniteMoeShared", "GraniteMoeHybrid"),
        write=_write_granite,
        read=_read_granite,
    ),
    "hyperclovax": Family(
        names=("hyperclovax",),
        classes=("HyperCLOVAX",),
        write=_write_hyperclovax,
        read=_read_hyperclovax,
    ),
    "minicpm3": Family(
        names=("minicpm3", "minicpm"),
        classes=("MiniCPM3",),
        write=_write_minicpm,
        read=_read_minicpm,
        tied=True,
    ),
    "falcon_h1": Family(
        names=("falcon_h1",), classes=("FalconH1",), write=_write_falcon_h1, read=_read_falcon_h1
    ),
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
    return _positive(name, value)


def numbers(fields: Fields, name: str, otherwise: tuple[float, ...]) -> tuple[float, ...]:
    """A field as so many numbers as `otherwise` has; see `number`."""
    value = fields.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, list | tuple) or len(value) != len(otherwise):
        raise ConfigError(name, value, f"a list of {len(otherwise)} positive numbers")
    return tuple(_positive(f"{name}[{i}]", item) for i, item in enumerate(value))


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(name, value, "a positive number")
    if not 1 / LARGEST <= value <= LARGEST:
        raise ConfigError(name, _short(value), "a number from 2^-32 to 2^32")
    return float(value)


def _whole(fields: Fields, name: str) -> int:
    value = fields.get(name)
    if value is None:
        raise BadInput(f"the configuration has no {name}: is it a model's config.json?")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(name, value, "a positive whole number")
    if value > LARGEST:
        raise ConfigError(name, _short(value), "a whole number of at most 2^32")
    return value


def _short(value: float) -> object:
    """A number for a message: some have thousands of digits."""
    return value if isinstance(value, float) else f"{str(value)[:12]}..."


# What the multipliers of a published model stand for, read from its config.json.
# A multiplier is one number; a parameterization is how it changes with the sizes. Logits times
# alpha * base / width are known at one width: alpha and base cannot be told apart, and alpha is
# read as 1. Likewise a branch's c / sqrt(layers) is sqrt(base layers / layers) with base = c^2.


NEAR = 0.02
"""Published numbers are rounded to two digits: within this share they are the rule's."""

OTHERS = ("mlp_multipliers", "ssm_multipliers", "ssm_in_multiplier", "ssm_out_multiplier")
"""Fields of multipliers that nothing here is made of."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A model's family, sizes and multipliers; `init_std` and `inner` as its fields have them.

    `inner` is the FFN's inner width, `tied` whether the head is the embedding.
    """

    family: str
    shape: Shape
    multipliers: Multipliers
    init_std: float
    inner: int
    tied: bool
    others: Mapping[str, Any]

    JSON_SHOWS: ClassVar = (
        *("attention_rule", "base_width", "base_depth", "branch_constant"),
        *("parameterization", "ours"),
    )

    @classmethod
    def of(cls, fields: Fields) -> Published:
        """Read a config.json; BadInput where its family has no multipliers that are known here."""
        kind = str(fields.get("model_type", ""))
        name = next((n for n, family in FAMILIES.items() if kind in family.names), None)
        if name is None:
            known = ", ".join(name for family in FAMILIES.values() for name in family.names)
            raise BadInput(f"model_type={kind!r} has no multipliers that are known here: {known}")
        shape, tied = Shape.of(fields), fields.get("tie_word_embeddings")
        if not isinstance(tied, bool | None):
            raise ConfigError("tie_word_embeddings", tied, "true or false")
        return cls(
            family=name,
            shape=shape,
            multipliers=FAMILIES[name].read(fields, shape),
            init_std=number(fields, "initializer_range", 0.02),
            inner=max(1, int(number(fields, "intermediate_size", 4 * shape.width))),
            tied=FAMILIES[name].tied if tied is None else tied,
            others={key: fields[key] for key in OTHERS if fields.get(key) is not None},
        )

    @property
    def alpha_attention(self) -> float:
        """The constant before 1/d."""
        # q k^T has alpha / d under muP; d^-1/2, the usual factor, reads as alpha = sqrt(d).
        return self.multipliers.attention * self.shape.head_size

    @property
    def attention_rule(self) -> str:
        """How q k^T goes with the size of a head, as far as one model tells."""
        if isclose(self.multipliers.attention, self.shape.usual_attention, rel_tol=NEAR):
            return "1/sqrt(d)"
        return "1/d" if isclose(self.alpha_attention, 1, rel_tol=NEAR) else "neither"

    @property
    def base_width(self) -> int:
        """The width at which logits would have the factor 1."""
        # Under muP they are multiplied by base / width, the readout's 1/m.
        return max(1, round(self.multipliers.logits * self.shape.width))

    @property
    def even_branches(self) -> bool:
        """Whether attention's and the FFN's branches have one factor; else it is no depth rule."""
        return isclose(self.multipliers.attention_branch, self.multipliers.ffn_branch)

    @property
    def branch_constant(self) -> float:
        """The constant c of a branch's factor c / sqrt(layers)."""
        return self.multipliers.attention_branch * sqrt(self.shape.depth)

    @property
    def base_depth(self) -> int:
        """The whole number of layers at which branches would have a factor near 1."""
        # c / sqrt(L) = sqrt(c^2 / L): the rule sqrt(base / L) of a base with c^2 layers.
        if isclose(self.multipliers.attention_branch, 1.0) or not self.even_branches:
            return self.shape.depth
        return min(self.shape.depth, max(1, round(self.branch_constant**2)))

    @property
    def parameterization(self) -> str:
        """The parameterization in words."""
        width = self.base_width != self.shape.width
        usual = self.attention_rule == "1/sqrt(d)"
        if not width and usual:
            name = "the standard parameterization: neither logits nor attention follow the width"
        else:
            name = f"muP with base width {self.base_width}" if width else "attention of muP alone"
            name += ", attention's 1/sqrt(d) kept" if usual else ""
        if self.base_depth != self.shape.depth:
            name += (
                f"; branches over the root of the layers, times {self.branch_constant:.3g}: "
                f"depth-muP from about {self.base_depth} layers"
            )
        if not self.even_branches:
            name += "; branches have constants of their own"
        return name

    def lines(self) -> list[str]:
        """Every multiplier with what it may stand for."""
        m, shape = self.multipliers, self.shape
        rules = {
            "1/d": "1/d, as muP has it",
            "1/sqrt(d)": "1/sqrt(d), the usual one",
            "neither": f"{self.alpha_attention:.4g}/d: muP's 1/d with a constant",
        }
        branches = f"{m.attention_branch:.6g}, {self.branch_constant:.3g}/sqrt({shape.depth})"
        if not self.even_branches:
            branches = f"{m.attention_branch:.6g} (attention's), {m.ffn_branch:.6g} (the FFN's)"
        return [
            f"embedding: rows times {m.embedding:.6g}",
            f"attention: q k^T times {m.attention:.6g} at head size {shape.head_size}, "
            f"{rules[self.attention_rule]}",
            f"residual branches: outputs times {branches}",
            f"output: logits times {m.logits:.6g}, base width {self.base_width} of {shape.width} "
            "where the head has no constant of its own",
            *(f"{key}: {value}, for which we have no rule" for key, value in self.others.items()),
        ]

    @property
    def ours(self) -> list[dict[str, Any]]:
        """Rows of the published numbers beside those of our muP from that base.

        First the factors of the forward pass, then init, rate and eps, which no field says.
        """
        return [*_factors(self), *_parameters(self)]


PARAMETERIZATION = MuP()
HPS = PlainHps(dict.fromkeys(MuP.hyperparameters, 1.0))
"""Every constant 1: what differs from the published value is a constant, or another rule."""


def _factors(model: Published) -> list[dict[str, Any]]:
    """Attention, branches and logits as our muP has them, with every constant 1."""
    shape, m = model.shape, model.multipliers
    # A layer has two branches, attention's and the FFN's.
    depth = {"branches": 2 * shape.depth, "base_branches": 2 * model.base_depth, "branch": 1}
    branch = PARAMETERIZATION.scale_op(ScaledOp(name="", kind="residual", geometry=depth), HPS)[
        "branch"
    ]
    pairs = (
        ("embedding: rows times", m.embedding, 1.0),
        ("attention: q k^T times", m.attention, PARAMETERIZATION.logit_scale(shape.head_size, HPS)),
        ("residual branches: outputs times", m.attention_branch, branch),
        ("output: logits times", m.logits, model.base_width / shape.width),
    )
    return [{"what": what, "published": theirs, "ours": ours} for what, theirs, ours in pairs]


def _parameters(model: Published) -> list[dict[str, Any]]:
    """Initial values beside the config's one, and rates and eps over those of the base."""
    rows = []
    # The config has one init for all matrices; constants (gains) are no matter of it.
    for name, spec in _specs(model):
        scale: ParamScale = PARAMETERIZATION.scale(spec, HPS)
        drawn = spec.init == "normal"
        rows.append(
            {
                "what": name,
                "published": model.init_std if drawn else None,
                "ours": scale.init_std if drawn else None,
                "lr": scale.lr,
                "eps": scale.eps,
            }
        )
    return rows


def _specs(model: Published) -> list[tuple[str, ParamSpec]]:
    """One parameter of each kind, with its sizes at the base; the vocabulary counts as 1.

    Pairs are (size of the model, size of the base).
    """
    width, base = model.shape.width, model.base_width
    # An FFN's inner width grows as the width does: the base keeps the model's ratio of the two.
    inner, base_inner = model.inner, max(1, round(model.inner * base / width))
    depths = {"depth": model.shape.depth, "base_depth": model.base_depth}

    def spec(role: Role, fan_in: tuple[int, int], out: tuple[int, int], **more: Any) -> ParamSpec:
        shape = (out[0], fan_in[0])
        return ParamSpec(
            name="",
            role=role,
            shape=shape,
            base_shape=(out[1], fan_in[1]),
            fan_in=fan_in[0],
            fan_out=out[0],
            base_fan_in=fan_in[1],
            base_fan_out=out[1],
            **more,
        )

    size, ffn, fixed = (width, base), (inner, base_inner), (1, 1)
    # A table that is also the head starts at a head's scale.
    tied = {"head_init_fan_in": base} if model.tied else {}
    specs = [
        ("embedding", spec(Role.EMBEDDING, fixed, size, lookup=True, **tied)),
        ("q, k, v, o, up, gate", spec(Role.HIDDEN, size, size, residual=True, **depths)),
        ("down", spec(Role.HIDDEN, ffn, size, residual=True, **depths)),
        ("gains of branches", spec(Role.VECTOR, fixed, size, init="ones", residual=True, **depths)),
    ]
    return specs if model.tied else [*specs, ("head", spec(Role.READOUT, size, fixed))]
