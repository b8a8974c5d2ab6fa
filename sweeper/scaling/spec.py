"""What a parameterization reads, what it writes, and the rules that most of them share.

`ParamSpec` says what a parameter is, `ScaledOp` what an operation without weights is;
`Parameterization.scale` answers with a `ParamScale`, `scale_op` with factors by name. The
classifier fills the specs in, by the patterns of `ModelRules` where a user gives some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from math import prod, sqrt
from typing import Annotated, Any, ClassVar, Literal, Protocol

from sweeper.errors import ConfigError, suggest
from sweeper.records import WRITTEN_IF_SET, Bounded, Bounds
from sweeper.trial import PlainHps


class Role(StrEnum):
    """What a parameter is contracted over as the width grows (papers: Everett et al., sec. 2)."""

    EMBEDDING = "embedding"
    """Only its output grows: a lookup table or an input projection."""
    HIDDEN = "hidden"
    """Input and output grow."""
    READOUT = "readout"
    """Only its input grows: the head."""
    DOWN = "down"
    """Only its input grows, within the body: an adapter's first matrix, a bottleneck's."""
    UP = "up"
    """Only its output grows, within the body: an adapter's second matrix, a depthwise kernel."""
    VECTOR = "vector"
    """One dimension, applied element by element: a norm's gain, a bias."""
    FIXED = "fixed"
    """Nothing grows."""


SUMMED = (Role.HIDDEN, Role.READOUT, Role.DOWN)


class Update(StrEnum):
    """How the entries of an optimizer's update scale; `Optimizer.kind` says which."""

    GRADIENT = "gradient"
    """As the gradient: SGD with or without momentum."""
    SIGN = "sign"
    """Of order 1 whatever the gradient: Adam, Lion, signSGD."""
    PARAMETER = "parameter"
    """As the parameter's RMS: Adafactor, Adam with parameter scaling."""
    ORTHOGONAL = "orthogonal"
    """A matrix whose singular values are of order 1: Muon, Shampoo, SOAP."""
    NORMALIZED = "normalized"
    """A matrix of unit Frobenius norm."""
    HYPERBALL = "hyperball"
    """A share of the norm of the weight, which is held for good: AdamH."""
    ORTHOGONAL_HYPERBALL = "orthogonal_hyperball"
    """The same along a matrix whose singular values are alike: MuonH."""

    @property
    def relative(self) -> bool:
        """Whether a step goes as the weight that it changes, and no multiplier changes it."""
        return self in (Update.PARAMETER, Update.HYPERBALL, Update.ORTHOGONAL_HYPERBALL)

    @property
    def orthogonal(self) -> bool:
        """Whether the singular values of a step are alike."""
        return self in (Update.ORTHOGONAL, Update.ORTHOGONAL_HYPERBALL)

    @property
    def holds_norm(self) -> bool:
        """Whether a weight keeps the norm that it starts with: decay then does nothing."""
        return self in (Update.HYPERBALL, Update.ORTHOGONAL_HYPERBALL)


Init = Literal["normal", "ones", "zeros", "kept", "norm"]


@dataclass(frozen=True, kw_only=True)
class ParamSpec:
    """A parameter at its target size, beside the same parameter in the base model (`base_...`)."""

    name: str
    role: Role
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    # How many entries an output sums over, and how many outputs an input feeds.
    fan_in: int
    fan_out: int
    base_fan_in: int
    base_fan_out: int
    # Whether it lies on a residual branch; a decoder of `depth` layers has 2 x `depth` of them.
    residual: bool = False
    depth: int = 1
    base_depth: int = 1
    # "normal" (times the parameterization's std), "ones", "zeros", "kept": as the model's own code
    # sets the values, or "norm": of the weight `norm_of`, which the model divides by its norm.
    init: Init = "normal"
    norm_of: ParamSpec | None = None
    # Why the weight that the model multiplies is not the one that is drawn; "" if it is.
    reparameterized: str = ""
    # The model's width, and the dimensions of `shape` that grow with width and depth.
    width: int = 1
    base_width: int = 1
    width_dims: tuple[int, ...] = ()
    depth_dims: tuple[int, ...] = ()
    # Of an embedding: whether rows are picked (words) rather than summed over (patches).
    lookup: bool = False
    # Other names of the same parameter.
    tied: tuple[str, ...] = ()
    # What its outputs sum over where an embedding is also the readout, else 0.
    readout_fan_in: int = 0
    base_readout_fan_in: int = 0
    # The base's `readout_fan_in`, also of tables whose rows are added to such a table's rows
    # (positions): all of them start at one scale.
    head_init_fan_in: int = 0
    # Independent weights whose number grows with the width: a depthwise convolution's channels, the
    # blocks of a block-diagonal matrix. The fans are those of one of them.
    groups: int = 1
    base_groups: int = 1
    # As optimizers of matrices see it: how many matrices are stacked along the first dimension
    # (experts), and the rows of one (0: the first dimension). No stack at all, 0, where its
    # dimensions do not make matrices: another optimizer trains it.
    matrix: tuple[int, int] = (1, 0)
    frozen: bool = False
    # Whether a vector multiplies, as the weight of a norm does, and is not added as a bias is.
    gain: bool = False
    # Of an expert's second matrix: its inner width over that of an uncut expert (1 / granularity),
    # of which `base_fan_in` is; 1 of all else.
    inner_growth: float = 1.0
    # The group of `groups` that it is in, whose constant its learning rate has; see `gamma.py`.
    group: str = ""
    # C_G: factor on the variance of its initial values, of `EffectiveTheory.constants`.
    init_constant: float = 1.0
    # A line for people: how it is used, and what to mind.
    note: str = ""

    @property
    def projection(self) -> bool:
        """Whether outputs sum over the fan-in, as in a matrix product; a lookup does not."""
        return self.fan_in > 1 and not self.lookup

    @property
    def outputs(self) -> int:
        """The outputs of one matrix: a kernel makes each at many places, counted once."""
        count, rows = max(1, self.matrix[0]), self.matrix[1] or self.shape[0]
        flat = len(self.shape) > 2 and prod(self.shape) == count * rows * self.fan_in
        return rows if flat else self.fan_out

    @property
    def width_ratio(self) -> float:
        """m: target over base of the dimension that the parameter's exponents of width speak of.

        It is the fan-in for what contracts over it (an FFN's second matrix has another than its
        first), and the fan-out of all groups for embeddings and vectors: the width that a
        depthwise convolution adds to is its number of channels. 1 when nothing grows.
        """
        if self.role in SUMMED:
            return self.fan_in / self.base_fan_in
        return self.fan_out * self.groups / (self.base_fan_out * self.base_groups)

    def at_base(self) -> ParamSpec:
        """The same parameter in the base model."""
        count, rows = self.matrix
        if rows:
            count = count * self.base_groups // self.groups
            rows = rows * self.base_fan_out // self.fan_out
        return replace(
            self,
            shape=self.base_shape,
            fan_in=self.base_fan_in,
            fan_out=self.base_fan_out,
            readout_fan_in=self.base_readout_fan_in,
            groups=self.base_groups,
            matrix=(count, rows),
            depth=self.base_depth,
            width=self.base_width,
            norm_of=self.norm_of and self.norm_of.at_base(),
        )


@dataclass(frozen=True, kw_only=True)
class ParamScale:
    """What a parameterization prescribes for one parameter.

    The forward pass uses `multiplier * W`, `W ~ N(0, init_std^2)`. The gradient that goes back
    to the layer's input is multiplied by `backward_multiplier` in place of `multiplier` (None:
    the same). `lr`, `eps` and `weight_decay` are factors on the global ones, before any gamma.
    """

    init_std: float
    multiplier: float = 1.0
    backward_multiplier: float | None = None
    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ScaledOp:
    """An operation without weights that may get a scale: attention, gated SiLU, residual, loss.

    `kind` is the operation's; `geometry` holds what its rule needs: `head_size`, `seq_len` and
    `causal` for attention; `branch` (1 .. `branches`), `branches`, `base_branches` and, where
    they are not 1, `attentions` (branches of a layer before its FFN) for a residual; `classes`
    for the loss. A "tied_readout" is the output of an embedding that is also the head: `fan_in`
    and `base_fan_in`, the entries that it sums over, and `built_in`, the factor on the logits that
    the model itself has at this size over the one that it has at the base. Of a plain model it
    has that factor itself, `own`, the `parameter`'s name, and `lookup`: whether rows of it are
    picked by numbers.
    """

    name: str
    kind: str
    geometry: Mapping[str, Any]


class Parameterization(Protocol):
    """Scales for parameters and operations, from shapes and hyperparameters alone.

    `hyperparameters` names those it knows, eta first. `unit_scaled` asks the model for
    operations that are scaled otherwise in the backward pass. Both methods must be pure, and be
    given every hyperparameter.
    """

    hyperparameters: ClassVar[tuple[str, ...]]
    unit_scaled: ClassVar[bool]

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Scales of one parameter under an optimizer whose updates scale as `update`."""

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """Factors of one operation, by the names of the module's buffers."""


NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Parts of a name that DDP, torch.compile, activation checkpointing and FSDP1 put into it."""
LOGITS = "(logits)"
"""Among modules: what the loss is computed from, which a model may change outside of them."""


def layer_of(name: str) -> str | None:
    """The layer's number in a name, its first part that is one; None outside of layers."""
    match = NUMBER.search(name)
    return match and match[0]


def with_layer(name: str, layer: str) -> str:
    """The name with `layer` in the place of its layer's number; as it is outside of layers."""
    return NUMBER.sub(lambda _: layer, name, count=1)


DEPTH_NAME = re.compile(r"depth|layers?($|_)|(^|_)blocks$")
"""Found in the name of a size that is a depth; the other sizes are widths."""


def matching(
    key: str, patterns: Iterable[str], names: Iterable[str], what: str = "parameter"
) -> set[str]:
    """Names that match any pattern, `what` they are of; ConfigError for one that none matches."""
    names, matched = [*names], set[str]()
    # A text is a list of its letters, of which "*" would match all.
    if isinstance(patterns, str):
        raise ConfigError(key, patterns, "a list of patterns, such as ['*.bias']")
    for pattern in patterns:
        hits = {name for name in names if fnmatchcase(name, pattern)}
        if not hits:
            near = suggest(pattern, {with_layer(name, "*") for name in names})
            raise ConfigError(key, pattern, f"no {what} matches; {near}")
        matched |= hits
    return matched


@dataclass(frozen=True, kw_only=True)
class ModelRules:
    """Patterns of names, and what is to be done with the parameters or modules that match.

    `roles` give roles where the trace cannot tell, or tells otherwise: a mapping, or texts such as
    "*.bias=vector", which fit on a command line. `keep_init` names parameters
    that start as the model's own code sets them, `frozen` those that are not trained. `branches`
    names modules whose output is added to the residual stream.
    """

    roles: Mapping[str, str] | tuple[str, ...] = ()
    keep_init: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()

    def role_patterns(self) -> dict[str, Role]:
        """The role of every pattern; ConfigError for what is no role."""
        form = """texts of the form pattern=role: 'model.roles=["*.bias=vector"]'"""
        if isinstance(self.roles, str):
            raise ConfigError("roles", self.roles, f"a list of {form}")
        if isinstance(self.roles, Mapping):
            return {pattern: parse_role(pattern, role) for pattern, role in self.roles.items()}
        roles = {}
        for text in self.roles:
            pattern, equals, role = (part.strip() for part in text.partition("="))
            if not equals:
                raise ConfigError("roles", text, form)
            roles[pattern] = parse_role(pattern, role)
        return roles


def parse_role(pattern: str, role: Role | str) -> Role:
    """The role of that name; ConfigError for another name, under its pattern's key."""
    try:
        return Role(role)
    except ValueError:
        raise ConfigError(f"roles[{pattern}]", role, suggest(str(role), list(Role))) from None


RULE_KEYS = tuple(rule.name for rule in fields(ModelRules))
"""Keys of the group `model` that are no arguments of the model."""


# What all parameterizations but u-muP share: initialization, and rules for depth, weight decay,
# epsilon and operations. With m_L = depth / base depth a branch is multiplied by m_L^-alpha.


DepthRule = Literal["none", "depth_mup", "completep"]
"""No rule; branches over the root of the depth; CompleteP with a chosen alpha."""
Decay = Literal["independent", "coupled", "scaled"]
Epsilon = Literal["fixed", "scaled"]

LAYER_GAMMAS = ("gamma_embedding", "gamma_hidden", "gamma_readout")
"""Constants of the layer types: hyperparameters that some parameterizations always have. Any space
may hold them and more, and `scaling.gamma` applies them."""


def standard_std(spec: ParamSpec, fan_in: int) -> float:
    """Standard deviation of the usual initialization: fan-in^-1/2, and 1 where nothing is summed.

    These are the standard rows (a, b) = (0, 0), (0, 1/2), (0, 1/2) of Everett et al., Table 1.
    """
    summed = spec.projection or spec.role in SUMMED
    return 1.0 / sqrt(fan_in) if summed else 1.0


def base_std(spec: ParamSpec) -> float:
    """Standard deviation of the initial values at the base: `standard_std`, or half of a head's.

    The half is for rows that are also a head's and those that are added to them (positions): half
    a nat above ln V is much for a small vocabulary.
    """
    if spec.head_init_fan_in:
        # Logits of variance 1/4 in place of 1: the first loss is ln V + 1/8 rather than ln V + 1/2.
        return 0.5 / sqrt(spec.head_init_fan_in)
    return standard_std(spec, spec.base_fan_in)


def decay_factor(rule: Decay, eta: float, lr: float, width: float) -> float:
    """Factor on the optimizer's decay, which is the share of a weight that a step removes.

    independent: 1, whatever the learning rate. coupled: the parameter's learning rate, as
    torch's AdamW has it. scaled: coupled, with the learning rate's factor of width, `width`,
    divided out (microsoft/mup; CompleteP's decay times m for hidden weights).
    """
    if rule == "independent":
        return 1.0
    # torch's AdamW removes (eta lr) lambda. Under muP a hidden lr is 1 / m: `scaled` gives m lambda
    # to the same AdamW (Dey et al., arXiv:2505.01618, Table 1).
    return eta * lr if rule == "coupled" else eta * lr / width


def branch_multiplier(depth_ratio: float, alpha: float | None) -> float:
    """Multiplier of a residual branch, `depth_ratio` = depth / base depth."""
    return 1.0 if alpha is None else float(depth_ratio**-alpha)


def branch_lr(depth_ratio: float, alpha: float | None, update: Update) -> float:
    """Learning rate of weights and gains on a branch: all branches together move by O(1).

    `depth_ratio` branches, each times depth_ratio^-alpha, need updates of depth_ratio^(alpha-1).
    A gradient (SGD) brings a factor depth_ratio^-alpha itself, so that its learning rate goes as
    depth_ratio^(2 alpha - 1).
    """
    # A step of 1 in each of R branches moves the stream by R * R^-alpha: 1 / that is R^(alpha - 1).
    if alpha is None:
        return 1.0
    return float(depth_ratio ** (2 * alpha - 1 if update is Update.GRADIENT else alpha - 1))


@dataclass(frozen=True, kw_only=True)
class BaseParameterization(Bounded):
    """Rules beside those of width, each a field; every parameterization composes with them."""

    depth: DepthRule = "none"
    # Below 1/2 branches add up to more than the stream.
    completep_alpha: Annotated[
        float, Bounds(least=0.5, most=1, allowed="from 0.5 (depth-muP) to 1")
    ] = 1.0
    decay: Decay = "independent"
    # Groups of parameters by patterns of their names, each with a constant of its own: `gamma.py`.
    groups: Mapping[str, str] = field(default_factory=dict, metadata=WRITTEN_IF_SET)

    unit_scaled: ClassVar[bool] = False

    @property
    def decay_has_gamma(self) -> bool:
        """Whether the decay is a multiple of the parameter's own learning rate, gamma included."""
        return self.decay != "independent"

    @property
    def branch_exponent(self) -> float | None:
        """alpha: a branch is multiplied by (depth / base depth)^-alpha; None for no rule at all.

        depth-muP (Tensor Programs VI) is CompleteP (Dey et al., arXiv:2505.01618) at alpha = 1/2.
        """
        return {"none": None, "depth_mup": 0.5, "completep": self.completep_alpha}[self.depth]

    def depth_factors(self, spec: ParamSpec, update: Update) -> tuple[float, float]:
        """The depth's factors on a parameter's learning rate and gradient: 1 off the branches."""
        alpha, depth_ratio = self.branch_exponent, spec.depth / spec.base_depth
        if not spec.residual:
            return 1.0, 1.0
        return branch_lr(depth_ratio, alpha, update), branch_multiplier(depth_ratio, alpha)

    def logit_scale(self, head_size: int, hps: PlainHps) -> float:
        """Factor of q k^T: d_head^-1/2, under which random q and k have logits of order 1."""
        return 1 / sqrt(head_size)

    def tied_output(self, op: ScaledOp, hps: PlainHps) -> float:
        """Factor on the logits of a head tied to the embedding: 1 / fan-in over the model's own.

        The rows move by O(1), as an embedding must. A sum over fan-in of them, once aligned, moves
        by as much as the fan-in.
        """
        return float(1 / (op.geometry["fan_in"] * op.geometry["built_in"]))

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """Attention's scale, and the depth rule's on residual branches; else nothing is scaled."""
        match op.kind:
            case "attention":
                return {"logit": self.logit_scale(op.geometry["head_size"], hps)}
            case "gated_silu":
                return {"alpha": 1.0}
            case "residual":
                depth_ratio = op.geometry["branches"] / op.geometry["base_branches"]
                return {"branch": branch_multiplier(depth_ratio, self.branch_exponent), "skip": 1.0}
            case "loss":
                return {"logit": 1.0}
            case "tied_readout":
                return {"output": self.tied_output(op, hps)}
        raise ValueError(f"unknown operation {op.kind!r} at {op.name}")
