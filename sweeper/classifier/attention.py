"""See the attention of a plain model while it runs: the size of its heads, and its own scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sweeper.scaling.spec import layer_of, with_layer

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


# Modules of a plain model that seem to do what a parameterization scales, and what is said of them.


ADDITIONS: tuple[object, ...] = (
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
    *(Tensor.add_, Tensor.__iadd__),
)
TABLES = (nn.Embedding, nn.EmbeddingBag)
"""Their outputs are added to make the residual stream: words and positions."""
UNSCALED = {
    "attention": "attention in {} keeps the factor on q k^T of the model's own code. That is right "
    "where heads have one size at all widths; where they grow, divide by their size, not by its "
    "root. F.scaled_dot_product_attention without a scale would get the parameterization's factor",
    "residual": "{} seems to be a residual branch; the factors on branches are applied to "
    "those that are named alone: model.branches=[{}]",
    "gated_silu": "{} has a SiLU whose factors in the parameterization are not applied",
}
"""What to know of an operation that a parameterization would scale, by the modules that have it."""


class Hints(AttentionWatch):
    """Names of modules, by the kind of operation that they seem to have, while the model runs.

    "attention" as `AttentionWatch` sees it, whoever scales it; "gated_silu" where SiLU is called;
    "residual": modules of layers whose output is added to a tensor of the same shape.
    """

    def __init__(self) -> None:
        """Nothing is seen yet."""
        super().__init__()
        self.found: dict[str, dict[str, None]] = {}
        self._stack: list[str] = []
        self._outputs: dict[int, tuple[str, Tensor]] = {}

    def names(self) -> dict[str, tuple[str, ...]]:
        """By kind, names of the modules with `*` for their layer."""
        return {kind: tuple(names) for kind, names in self.found.items()}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`, and note what it was."""
        result = super().__torch_function__(func, types, args, kwargs)
        if func is F.silu:
            self._note("gated_silu", self._running())
        elif func in ADDITIONS and len(args) > 1:
            self._note_sum(args[0], args[1])
        return result

    def _saw(self, seen: SeenAttention) -> None:
        super()._saw(seen)
        self._note("attention", self._running())

    def _note_sum(self, *terms: object) -> None:
        both = [
            one for one in terms if isinstance(one, Tensor) and not isinstance(one, nn.Parameter)
        ]
        if len(both) < 2 or both[0].shape != both[1].shape:
            return
        made = [name for one in both if (name := self._outputs.get(id(one), ("",))[0])]
        # What a block gets, the stream, was made outside of the module that adds to it.
        within = f"{self._running()}." if self._running() else ""
        branches = [name for name in made if name.startswith(within)]
        if branches and layer_of(branches[-1]) is not None:
            self._note("residual", branches[-1])

    def _note(self, kind: str, name: str) -> None:
        self.found.setdefault(kind, {})[with_layer(name, "*")] = None

    def _running(self) -> str:
        return self._stack[-1] if self._stack else ""

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Within, the calls of `model` are watched."""
        hooks = []
        for name, module in model.named_modules():
            # Bound now: a closure over the loop's name would see the last one.
            def enter(_m: nn.Module, _args: Any, name: str = name) -> None:
                self._stack.append(name)

            def leave(module: nn.Module, _args: Any, out: Any) -> None:
                name = self._stack.pop()
                first = out[0] if isinstance(out, tuple) and out else out
                if isinstance(first, Tensor) and not isinstance(module, TABLES):
                    # With the tensor, whose id would soon be another's if it were freed.
                    self._outputs[id(first)] = (name, first)

            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave))
        try:
            with self:
                yield
        finally:
            self._outputs.clear()
            for hook in hooks:
                hook.remove()


def unscaled_notes(kinds: Iterable[str], found: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A note a kind of operation that modules of the model seem to have and that is not scaled."""
    for kind in kinds:
        if names := found.get(kind):
            patterns = ",".join(f'"{name}"' for name in names)
            yield UNSCALED[kind].format(", ".join(name or "the model" for name in names), patterns)
