"""See the attention of a plain model while it runs: the size of its heads, and its own scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

FUSED = F.scaled_dot_product_attention
WHOLE = F.multi_head_attention_forward
PRODUCTS: tuple[object, ...] = (
    torch.matmul,
    torch.bmm,
    torch.baddbmm,
    Tensor.matmul,
    Tensor.__matmul__,
    Tensor.bmm,
    Tensor.baddbmm,
)
SOFTMAXES: tuple[object, ...] = (F.softmax, torch.softmax, Tensor.softmax)


@dataclass(frozen=True)
class SeenAttention:
    """Attention with heads of `head_size`; `scale` is the factor of q k^T if it was told.

    `seq_len` is the number of positions that were attended to, 0 where that was not seen.
    """

    head_size: int
    scale: float | None = None
    seq_len: int = 0


class AttentionWatch(TorchFunctionMode):
    """Notes the attention of every model that runs within it, on any device.

    Seen are torch's fused attention, `nn.MultiheadAttention`, and a matrix product of two
    activations whose result, of that shape, is the next that a softmax is taken of.
    """

    def __init__(self) -> None:
        """Nothing is seen yet."""
        super().__init__()
        self.seen: set[SeenAttention] = set()
        self._product: tuple[tuple[int, ...], int] | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`, and note what it was if it belongs to attention."""
        named = dict(kwargs or {})
        result = func(*args, **named)
        if func is FUSED:
            self._note_fused(*args, **named)
        elif func is WHOLE:
            self._note_whole(*args, **named)
        elif func in PRODUCTS:
            self._note_product(result, [*args, *named.values()])
        elif func in SOFTMAXES and isinstance(result, Tensor):
            self._note_softmax(tuple(result.shape))
        return result

    def _saw(self, seen: SeenAttention) -> None:
        self.seen.add(seen)

    def _note_fused(
        self, query: Tensor, key: Tensor, *_: object, scale: object = None, **__: object
    ) -> None:
        """Torch's own scale is the usual one; one that is no number is not known."""
        head_size = query.shape[-1]
        known = float(scale) if isinstance(scale, int | float) else None
        usual = head_size**-0.5 if scale is None else known
        self._saw(SeenAttention(head_size, usual, key.shape[-2]))

    def _note_whole(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embed_dim_to_check: int,
        num_heads: int,
        *_: object,
        **__: object,
    ) -> None:
        """The call that `nn.MultiheadAttention` makes, sequence first."""
        head_size = embed_dim_to_check // num_heads
        self._saw(SeenAttention(head_size, head_size**-0.5, key.shape[0]))

    def _note_product(self, result: object, operands: Sequence[object]) -> None:
        tensors = [one for one in operands if isinstance(one, Tensor)][-2:]
        weights = any(isinstance(one, nn.Parameter) for one in tensors)
        if isinstance(result, Tensor) and result.dim() > 2 and len(tensors) == 2 and not weights:
            self._product = (tuple(result.shape), tensors[0].shape[-1])

    def _note_softmax(self, shape: tuple[int, ...]) -> None:
        if self._product is not None and self._product[0][-2:] == shape[-2:]:
            self._saw(SeenAttention(self._product[1], None, shape[-1]))
        self._product = None
