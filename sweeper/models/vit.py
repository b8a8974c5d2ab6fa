"""A Vision Transformer (papers/effective-theory-transformers.txt, sec. I 0 and II 1).

Patches and learned positions, bias-free blocks, layer norms without gains, mean pooling.
"""

from __future__ import annotations

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.errors import ConfigError
from sweeper.models.fp8 import Fp8
from sweeper.models.scaled import (
    Activation,
    Attention,
    CrossEntropy,
    Embedding,
    Linear,
    Projection,
    Residual,
    check_heads,
    check_sizes,
    dropout_of,
    dropped,
    scale_gradient,
)


def normalized(x: Tensor) -> Tensor:
    """Layer norm over the last dimension, its gains fixed at 1 and biases at 0 (eq. 1.11)."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


class FeedForward(nn.Module):
    """`down(gelu(up(x)))`."""

    def __init__(self, width: int, hidden: int, *, unit: bool) -> None:
        super().__init__()
        self.up = Linear(width, hidden, unit=unit)
        self.act = Activation("gelu", unit=unit)
        self.down = Linear(hidden, width, unit=unit)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same shape."""
        out: Tensor = self.down(self.act(self.up(x)))
        return out


def patches(images: Tensor, size: int) -> Tensor:
    """[batch, (channels,) height, width] -> [batch, tokens, channels * size * size]."""
    x = images if images.dim() == 4 else images[:, None]
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height // size, size, width // size, size)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


class SelfAttention(nn.Module):
    """Multi-head attention in both directions (eq. 1.12)."""

    def __init__(
        self, width: int, head_size: int, tokens: int, *, unit: bool, dropout: float = 0.0
    ) -> None:
        """`width // head_size` heads; `tokens` is the number of patches; dropout of the softmax."""
        super().__init__()
        self.head_size = head_size
        self.qkv = Linear(width, 3 * width, unit=unit, parts=3)
        drop = dropout_of(dropout, "attention_dropout")
        self.core = Attention(head_size, tokens, causal=False, unit=unit, dropout=drop)
        self.out = Linear(width, width, unit=unit)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, width] -> the same shape."""
        shape = (*x.shape[:2], -1, self.head_size)
        q, k, v = (t.reshape(shape).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        out: Tensor = self.out(self.core(q, k, v).transpose(1, 2).reshape(x.shape))
        return out


class EncoderBlock(nn.Module):
    """One layer: two residual branches, attention then feed-forward."""

    def __init__(self, index: int, model: ViT) -> None:
        super().__init__()
        unit, branches, base = model.unit, 2 * model.depth, 2 * model.base_depth
        drop = model.dropout
        self.attention = SelfAttention(
            model.width, model.head_size, model.tokens, unit=unit, dropout=model.attention_dropout
        )
        self.attention_residual = Residual(2 * index + 1, branches, base, unit=unit, dropout=drop)
        hidden = model.ffn_ratio * model.width
        self.ffn = FeedForward(model.width, hidden, unit=unit)
        self.ffn_residual = Residual(2 * index + 2, branches, base, unit=unit, dropout=drop)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, width] -> the same shape."""
        y = self.attention(normalized(self.attention_residual.split(x)))
        x = self.attention_residual.add(y, x)
        y = self.ffn(normalized(self.ffn_residual.split(x)))
        return self.ffn_residual.add(y, x)


class ViT(nn.Module):
    """Classifier of images of any width and depth.

    `patch_size` must divide height and width of the images, `head_size` the model's width.
    `head_bias` adds a trainable bias, 0 at first, to the logits, as the paper has it. In training
    `dropout` is the share of dropped entries of the embedded patches and of the branches' outputs,
    `attention_dropout` that of attention's weights, `label_smoothing` see `CrossEntropy`.
    `base_depth` and `unit` as in every model: given by the parameterization's side.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        classes: int,
        input_shape: tuple[int, ...],
        patch_size: int = 4,
        head_size: int = 16,
        ffn_ratio: int = 4,
        head_bias: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        label_smoothing: float = 0.0,
        base_depth: int | None = None,
        unit: bool = False,
        fp8: Fp8 | None = None,
    ) -> None:
        """The parameterization draws all parameters; ConfigError names a size that is off."""
        super().__init__()
        check_sizes(width=width, depth=depth, patch_size=patch_size)
        check_sizes(head_size=head_size, ffn_ratio=ffn_ratio)
        check_heads(width, head_size)
        if len(input_shape) not in (2, 3):
            allowed = "images: [channels,] height, width"
            raise ConfigError("input_shape", list(input_shape), allowed)
        *channels, high, wide = input_shape
        if high % patch_size or wide % patch_size:
            allowed = f"a divisor of the images' sides, {high} x {wide}"
            raise ConfigError("patch_size", patch_size, allowed)
        self.width, self.depth, self.head_size, self.ffn_ratio = width, depth, head_size, ffn_ratio
        self.input_shape = tuple(input_shape)
        self.patch_size, self.unit, self.base_depth = patch_size, unit, base_depth or depth
        self.dropout, self.attention_dropout = dropout, attention_dropout
        self.fp8 = fp8 or Fp8()
        self.tokens = (high // patch_size) * (wide // patch_size)
        entries = patch_size**2 * (channels or [1])[0]
        self.patch = Projection(entries, width, unit=unit)
        self.position = Embedding(self.tokens, width, unit=unit)
        self.embedding_dropout = dropout_of(dropout)
        self.layers = nn.ModuleList(EncoderBlock(i, self) for i in range(depth))
        self.head = Linear(width, classes, unit=unit, readout=True)
        self.head_bias = nn.Parameter(torch.zeros(classes)) if head_bias else None
        self.loss = CrossEntropy(classes, unit=unit, smoothing=label_smoothing)
        self.fp8.apply_to(self)

    def embedded(self, images: Tensor) -> Tensor:
        """Patches and positions added [batch, tokens, width]; with `unit`, to RMS 1."""
        x: Tensor = self.patch(patches(images, self.patch_size))
        index = torch.arange(self.tokens, device=images.device).expand(x.shape[0], -1)
        x = x + self.position(index)
        return x / sqrt(2) if self.unit else x  # two terms of variance 1

    def forward(self, images: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits [batch, classes] of `images` [batch, ...]; with `targets` [batch], the loss."""
        x = dropped(self.embedding_dropout, self.embedded(images))
        for layer in self.layers:
            x = layer(x)
        x = normalized(x)
        if self.unit:
            # The mean leaves each token 1/T of the gradient, the same for all: the weights, which
            # are divided by root T as if it were independent, then have gradients of order 1.
            x = scale_gradient(x, torch.full_like(self.loss.logit, sqrt(self.tokens)))
        out: Tensor = self.head(x.mean(1))
        if self.head_bias is not None:
            bias: Tensor = self.head_bias
            if self.unit:
                # Its gradient is a sum over the images, of order 1 each.
                bias = scale_gradient(bias, torch.full_like(self.loss.logit, len(images) ** -0.5))
            out = out + bias
        if targets is not None:
            out = self.loss(out, targets)
        return out
