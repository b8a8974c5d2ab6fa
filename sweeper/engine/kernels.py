"""Kernels of a Vision Transformer as they are drawn: G, F and the tangent kernel of every block.

The effective theory's (arXiv:2304.02034) are averages over neurons: G is E[z_1 z_2] of what a
block returns for two tokens, F the same after the norm, and Theta, the tangent kernel (1.96), is
the sum over all parameters of lambda dz_1 dz_2. `check/recursion.py` has what the theory says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from sweeper.classifier.running import hooked
from sweeper.data.corpus import Corpus
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.program import Stacked, quiet_attention
from sweeper.errors import ConfigError
from sweeper.launch.job import UNCONTROLLED, Control
from sweeper.models.vit import ViT, normalized, patches
from sweeper.registry import TARGET
from sweeper.scaling.spec import ParamSpec, Update
from sweeper.trial import PlainHps, Trial

Kernel = NDArray[np.float64]
"""[points, points]: of all tokens of all images."""
IMAGES = 2
DIRECTIONS = 32
"""Random steps of the parameters that a tangent kernel is averaged over, beside its neurons."""
PAIRS = ("same", "token", "image")
"""A token with itself, with another of its image, with one of another image."""


@dataclass(frozen=True, kw_only=True)
class BlockKernels:
    """One block's kernels, each the mean over the `PAIRS`; what there is none of is empty.

    A pooled head has no tokens: its pairs are those of "same" and "image".
    """

    name: str
    preactivation: tuple[float, ...]
    normalized: tuple[float, ...]
    tangent: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Weight:
    """C of the variance C / fan-in, and the rate lambda, of `multiplier * W` as a whole."""

    constant: float
    rate: float
    fan_in: int


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One residual block, skip * z + branch * r, and its weights in the order of the product.

    `logit` is what attention's q k^T are multiplied by, over 1 / sqrt(head size); of a
    feed-forward block it is 0.
    """

    name: str
    branch: float
    skip: float
    weights: tuple[Weight, ...]
    logit: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DrawnNetwork:
    """What the theory's recursions begin with: the inputs' kernel (1.40), and every constant.

    `inputs` are of all tokens of `IMAGES` images, one after the other.
    """

    inputs: tuple[tuple[float, ...], ...]
    tokens: int
    patch: Weight
    position: Weight
    branches: tuple[Branch, ...]
    head: Weight
    bias_rate: float


@dataclass(frozen=True, kw_only=True)
class KernelMeasurement:
    """A draw's kernels, block by block from the stem to the head."""

    network: DrawnNetwork
    blocks: tuple[BlockKernels, ...]


class _Gradients:
    """SGD without anything else: the update that the tangent kernel is defined by (1.88)."""

    eps, weight_decay = 1.0, 0.0

    def kind(self, spec: ParamSpec) -> Update:
        return Update.GRADIENT


def measure_kernels(
    trial: Trial, corpus: Corpus, device: str = "cpu", control: Control = UNCONTROLLED
) -> KernelMeasurement:
    """The kernels of a trial's initial weights on the first images of its first batch.

    ConfigError where its model is no `ViT`, or is unit-scaled: the recursions are not of it.
    """
    run = BatchedRun(BatchedTrials(trials=(trial,), corpus=corpus), device)
    model = run.program.model
    try:
        if not isinstance(model, ViT) or model.unit:
            allowed = "model=vit without unit scaling: the recursions are of that architecture"
            raise ConfigError(f"model.{TARGET}", run.prepared.spec.model.name, allowed)
        # The same images for every seed: draws of weights alone differ.
        inputs, _ = corpus.batch(0, 0, IMAGES, run.prepared.train.seq_len)
        x = torch.from_numpy(inputs).to(run.device, run.dtype)
        params = {name: value[0].detach() for name, value in run.params.items()}
        buffers = {name: value[0] for name, value in run.buffers.items()}
        sgd = replace(run.prepared, optimizer=_Gradients())  # type: ignore[arg-type]
        hps = PlainHps({**trial.hps, "eta": 1.0})  # rates are lambda alone
        absorbed, scales = sgd.trained_with(hps), sgd.buffers(hps)
        rates = {name: absorbed[name].lr for name in params}
        control.leave_if_asked()
        model.eval()
        # The fused kernels have no derivative forward.
        with quiet_attention(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            # torch's own rules of derivatives forward are scripts.
            warnings.filterwarnings(
                "ignore", message=".*torch.jit.script", category=DeprecationWarning
            )
            blocks = tuple(_blocks(model, x, params, buffers, rates, trial.seed))

        def weight(name: str, fan_in: int) -> Weight:
            multiplier = scales.get(f"{name.removesuffix('.weight')}.multiplier", 1.0)
            spread, rate = multiplier * absorbed[name].init_std, multiplier**2 * rates[name]
            return Weight(constant=spread**2 * fan_in, rate=rate, fan_in=fan_in)

        pixels = patches(x, model.patch_size).flatten(0, 1).double()
        network = DrawnNetwork(
            inputs=tuple(map(tuple, (pixels @ pixels.T / pixels.shape[1]).tolist())),
            tokens=model.tokens,
            patch=weight("patch.weight", pixels.shape[1]),
            position=weight("position.weight", 1),
            branches=tuple(_branches(model, scales, weight)),
            head=weight("head.weight", model.width),
            bias_rate=rates.get("head_bias", 0.0),
        )
        return KernelMeasurement(network=network, blocks=blocks)
    finally:
        run.program.release()


def _branches(
    model: ViT, scales: Mapping[str, float], weight: Callable[[str, int], Weight]
) -> Iterator[Branch]:
    for index in range(model.depth):
        layer = f"layers.{index}"
        logit = scales.get(f"{layer}.attention.core.logit", 1.0) * sqrt(model.head_size)
        inner = model.ffn_ratio * model.width
        for kind, first, second, fan_in in (
            ("attention", "qkv", "out", model.width),
            ("ffn", "up", "down", inner),
        ):
            name = f"{layer}.{kind}"
            yield Branch(
                name=name,
                branch=scales.get(f"{name}_residual.branch", 1.0),
                skip=scales.get(f"{name}_residual.skip", 1.0),
                weights=(
                    weight(f"{name}.{first}.weight", model.width),
                    weight(f"{name}.{second}.weight", fan_in),
                ),
                logit=logit * (kind == "attention"),
            )


def _blocks(
    model: ViT,
    x: Tensor,
    params: Stacked,
    buffers: Stacked,
    rates: Mapping[str, float],
    seed: int,
) -> Iterator[BlockKernels]:
    """What every block returns for the tokens of `x` [images, ...], as averages over neurons."""
    names = [f"layers.{i}{part}" for i in range(model.depth) for part in ("", ".attention")]
    modules = [(name, model.get_submodule(name)) for name in names]

    def outputs(weights: Stacked) -> dict[str, Tensor]:
        """Preactivations [points, neurons] by block; the head's points are images."""
        seen, branches = dict[str, Tensor](), dict[str, Tensor]()

        def leave(name: str, module: Any, args: Any, _kwargs: Any, out: Tensor) -> None:
            if name.endswith(".attention"):
                branches[name] = out
                return
            # What attention is added to has no module that returns it.
            seen.setdefault("stem", args[0].flatten(0, 1))
            middle = module.attention_residual.add(branches[f"{name}.attention"], args[0])
            seen[f"{name}.attention"] = middle.flatten(0, 1)
            seen[f"{name}.ffn"] = out.flatten(0, 1)

        with hooked(modules, leave=leave):
            seen["head"] = functional_call(model, {**weights, **buffers}, (x,))
        return seen

    generator = torch.Generator().manual_seed(seed)
    totals: dict[str, Kernel] = {}
    for _ in range(DIRECTIONS):
        # A step of variance lambda in every weight moves z by J step, and E[dz_1 dz_2] over steps
        # is the sum of lambda dz_1 dz_2: one derivative forward gives all blocks and tokens.
        step = {
            name: torch.randn(value.shape, generator=generator, dtype=value.dtype).to(value.device)
            * sqrt(rates[name])
            for name, value in params.items()
        }
        drawn, moved = jvp(outputs, (params,), (step,))[:2]
        for name, change in moved.items():
            totals[name] = totals.get(name, 0.0) + _kernel(change) / DIRECTIONS
    for name, z in drawn.items():
        tokens = 1 if name == "head" else model.tokens
        after = () if name == "head" else means(_kernel(normalized(z)), tokens)
        yield BlockKernels(
            name=name,
            preactivation=means(_kernel(z), tokens),
            normalized=after,
            tangent=means(totals[name], tokens),
        )


def _kernel(z: Tensor) -> Kernel:
    """The mean over neurons of z_1 z_2 [points, points], of z [points, neurons]."""
    z = z.detach().double()
    kernel: Kernel = (z @ z.T / z.shape[1]).cpu().numpy()
    return kernel


def means(kernel: Kernel, tokens: int) -> tuple[float, ...]:
    """The means of a kernel [points, points] over the `PAIRS`, images having `tokens` points."""
    points = np.arange(len(kernel))
    same = np.equal.outer(points, points)
    image = np.equal.outer(points // tokens, points // tokens)
    masks = [same, image & ~same, ~image]
    return tuple(float(kernel[mask].mean()) for mask in masks if mask.any())
