"""Building blocks with scales: plain modules whose multipliers are scalar buffers.

A parameterization fills the buffers; a batch of trials stacks them like parameters, so that every
trial has multipliers of its own. At their initial value of 1 the blocks are the ordinary ones. With
`unit=True` a block has backward scales of its own (unit scaling); these are written with
`scale_gradient`, because `torch.compile(vmap(...))` drops the backward of a custom
`autograd.Function` without a word (seen with torch 2.13 on CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.errors import ConfigError
from sweeper.scaling.spec import ScaledOp

if TYPE_CHECKING:
    from sweeper.models.fp8 import Formats, Scaling


def scale_gradient(x: Tensor, factor: Tensor) -> Tensor:
    """`x` itself going forward; its gradient times `factor` going backward. Any shape."""
    # value + factor * (x - value): the difference is 0, its gradient is factor.
    value, factor = x.detach(), factor.to(x.dtype)
    if torch.compiler.is_compiling():
        # The compiler takes lerp (torch 2.13) or addcmul (2.11) apart into so many operations that
        # it breaks kernels up.
        return value + (x - value) * factor
    return torch.lerp(value, x, factor)


def scale_forward(x: Tensor, factor: Tensor) -> Tensor:
    """`factor * x` going forward; the gradient passes unchanged. Any shape."""
    value = x.detach()
    return torch.addcmul(x - value, value, factor.to(x.dtype))


def tokens_in(x: Tensor) -> int:
    """How many vectors `x` [..., features] holds: all of its dimensions but the last."""
    return x.numel() // x.shape[-1]


def check_sizes(**sizes: int) -> None:
    """ConfigError for a size below 1, by the name of the model's argument."""
    for key, value in sizes.items():
        if value < 1:
            raise ConfigError(key, value, "at least 1")


def check_heads(width: int, head_size: int, *, rotary: bool = False) -> None:
    """ConfigError for a width that heads of this size do not divide, or an odd size of them."""
    if rotary and head_size % 2:
        raise ConfigError("head_size", head_size, "an even number (rotary embedding)")
    if width % head_size:
        raise ConfigError("width", width, f"a multiple of head_size, which is {head_size}")


class ScaledModule(nn.Module):
    """A block with scalar buffers `scales`, all 1 at first, and at most one `ScaledOp`."""

    scales: tuple[str, ...] = ()

    def __init__(self, *, unit: bool = False) -> None:
        """`unit`: use the backward scales of unit scaling."""
        super().__init__()
        self.unit = unit
        for name in self.scales:
            self.register_buffer(name, torch.ones(()), persistent=False)

    def scale_op(self, name: str) -> ScaledOp | None:
        """What a parameterization may scale here beside weights; None when there is nothing."""
        return None


class Linear(ScaledModule):
    """`multiplier * W x`, without bias; W is [out_features, in_features].

    With `unit`, the weight's gradient is divided by the root of the number of tokens in place
    of its multiplication (u-muP paper, A.4). With `unit` and `readout`, the gradient to x
    carries `backward_multiplier` in place of `multiplier`. `formats` compute the product in
    simulated FP8 (see `fp8.py`). `parts` equal blocks of rows are matrices of their own, fused.
    """

    multiplier: Tensor
    backward_multiplier: Tensor
    formats: Formats | None = None
    scaling: Scaling = "none"
    peaks: Tensor
    scales = ("multiplier",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        unit: bool = False,
        readout: bool = False,
        parts: int = 1,
    ) -> None:
        """Shapes as in `nn.Linear`; `readout` for the last layer."""
        super().__init__(unit=unit)
        self.has_backward_multiplier = unit and readout
        if self.has_backward_multiplier:
            self.register_buffer("backward_multiplier", torch.ones(()), persistent=False)
        self.in_features, self.out_features = in_features, out_features
        self.parts = parts
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        weight: Tensor = self.weight
        if self.unit:
            # dL/dW = multiplier * sum over tokens of g x^T: of T terms of order 1 the root of T.
            weight = scale_gradient(weight, 1 / (sqrt(tokens_in(x)) * self.multiplier))
        if self.has_backward_multiplier:
            # The product below brings `multiplier` along, which is taken out here.
            x = scale_gradient(x, self.backward_multiplier / self.multiplier)
        if self.formats is not None:
            return self.formats.product(x, weight, self)
        return F.linear(x, weight) * self.multiplier


class Projection(Linear):
    """A `Linear` for the model's inputs, with `unit` divided by the root of their number.

    Unit scaling gives every weight an init std of 1; a sum over inputs of order 1 then needs the
    root, which no width changes and which the weight's gradient is spared. All others draw weights
    that are summed over with a std of fan-in^-1/2: there it is a `Linear`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        y = super().forward(x)
        if not self.unit:
            return y
        return scale_forward(y, torch.full_like(self.multiplier, self.in_features**-0.5))


class Embedding(ScaledModule):
    """`multiplier * W[token]`; W is [classes, width]."""

    multiplier: Tensor
    scales = ("multiplier",)

    def __init__(self, classes: int, width: int, *, unit: bool = False) -> None:
        super().__init__(unit=unit)
        self.num_embeddings, self.embedding_dim = classes, width
        self.weight = nn.Parameter(torch.empty(classes, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """[...] integers -> [..., width]."""
        weight: Tensor = self.weight
        if self.unit:
            # A row gets the gradients of the tokens / rows places where its word stands, on
            # average, and their sum has the root of that.
            rows = sqrt(self.num_embeddings / tokens.numel())
            weight = scale_gradient(weight, rows / self.multiplier)
        return F.embedding(tokens, weight) * self.multiplier


class RMSNorm(nn.Module):
    """Division by the root mean square of the last dimension; a gain only if asked for.

    With `unit`, the gain's gradient, a sum over the tokens, is divided by the root of their number.
    """

    def __init__(
        self, width: int, *, gain: bool = False, unit: bool = False, eps: float = 1e-5
    ) -> None:
        """`gain=True` adds a trainable vector [width] that starts at 1."""
        super().__init__()
        self.width, self.eps, self.unit = width, eps, unit
        self.gain = nn.Parameter(torch.ones(width)) if gain else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same shape, RMS 1."""
        gain: Tensor | None = self.gain
        if gain is not None and self.unit:
            root = torch.full((), tokens_in(x) ** -0.5, dtype=gain.dtype, device=gain.device)
            gain = scale_gradient(gain, root)
        return F.rms_norm(x, (self.width,), gain, self.eps)


class Dropout(nn.Module):
    """In training every entry is 0 with probability `p`, the others are divided by 1 - p.

    vmap takes no random numbers of a generator. Here they are a function of the buffer `seed`,
    which the engine sets at every step for each trial by its seed, of the module's `place` in the
    model, and of the entry's: the same masks in a batch, alone and compiled. Elsewhere (`place` is
    None) it is torch's dropout.
    """

    seed: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.place: int | None = None
        self.register_buffer("seed", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same. Without memory, where models are read, `x` itself."""
        if not self.training or x.is_meta:
            return x
        if self.place is None:
            return F.dropout(x, self.p)
        entries = torch.arange(x.numel(), device=x.device).view(x.shape)
        key = _mixed(_mixed((self.seed >> 32) + self.place) + self.seed)
        # The key is added to what the entries are mixed to: added to or combined with their
        # numbers, it would give other steps the same mask in another order.
        draws = _mixed(_mixed(entries) + key)
        return torch.where(draws >= round(self.p * 2**32), x / (1 - self.p), 0.0)


def dropout_of(p: float, key: str = "dropout") -> Dropout | None:
    """A `Dropout`, or None for p = 0; ConfigError, by the model's argument `key`, beyond [0, 1)."""
    if not 0 <= p < 1:
        raise ConfigError(key, p, "the share of entries that is dropped, at least 0 and below 1")
    return Dropout(p) if p else None


def dropped(module: Dropout | None, x: Tensor) -> Tensor:
    """What `module` makes of x; x itself without one."""
    return x if module is None else module(x)


def _mixed(x: Tensor) -> Tensor:
    """The low 32 bits of `x`, int64, mixed so that neighbours have nothing in common.

    The constants are those of Chris Wellons's lowbias32. On tensors of int64, whose products keep
    their low bits when they overflow.
    """
    low = 0xFFFFFFFF
    x = x & low
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & low
    x = ((x ^ (x >> 15)) * 0x846CA68B) & low
    return x ^ (x >> 16)


class Attention(ScaledModule):
    """Dot-product attention without weights: `output * softmax(logit * q k^T) v`.

    With `dropout` a share of the softmax's entries is dropped in training, and the fused kernel,
    whose random numbers vmap does not take, is written out.
    """

    logit: Tensor
    output: Tensor
    scales = ("logit", "output")

    def __init__(
        self,
        head_size: int,
        seq_len: int,
        *,
        causal: bool,
        unit: bool = False,
        dropout: Dropout | None = None,
    ) -> None:
        """`seq_len` is the length trained at: unit scaling depends on it."""
        super().__init__(unit=unit)
        self.dropout = dropout
        self.geometry: dict[str, Any] = {
            "head_size": head_size,
            "seq_len": seq_len,
            "causal": causal,
        }

    def scale_op(self, name: str) -> ScaledOp:
        """An "attention"."""
        return ScaledOp(name=name, kind="attention", geometry=self.geometry)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Three of [batch, heads, seq, head_size] -> the same shape."""
        if self.unit:
            # u-muP scales three gradients in place of the output's one (Table 4), so the output is
            # scaled going forward alone.
            q, k, v = (scale_gradient(t, self.output) for t in (q, k, v))
        causal = bool(self.geometry["causal"])
        if self.dropout is not None and self.training:
            logits = (q * self.logit) @ k.mT
            if causal:
                later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
                logits = torch.where(later, -torch.inf, logits)
            out = self.dropout(logits.softmax(-1)).to(v.dtype) @ v
        else:
            # On q rather than as `scale`: that takes one number, and every trial has its own.
            out = F.scaled_dot_product_attention(q * self.logit, k, v, is_causal=causal, scale=1.0)
        return scale_forward(out, self.output) if self.unit else out


class GatedSiLU(ScaledModule):
    """`output * x * gate * sigmoid(alpha * gate)`."""

    alpha: Tensor
    output: Tensor
    scales = ("alpha", "output")

    def scale_op(self, name: str) -> ScaledOp:
        """A "gated_silu"."""
        return ScaledOp(name=name, kind="gated_silu", geometry={})

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Two of the same shape -> that shape."""
        if not self.unit:
            return x * gate * torch.sigmoid(self.alpha * gate)
        x, gate = (scale_gradient(t, self.output) for t in (x, gate))
        return scale_forward(x * gate * torch.sigmoid(self.alpha * gate), self.output)


class Activation(nn.Module):
    """`gain * f(x)`, f being "relu" or "gelu", with one gain forward and backward.

    With `unit` the gain brings a normal input, and the gradient, to RMS 1: for ReLU both by
    sqrt 2 (He initialization in the activation's place); for GELU the geometric mean of
    E[f(x)^2]^-1/2 = 1.5335 and E[f'(x)^2]^-1/2 = 1.4812. Otherwise it is 1.
    """

    FUNCTIONS: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {"relu": F.relu, "gelu": F.gelu}
    GAINS: ClassVar[dict[str, float]] = {"relu": sqrt(2), "gelu": 1.5071}

    def __init__(self, name: str, *, unit: bool) -> None:
        super().__init__()
        self.function, self.gain = self.FUNCTIONS[name], self.GAINS[name] if unit else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return self.function(x) * self.gain


class Residual(ScaledModule):
    """`branch * f(x) + skip * x`; with `unit`, f's gradient is scaled where the branch begins.

    `dropout` is the share of the entries of f(x) that is dropped in training.
    """

    branch: Tensor
    skip: Tensor
    scales = ("branch", "skip")

    def __init__(
        self,
        index: int,
        branches: int,
        base_branches: int,
        *,
        unit: bool = False,
        attentions: int = 1,
        dropout: float = 0.0,
    ) -> None:
        """Branch `index` (1 .. `branches`): each layer has `attentions`, then feed-forward."""
        super().__init__(unit=unit)
        self.geometry = {"branch": index, "branches": branches, "base_branches": base_branches}
        if attentions != 1:
            self.geometry["attentions"] = attentions
        self.dropout = dropout_of(dropout)

    def scale_op(self, name: str) -> ScaledOp:
        """A "residual"."""
        return ScaledOp(name=name, kind="residual", geometry=self.geometry)

    # The chain rule multiplies by `branch` once, wherever on the branch that happens. Going
    # backward u-muP does it where the branch begins, so that all gradients within are of order 1.
    def split(self, x: Tensor) -> Tensor:
        """The input of the branch f."""
        return scale_gradient(x, self.branch) if self.unit else x

    def add(self, branch: Tensor, x: Tensor) -> Tensor:
        """The branch's output joined with the stream x."""
        branch = dropped(self.dropout, branch)
        scaled = scale_forward(branch, self.branch) if self.unit else branch * self.branch
        return scaled + self.skip * x


class CrossEntropy(ScaledModule):
    """Mean cross entropy in nats of `logit * logits`.

    With `unit`, the gradient to the logits is that of the sum, times V/sqrt(V-1). In training a
    share `smoothing` of every target is spread evenly over all classes (Szegedy et al., 2015); a
    held-out loss is that of the targets themselves.
    """

    logit: Tensor
    scales = ("logit",)

    def __init__(self, classes: int, *, unit: bool = False, smoothing: float = 0.0) -> None:
        """`classes` is the size V of the last dimension; ConfigError: `label_smoothing`."""
        super().__init__(unit=unit)
        if not 0 <= smoothing < 1:
            allowed = "the share of a target that all classes have, at least 0 and below 1"
            raise ConfigError("label_smoothing", smoothing, allowed)
        self.classes, self.smoothing = classes, smoothing

    def scale_op(self, name: str) -> ScaledOp:
        """A "loss"."""
        return ScaledOp(name=name, kind="loss", geometry={"classes": self.classes})

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """[..., V], [...] integers or [..., V] shares -> a scalar, in float32 at least."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        smoothing = self.smoothing if self.training else 0.0
        if self.unit:
            # At first all classes are as likely: p - onehot has V - 1 entries of 1/V and one of
            # 1/V - 1, the mean square (V - 1) / V^2. The mean over tokens is taken out as well.
            gradient = logits.numel() / sqrt(self.classes - 1)
            # Against smoothed targets it is p - (1 - s) onehot - s/V = (1 - s) (p - onehot).
            gradient = gradient / (1 - smoothing)
            logits = scale_gradient(logits, torch.full_like(self.logit, gradient))
            logits = scale_forward(logits, self.logit)
        else:
            logits = logits * self.logit
        if shares := targets.is_floating_point():
            targets = targets.to(logits.dtype)
        logits, targets = logits.flatten(0, -2), targets.flatten(0, -2 if shares else -1)
        if not torch.compiler.is_compiling():
            return F.cross_entropy(logits, targets, label_smoothing=smoothing)
        # Compiled, the gradient of `F.cross_entropy` is scattered into zeros and read again, all in
        # float32. A comparison with every class is part of the kernels that there are anyway.
        shifted = logits - logits.detach().amax(-1, keepdim=True)
        if shares:
            at_target = (targets * shifted).sum(-1)
        else:
            is_target = torch.arange(self.classes, device=logits.device) == targets[:, None]
            at_target = torch.where(is_target, shifted, 0.0).sum(-1)
        if smoothing:
            at_target = (1 - smoothing) * at_target + smoothing * shifted.mean(-1)
        return (shifted.exp().sum(-1).log() - at_target).mean()
