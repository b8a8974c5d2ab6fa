"""Parameterizations relative to a base model: powers of its growth in width, 1 at the base.

Everett et al. (arXiv:2407.05872): a weight acts as `n^-a W x`, `W ~ N(0, n^-2b)`, its learning
rate goes as `n^-c` and its gradient's entries as `n^-g`. A parameterization is a table of (a, b)
by role; c follows from it, the optimizer and the alignment (`exponents`). Tables that the abc
symmetry (`shift`) connects are equivalent: they train alike and differ in what is written where.

`Relative` applies such a table; `Standard`, `Ntk`, `MeanField` and `MuP` are tables. Below them
stand what has rules beside a table, and what changes another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import ClassVar, Literal

from sweeper.errors import ConfigError
from sweeper.records import WRITTEN_IF_SET
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

Alignment = Literal["full", "none"]
"""Whether a layer's input has turned towards its update (full) or is as good as random."""

ABExponents = Mapping[Role, tuple[float, float]]
"""(a, b) for embedding, hidden and readout."""

EMBEDDING, HIDDEN, READOUT = Role.EMBEDDING, Role.HIDDEN, Role.READOUT
STANDARD: ABExponents = {EMBEDDING: (0, 0), HIDDEN: (0, 0.5), READOUT: (0, 0.5)}
NTK: ABExponents = {EMBEDDING: (0, 0), HIDDEN: (0.5, 0), READOUT: (0.5, 0)}
MUP: ABExponents = {EMBEDDING: (-0.5, 0.5), HIDDEN: (0, 0.5), READOUT: (0.5, 0.5)}
"""The readout is (1/2, 1/2): (1/2, 0) trains as `STANDARD` does (erratum E1, docs/papers.md)."""
MEAN_FIELD: ABExponents = {EMBEDDING: (0, 0), HIDDEN: (0.5, 0), READOUT: (1, 0)}


@dataclass(frozen=True, kw_only=True)
class Exponents:
    """`n^-a` multiplies the weight, `n^-b` its init, `n^-c` its rate; its gradient is `n^-g`."""

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    g: float = 0.0


def alignment_exponent(role: Role, update: Update, alignment: Alignment) -> float:
    """k: an update with entries of order 1 moves a layer's output by n^k.

    Contracting n terms gives n when input and update are aligned and n^1/2 when they are not;
    an embedding contracts nothing. An orthogonalised hidden update has full rank, so that no
    input is aligned with more than n^1/2 of it.
    """
    if role is EMBEDDING:
        return 0.0
    full_rank = update.orthogonal and role is HIDDEN
    return 1.0 if alignment == "full" and not full_rank else 0.5


def update_exponent(role: Role, update: Update, b: float, g: float) -> float:
    """u: an optimizer's update, before its learning rate, has entries of order n^-u.

    A matrix with unit singular values has entries n^-1/2 where one or both of its sides grow;
    one of unit Frobenius norm has n^-1/2 where one side grows, n^-1 where both do.
    What is relative to the weight, or to its norm, has the weight's own n^-b.
    """
    if update is Update.GRADIENT:
        return g
    if update.relative:
        return b
    if update is Update.SIGN:
        return 0.0
    return 1.0 if update is Update.NORMALIZED and role is HIDDEN else 0.5


# Worked example, muP's hidden weights under Adam with full alignment: (a, b) = (0, 1/2), k = 1 and
# u = 0, hence c = 1. A rate of 1/n: n entries of a step, aligned with their input, add up to O(1).
def exponents(
    ab: ABExponents, role: Role, update: Update = Update.SIGN, alignment: Alignment = "full"
) -> Exponents:
    """Exponents of a layer: a step must move its output by O(1).

    The step n^-c n^-u, multiplied by n^-a and contracted to n^k, is of order 1 when
    `c = k - a - u`. Everett et al.'s table of learning rates by optimizer is this equation for
    u = g (SGD), 0 (Adam) and b (Adafactor).
    """
    if role not in ab:
        return Exponents()
    if role is READOUT:
        return _readout(ab, update, alignment)
    a, b = ab[role]
    # d(loss)/dW is the multiplier, times the gradient of the layer's output, times its input,
    # whose entries are of order 1.
    g = a + _activation_gradient(ab, update, alignment)
    u = update_exponent(role, update, b, g)
    return Exponents(a=a, b=b, c=alignment_exponent(role, update, alignment) - a - u, g=g)


def _readout(ab: ABExponents, update: Update, alignment: Alignment) -> Exponents:
    """The readout's: its gradient is its multiplier times an activation of order 1.

    Under SGD c = k - 2a alone would let the update outgrow the initial weights in the backward
    pass, and every other layer would have to pay with its learning rate. The largest sum of
    rates, the linear programme of Everett et al. (Appendix), holds c at b - a where that is more.
    """
    # muP without alignment: k - 2a = 1/2 - 1 would let the rate rise as n^1/2; b - a = 0 holds it.
    a, b = ab[READOUT]
    c = alignment_exponent(READOUT, update, alignment) - a - update_exponent(READOUT, update, b, a)
    return Exponents(a=a, b=b, c=max(c, b - a) if update is Update.GRADIENT else c, g=a)


def _activation_gradient(ab: ABExponents, update: Update, alignment: Alignment) -> float:
    """The gradient of the activations goes as n^-this.

    The readout hands it down through its weights, n^-(a+b), and through what training adds to
    them, n^-(a+c+u): the larger of the two, which has the smaller exponent, is what counts.
    Hidden layers pass it on unchanged, as each contracts n terms of n^-1/2 without alignment.
    """
    readout = _readout(ab, update, alignment)
    u = update_exponent(READOUT, update, readout.b, readout.g)
    return min(readout.a + readout.b, readout.a + readout.c + u)


def shape_factor(ratio: float, update: Update, alignment: Alignment) -> float:
    """The rate of a hidden matrix [out, in], out / in = `ratio`, over that of a square one.

    What `exponents` say of hidden weights is for sides that grow alike. D with k = min(out, in)
    singular values of 1 keeps the length of an x in its rows: RMS(D x) = sqrt(in / out) RMS(x),
    so that the rate goes as sqrt(out / in). An x that it has not seen has k / in of its square in
    the rows: sqrt(out / k). MuonH's D has the Frobenius norm of a weight of fan-in^-1/2, sqrt(out):
    singular values of sqrt(out / k), by which the rate is divided.
    """
    if not (update.orthogonal or update is Update.NORMALIZED):
        return 1.0
    root, wide = sqrt(ratio), sqrt(max(1.0, ratio))
    rate = wide if update.orthogonal and alignment == "none" else root
    return rate / wide if update.holds_norm else rate


def shift(e: Exponents, theta: float, update: Update) -> Exponents:
    """The abc symmetry: `theta` moved from the init to the multiplier; no loss of a run changes.

    c changes by how the update follows the weight: -theta when it does not (Adam, Muon), -2 theta
    when it goes as the gradient (SGD), not at all when it goes as the weight (Adafactor, AdamH).
    `prescription.absorbed_factors` is the same at one width, for a multiplier in numbers.
    """
    follows = 0 if update.relative else 2 if update is Update.GRADIENT else 1
    return Exponents(a=e.a + theta, b=e.b - theta, c=e.c - follows * theta, g=e.g + theta)


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
