"""What the effective theory says of a Transformer's kernels, block by block, at infinite width.

Dinan, Yaida and Zhang, arXiv:2304.02034: G by (1.41), (1.65), (1.77) and (1.81), F by (1.53), and
the tangent kernel by (1.98) with the gradients of (1.122), (1.151)-(1.154), (1.161)-(1.163),
(1.168)-(1.173), (1.178)-(1.182). All that multiplies in a model is part of the constants, so that
the recursions are those of any parameterization without unit scaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from sweeper.engine.kernels import (
    BlockKernels,
    Branch,
    DrawnNetwork,
    Kernel,
    KernelMeasurement,
    means,
)
from sweeper.stats.estimate import Estimate, mean_estimate

EPS = 1e-6
DRAWS = 4000
"""Attention is an average over draws of its logits: of a few points exact to one percent."""


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """A kernel of a block over one of the `PAIRS`: as it was drawn, and what the theory says."""

    block: str
    kernel: str
    pair: str
    measured: Estimate
    theory: float


def kernel_rows(measurements: Sequence[KernelMeasurement]) -> list[KernelRow]:
    """Every block's kernels over draws of the same network, beside the recursions."""
    theory = recursions(measurements[0].network)
    rows = []
    for index, expected in enumerate(theory):
        for kernel in ("preactivation", "normalized", "tangent"):
            values = getattr(expected, kernel)
            # A pooled head has one point an image: no other token.
            pairs = ("same", "token", "image") if len(values) == 3 else ("same", "image")
            for place, (pair, value) in enumerate(zip(pairs, values, strict=False)):
                drawn = [getattr(run.blocks[index], kernel)[place] for run in measurements]
                rows.append(
                    KernelRow(
                        block=expected.name,
                        kernel=kernel,
                        pair=pair,
                        measured=mean_estimate(np.array(drawn)),
                        theory=value,
                    )
                )
    return rows


def recursions(network: DrawnNetwork) -> list[BlockKernels]:
    """The kernels of every block, from the stem to the head."""
    inputs, tokens = np.array(network.inputs), network.tokens
    points = np.arange(len(inputs))
    place = np.equal.outer(points % tokens, points % tokens).astype(float)
    patch, position = network.patch, network.position
    g = patch.constant * inputs + position.constant * place
    tangent = patch.rate * patch.fan_in * inputs + position.rate * place
    blocks = [_block("stem", g, tangent, tokens)]
    for branch in network.branches:
        residual, of_weights, hand_on = (_attention if branch.logit else _feed_forward)(
            branch, normalized(g, g), normalized(tangent, g), tokens
        )
        share, skip = branch.branch**2, branch.skip**2
        g = skip * g + share * residual
        tangent = skip * tangent + share * (of_weights + hand_on)
        blocks.append(_block(branch.name, g, tangent, tokens))
    f, head = normalized(g, g), network.head
    pooled = head.rate * head.fan_in * f + head.constant * normalized(tangent, g)
    tangent = _pooled(pooled, tokens) + network.bias_rate
    blocks.append(_block("head", head.constant * _pooled(f, tokens), tangent, 1))
    return blocks


def normalized(kernel: Kernel, g: Kernel) -> Kernel:
    """A kernel behind the norm of what has the kernel G: F of G (1.53), the tangent's (1.139)."""
    root = np.sqrt(np.diag(g) + EPS)
    behind: Kernel = kernel / np.outer(root, root)
    return behind


def _attention(
    branch: Branch, f: Kernel, tangent: Kernel, tokens: int
) -> tuple[Kernel, Kernel, Kernel]:
    """A branch's output kernel, the tangent of its weights, and what it hands on."""
    qkv, out = branch.weights
    mixed = np.zeros((4, *f.shape))
    chunk = max(1, 200_000 // f.size)
    root = _root(f) * sqrt(branch.logit * qkv.constant)  # of C_Q C_K: q and k are of one matrix
    points = np.arange(len(f))
    other = ~np.equal.outer(points // tokens, points // tokens)
    generator = np.random.default_rng(0)
    draws = max(200, DRAWS // max(1, f.size // 256))
    for start in range(0, draws, chunk):
        # q k^T of one head: normal, with covariance C_Q C_K F_12 F_1'2' (1.61).
        z = generator.standard_normal((min(chunk, draws - start), *f.shape))
        logits = np.where(other, -np.inf, root @ z @ root)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        by = (_derivative(weights, f, kernel) for kernel in (f, tangent))
        mixed += np.stack([_mix(weights, f), _mix(weights, tangent), *by])
    values, through, by_logits, by_keys = mixed / draws
    output, logit = out.constant * qkv.constant, branch.logit**2 * qkv.constant
    # W sees what it is multiplied by: out the mixed values, v what is mixed, q and k the logits'
    # derivative times the other's projection.
    of_weights = out.rate * out.fan_in * qkv.constant * values
    of_weights += qkv.rate * qkv.fan_in * out.constant * values
    of_weights += 2 * qkv.rate * qkv.fan_in * output * logit * f * by_logits
    hand_on = output * (through + logit * qkv.constant * (tangent * by_logits + f * by_keys))
    return output * values, of_weights, hand_on


def _mix(weights: Kernel, kernel: Kernel) -> Kernel:
    """The sum over draws of W K W^T, W the softmax of each [draws, points, points]."""
    mixed: Kernel = (weights @ kernel @ weights.swapaxes(1, 2)).sum(0)
    return mixed


def _derivative(weights: Kernel, values: Kernel, keys: Kernel) -> Kernel:
    """The sum over draws of J_1[a, b] J_2[c, d] V_ac K_bd, with J[a, b] = w_a (1_ab - w_b)."""
    turned = weights.swapaxes(1, 2)
    with_values, with_keys = values @ turned, keys @ turned  # [draws, tokens, points]
    both = weights @ (values * keys) @ turned
    single = weights @ (with_values * with_keys)
    none = (weights @ with_values) * (weights @ with_keys)
    moved: Kernel = (both - single - single.swapaxes(1, 2) + none).sum(0)
    return moved


def _feed_forward(
    branch: Branch, f: Kernel, tangent: Kernel, tokens: int
) -> tuple[Kernel, Kernel, Kernel]:
    """The same of a branch down(gelu(up(s)))."""
    up, down = branch.weights
    values, slopes = gelu_averages(up.constant * f)
    of_weights = down.rate * down.fan_in * values + up.rate * up.fan_in * down.constant * slopes * f
    return down.constant * values, of_weights, down.constant * up.constant * slopes * tangent


def gelu_averages(covariance: Kernel) -> tuple[Kernel, Kernel]:
    """The averages of gelu gelu and of gelu' gelu' over pairs of normal numbers (1.74).

    The integrals are elementary: with a and b the variances and c the covariance all is in
    D = (1 + a)(1 + b) - c^2.
    """
    c, variance = covariance, np.diag(covariance)
    both, grown = np.outer(variance, variance), np.outer(1 + variance, 1 + variance)
    root = np.sqrt(grown - c**2)
    angle = np.arctan2(c, root)
    values = c / 4 + ((c**2 + both * root**2) / (grown * root) + c * angle) / (2 * np.pi)
    slopes = (1 / root**2 + (1 - both) / grown + 1) * c / root
    return values, 0.25 + (slopes + angle) / (2 * np.pi)


def _root(f: Kernel) -> Kernel:
    values, vectors = np.linalg.eigh(f)
    root: Kernel = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    return root


def _pooled(kernel: Kernel, tokens: int) -> Kernel:
    """The kernel of means over tokens (1.81)."""
    images = len(kernel) // tokens
    pooled: Kernel = kernel.reshape(images, tokens, images, tokens).mean((1, 3))
    return pooled


def _block(name: str, g: Kernel, tangent: Kernel, tokens: int) -> BlockKernels:
    return BlockKernels(
        name=name,
        preactivation=means(g, tokens),
        normalized=() if name == "head" else means(normalized(g, g), tokens),
        tangent=means(tangent, tokens),
    )
