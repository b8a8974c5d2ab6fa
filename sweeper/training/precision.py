"""The types that weights are kept and computed in, and what that asks of torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from sweeper.models.scaled import Embedding
from sweeper.training.prepare import PreparedSpec


def weights_dtype(prepared: PreparedSpec) -> torch.dtype:
    """What weights are kept in: bfloat16 and tf32 are ways of computing with float32 weights."""
    return torch.float64 if prepared.train.precision == "float64" else torch.float32


def begin_stream_in_bfloat16(model: nn.Module) -> None:
    """Have every lookup table of `model` give bfloat16, and with it the sum of what branches add.

    Under autocast alone tables give float32, and so the residual stream is float32: half of what a
    step of a small model reads and writes.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding | Embedding):
            module.register_forward_hook(lambda _module, _inputs, out: out.to(torch.bfloat16))


@contextmanager
def computing(prepared: PreparedSpec, device: torch.device) -> Iterator[None]:
    """What the precision and the device ask of torch while a pack computes."""
    with ExitStack() as stack:
        if prepared.train.precision == "tf32":
            stack.enter_context(_tf32())
        if device.type == "cuda":
            from torch.nn.attention import SDPBackend, sdpa_kernel

            # Not cuDNN's attention, which fails under a compiled map.
            kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
            stack.enter_context(sdpa_kernel(kernels))
        yield


@contextmanager
def _tf32() -> Iterator[None]:
    """Matrix products of float32 on a GPU's tensor cores."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def quiet_attention() -> Iterator[None]:
    """Without torch's warning that on a CPU attention under vmap runs trial by trial.

    At the sizes of proxies that is as fast as a batched product with an explicit softmax.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batching rule for aten::_scaled_dot_product")
        yield
