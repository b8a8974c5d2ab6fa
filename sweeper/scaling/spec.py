"""Records that schemes read and write: what a parameter or an operation is, and its scale."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from sweeper.trial import PlainHps


class Role(StrEnum):
    """What a parameter is contracted over as the width grows (papers: Everett et al., sec. 2)."""

    EMBEDDING = "embedding"
    """Only its output grows: a lookup table or an input projection."""
    HIDDEN = "hidden"
    """Input and output grow."""
    READOUT = "readout"
    """Only its input grows: the head."""
    VECTOR = "vector"
    """One dimension, applied element by element: a norm's gain, a bias."""
    FIXED = "fixed"
    """Nothing grows."""


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


@dataclass(frozen=True, kw_only=True)
class ParamSpec:
    """A parameter at its target size, beside the same parameter in the base model.

    `fan_in` and `fan_out` count the entries that an output sums over and that an input feeds.
    `residual` tells that the parameter lies on a residual branch, of which there are
    2 x `depth`. `init` says how values start: "normal" (times the scheme's std), "ones",
    "zeros", or "kept" (as the model's own code sets them). `frozen` tells that it is not trained.
    `readout_fan_in` and `base_readout_fan_in` are what its outputs sum over where an embedding is
    tied to the readout, and 0 where it is not; `head_init_fan_in` is the base's, of such a table
    and of those whose rows are added to its rows. `groups` and `base_groups` count the independent
    weights that it holds where their number grows with the width (a depthwise convolution's
    channels, the blocks of a block-diagonal matrix); the fans are those of one of them.
    `width_dims` and `depth_dims` are the dimensions of `shape` that grow with the width and with
    the depth. `lookup` tells an embedding whose rows are picked (words) from one that is multiplied
    with its input (patches). `tied` are other names of the same parameter.
    `inner_growth` is, of the second matrix of an expert, its inner width over that of an uncut
    expert of the same model (1 / granularity), 1 of all else: its base fan-in is the uncut
    expert's. `note` says in a line how the parameter is used, and what to mind. `width` is the
    model's.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    base_fan_in: int
    base_fan_out: int
    residual: bool = False
    depth: int = 1
    base_depth: int = 1
    init: str = "normal"
    width: int = 1
    base_width: int = 1
    width_dims: tuple[int, ...] = ()
    depth_dims: tuple[int, ...] = ()
    lookup: bool = False
    tied: tuple[str, ...] = ()
    readout_fan_in: int = 0
    base_readout_fan_in: int = 0
    head_init_fan_in: int = 0
    groups: int = 1
    base_groups: int = 1
    frozen: bool = False
    inner_growth: float = 1.0
    note: str = ""

    @property
    def projection(self) -> bool:
        """Whether outputs sum over the fan-in, as in a matrix product; a lookup does not."""
        return self.fan_in > 1 and not self.lookup

    @property
    def width_ratio(self) -> float:
        """m: target over base of the dimension that the parameter's exponents of width speak of.

        It is the fan-in for what contracts over it (an FFN's second matrix has another than its
        first), and the fan-out of all groups for embeddings and vectors: the width that a
        depthwise convolution adds to is its number of channels. 1 when nothing grows.
        """
        if self.role in (Role.HIDDEN, Role.READOUT):
            return self.fan_in / self.base_fan_in
        return self.fan_out * self.groups / (self.base_fan_out * self.base_groups)

    def at_base(self) -> ParamSpec:
        """The same parameter in the base model."""
        return replace(
            self,
            shape=self.base_shape,
            fan_in=self.base_fan_in,
            fan_out=self.base_fan_out,
            readout_fan_in=self.base_readout_fan_in,
            groups=self.base_groups,
            depth=self.base_depth,
            width=self.base_width,
        )


@dataclass(frozen=True, kw_only=True)
class ParamScale:
    """What a scheme prescribes for one parameter.

    The forward pass uses `multiplier * W`, `W ~ N(0, init_std^2)`. The gradient that goes back
    to the layer's input is multiplied by `backward_multiplier` in place of `multiplier` (None:
    the same). `lr`, `eps` and `weight_decay` are factors on the global ones; `lr` includes every
    hyperparameter but eta.
    """

    init_std: float
    multiplier: float = 1.0
    backward_multiplier: float | None = None
    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ScaledOp:
    """An operation without weights that a scheme may scale: attention, gated SiLU, residual, loss.

    `kind` is the operation's; `geometry` holds what its rule needs: `head_size`, `seq_len` and
    `causal` for attention; `branch` (1 .. `branches`), `branches`, `base_branches` and, where
    they are not 1, `attentions` (branches of a layer before its FFN) for a residual; `classes`
    for the loss. A "tied_readout" is the output of an embedding that is also the head: `fan_in`
    and `base_fan_in`, the entries that it sums over, and `own`, the factor on the logits that
    the model itself has at this size over the one that it has at the base. Of a plain model it
    has the `parameter`'s name, and `lookup`: whether rows of it are picked by numbers.
    """

    name: str
    kind: str
    geometry: Mapping[str, Any]


class Parameterization(Protocol):
    """A scheme: scales for parameters and operations, from shapes and hyperparameters alone.

    `hyperparameters` names those it knows, eta first. `unit_scaled` asks the model for
    operations that are scaled otherwise in the backward pass. Both methods must be pure, and be
    given every hyperparameter.
    """

    hyperparameters: ClassVar[tuple[str, ...]]
    unit_scaled: ClassVar[bool]

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        """Scales of one parameter under an optimizer whose updates scale as `update`."""
        ...

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        """Factors of one operation, by the names of the module's buffers."""
        ...


NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a name that is a number."""


LOGITS = "(logits)"
"""Among modules: what the loss is computed from, which a model may change outside of them."""


def layer_of(name: str) -> str | None:
    """The layer's number in a name, its first part that is one; None outside of layers."""
    match = NUMBER.search(name)
    return match and match[0]


def with_layer(name: str, layer: str) -> str:
    """The name with `layer` in the place of its layer's number; as it is outside of layers."""
    return NUMBER.sub(lambda _: layer, name, count=1)
