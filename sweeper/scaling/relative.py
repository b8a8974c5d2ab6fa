"""Parameterizations relative to a base model: powers of its growth in width, 1 at the base.

`Relative` applies a table of exponents (`scaling.abc`); `Standard`, `Ntk`, `MeanField` and `MuP`
are such tables. Below them stand what has rules beside a table, and what changes another.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from sweeper.errors import ConfigError
from sweeper.records import WRITTEN_IF_SET
from sweeper.scaling.abc import (
    EMBEDDING,
    HIDDEN,
    MEAN_FIELD,
    MUP,
    NTK,
    READOUT,
    STANDARD,
    ABExponents,
    Alignment,
    Exponents,
    exponents,
    shape_factor,
    shift,
)
from sweeper.scaling.spec import (
    LAYER_GAMMAS,
    SUMMED,
    BaseParameterization,
    DepthRule,
    Epsilon,
    ParamScale,
    ParamSpec,
    Role,
    ScaledOp,
    Update,
    base_std,
    decay_factor,
)
from sweeper.trial import PlainHps


@dataclass(frozen=True, kw_only=True)
class Relative(BaseParameterization):
    """A parameterization whose rules are powers of width / base width, and nothing at the base.

    A subclass names its `table`, and may change what the base model is given (`base_scale`)
    and the scale of attention. With m the `width_ratio` of a parameter,
    `eta_l = eta * m^-c_l` and `eps_l = eps * m^-g_l` (Everett et al., section 4), before gammas.
    Without an `alignment` learning rates and epsilon have no rule: c = g = 0.
    """

    alignment: Alignment | None = "full"
    epsilon: Epsilon = "scaled"

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta", *LAYER_GAMMAS)
    relative: ClassVar[bool] = True
    table: ClassVar[ABExponents]

    @property
    def one_rate(self) -> bool:
        """Whether no rule of width changes a learning rate: without an `alignment`."""
        return self.alignment is None

    def ab_exponents(self) -> ABExponents:
        """(a, b) by role."""
        return self.table

    def base_scale(self, spec: ParamSpec, hps: PlainHps) -> ParamScale:
        """What the base model is given: standard init, and factors of 1."""
        return ParamScale(init_std=base_std(spec))

    def tied_output(self, op: ScaledOp, hps: PlainHps) -> float:
        """1/m over the model's own factor; without an `alignment` there is no rule."""
        m = op.geometry["fan_in"] / op.geometry["base_fan_in"]
        return 1.0 if self.alignment is None else float(1 / (m * op.geometry["built_in"]))

    def exponents(self, spec: ParamSpec, update: Update = Update.SIGN) -> Exponents:
        """The parameter's exponents of width, as they are applied.

        A vector is an embedding: it contracts nothing. A projection up is one too, and one down
        moves as a readout does, whose outputs are as few. But neither is an end: no module
        multiplies them, so that a is shifted to 0 by the abc symmetry. A projection down starts as
        hidden weights do, with outputs of order 1, which what follows is to work on; a step that
        goes as the weight is n^-1/2 already, and n of its entries, aligned, want n^-1/2 more.
        """
        ab, alignment, role = self.ab_exponents(), self.alignment or "full", spec.role
        if role is Role.DOWN:
            ab, role = {READOUT: (0, sum(ab[HIDDEN]))}, READOUT
        elif role in (Role.VECTOR, Role.UP):
            role = EMBEDDING
        e = exponents(ab, role, update, alignment)
        e = e if role is spec.role else shift(e, -e.a, update)
        return replace(e, c=0.0, g=0.0) if self.alignment is None else e

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """The base's scales times powers of the growth in width and in depth."""
        base, e, m = self.base_scale(spec, hps), self.exponents(spec, update), spec.width_ratio
        depth_lr, depth_gradient = self.depth_factors(spec, update)
        gradient, step = self.uneven(spec, e, update)
        lr = base.lr * m**-e.c * depth_lr * step
        return replace(
            base,
            init_std=base.init_std * m**-e.b,
            multiplier=base.multiplier * m**-e.a,
            lr=lr,
            eps=m**-e.g * depth_gradient / gradient if self.epsilon == "scaled" else 1.0,
            weight_decay=decay_factor(self.decay, hps["eta"], lr, m**-e.c * step),
        )

    def uneven(self, spec: ParamSpec, e: Exponents, update: Update) -> tuple[float, float]:
        """What a hidden matrix's eps is over, and its rate times, where its sides grow apart.

        A gradient's entries go as m^-a times those of the outputs, n_out^-(g - a): where the output
        grows r times as much as the input, r^-(g - a) is left. SGD's step has that factor and needs
        its inverse, as MuSGD has it (microsoft/mup); Adam's has not, but eps follows the gradient.
        """
        if spec.role is not HIDDEN or self.alignment is None:
            return 1.0, 1.0
        gradient = (spec.fan_out / spec.base_fan_out / spec.width_ratio) ** (e.g - e.a)
        if update is Update.GRADIENT:
            return gradient, gradient
        at, base = (
            shape_factor(s.outputs / s.fan_in, update, self.alignment)
            for s in (spec, spec.at_base())
        )
        return gradient, at / base


@dataclass(frozen=True, kw_only=True)
class Standard(Relative):
    """The standard parameterization, with fan-in init; Everett et al., Table 1, first row.

    Without an `alignment` there is one learning rate and one epsilon for all widths: the
    baseline whose optimum moves as the width grows (u-muP paper, Figure 1 left). `full`, with
    Adam, is the recommendation of Everett et al.
    """

    table: ClassVar[ABExponents] = STANDARD

    alignment: Alignment | None = None


@dataclass(frozen=True, kw_only=True)
class Ntk(Relative):
    """Everett et al., Table 1, second row: trains exactly as `standard` with the same alignment.

    It is the standard parameterization with multipliers in place of small weights, and no
    learning-rate strategy: the "neural-tangent" strategy of the effective theory of Transformers
    is `effective_theory` with s = 0 (erratum E17, docs/papers.md).
    """

    table: ClassVar[ABExponents] = NTK


@dataclass(frozen=True, kw_only=True)
class MeanField(Relative):
    """Everett et al., Table 1, last row: trains exactly as `mup` with the same alignment."""

    table: ClassVar[ABExponents] = MEAN_FIELD

    def logit_scale(self, head_size: int, hps: PlainHps) -> float:
        """1 / d_head, as in muP."""
        return 1 / head_size


# `MUP` by the abc symmetry, (a + t, b - t, c - t) under Adam, with t = 1/2: the embedding's
# (-1/2, 1/2) becomes (0, 0), the readout's (1/2, 1/2) becomes (1, 0), and no loss changes.
TENSOR_PROGRAMS: ABExponents = {EMBEDDING: (0, 0), HIDDEN: (0, 0.5), READOUT: (1, 0)}
"""Tensor Programs V, Table 8, and microsoft/mup."""


@dataclass(frozen=True, kw_only=True)
class MuP(Relative):
    """Maximal update parameterization relative to a base model, and depth-muP.

    With m = fan-in / base-fan-in and Adam: hidden init std and learning rate shrink as m^-1/2
    and 1/m; the readout keeps its base init and is multiplied by 1/m (u-muP paper, Table 1, first
    half; Tensor Programs V, VI). `convention` writes the same training as Everett et al. (erratum
    E1): embeddings multiplied by m^1/2, readout by m^-1/2. Attention logits are over d_head.
    `sigma` says what sigma_init is: a factor on the base's initialization, or, as printed (erratum
    E18), the deviation of its weights itself.
    """

    depth: DepthRule = "depth_mup"
    convention: Literal["tensor_programs", "everett"] = "tensor_programs"
    sigma: Literal["factor", "deviation"] = field(default="factor", metadata=WRITTEN_IF_SET)

    hyperparameters: ClassVar[tuple[str, ...]] = (
        "eta",
        "eta_emb",
        "sigma_init",
        "alpha_emb",
        "alpha_attn",
        "alpha_output",
    )

    def ab_exponents(self) -> ABExponents:
        """The readout's 1/m as a multiplier, or half of it in its initialization."""
        return MUP if self.convention == "everett" else TENSOR_PROGRAMS

    def base_scale(self, spec: ParamSpec, hps: PlainHps) -> ParamScale:
        """Table 1 of the u-muP paper, row muP, at the standard init; eta_emb is a gamma."""
        std = hps["sigma_init"] * (base_std(spec) if self.sigma == "factor" else 1.0)
        match spec.role:
            case Role.EMBEDDING:
                return ParamScale(init_std=std, multiplier=hps["alpha_emb"])
            case Role.READOUT:
                return ParamScale(init_std=std, multiplier=hps["alpha_output"])
        return ParamScale(init_std=std)

    def tied_output(self, op: ScaledOp, hps: PlainHps) -> float:
        """alpha_output / m; alpha_emb is for the rows as looked up, and is taken out again."""
        # alpha_emb is the multiplier of the one parameter, in both of its uses.
        return super().tied_output(op, hps) * hps["alpha_output"] / hps["alpha_emb"]

    def logit_scale(self, head_size: int, hps: PlainHps) -> float:
        """alpha_attn / d_head: after training q and k are aligned, and their product adds up."""
        return hps["alpha_attn"] / head_size


@dataclass(frozen=True, kw_only=True)
class ScaledEmbedding(BaseParameterization):
    """Kalra and Barkeshli (arXiv:2605.21486), by its abstract; for AdamW.

    All is as under `standard` with one learning rate, but the embedding's is multiplied "by a
    factor of width". The `factor` is the width itself, or its ratio m to the base's, with which
    the base model trains as `standard` does. Gains and biases have the shared rate.

    With `shared` = "kept", the rule as printed, an embedding moves by eta m, and so does what the
    other layers sum: the best eta goes as 1/m. With "over_width" the shared rate is eta/m, and it
    should stay: all but gains, biases and eps train as under `standard` with full alignment.
    """

    factor: Literal["width", "ratio"] = "width"
    shared: Literal["kept", "over_width"] = "kept"

    hyperparameters: ClassVar[tuple[str, ...]] = ("eta", *LAYER_GAMMAS)

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """What `standard` gives, but for the learning rate's factor of width.

        ConfigError for updates that do not scale as Adam's: the paper says nothing of them.
        """
        if update is not Update.SIGN:
            allowed = (
                f"its rule is AdamW's, and the optimizer's updates are {update}-like: take "
                "optimizer=adamw or lion, or parameterization=standard with an alignment"
            )
            raise ConfigError("_target_", f"{__name__}.{type(self).__name__}", allowed)
        m, growth = spec.width_ratio, self.growth(spec)
        summed = spec.role in SUMMED
        depth_lr, depth_gradient = self.depth_factors(spec, update)
        # The factor n is m (in `growth`) times the base's width: a decay that is `scaled` divides
        # by the growth alone, and at the base is the `coupled` one.
        times_width = spec.role is Role.EMBEDDING and self.factor == "width"
        at_base = spec.base_fan_out * spec.base_groups if times_width else 1
        lr = growth * at_base * depth_lr
        return ParamScale(
            init_std=base_std(spec) * m ** -(0.5 if summed else 0.0),
            lr=lr,
            eps=depth_gradient,
            weight_decay=decay_factor(self.decay, hps["eta"], lr, growth),
        )

    def growth(self, spec: ParamSpec) -> float:
        """Factor of width on the learning rate, relative to the base: m or 1; over m if shared."""
        if spec.role is Role.FIXED:
            return 1.0
        embedding = spec.width_ratio if spec.role is Role.EMBEDDING else 1.0
        return embedding / (spec.width_ratio if self.shared == "over_width" else 1.0)

    def tied_output(self, op: ScaledOp, hps: PlainHps) -> float:
        """1/m over the model's own factor: a tied table moves as an embedding does."""
        m = op.geometry["fan_in"] / op.geometry["base_fan_in"]
        return float(1 / (m * op.geometry["built_in"]))


@dataclass(frozen=True, kw_only=True)
class ScaledByUser:
    """The hyperparameters of a user command, whatever they are called."""

    hyperparameters: ClassVar[tuple[str, ...]] = ()
    unit_scaled: ClassVar[bool] = False

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """NotImplementedError: only the command knows its parameters."""
        raise NotImplementedError("the command scales its parameters by itself")

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """NotImplementedError: only the command knows its operations."""
        raise NotImplementedError("the command scales its operations by itself")
