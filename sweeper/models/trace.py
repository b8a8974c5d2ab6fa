"""One forward pass on the meta device, watched: what every parameter is used for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from sweeper.models.elementwise import COPIES
from sweeper.models.ledger import Activation, Call, Ledger, key
from sweeper.models.operations import rule


def tensors_of(tree: object) -> tuple[Tensor, ...]:
    """All tensors in nested lists, tuples, dicts and the outputs of models."""
    return tuple(leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation itself; in bfloat16 where its meta kernel takes nothing else."""
    if func.overloadpacket.__name__ != "_grouped_mm" or args[0].dtype is torch.bfloat16:
        return func(*args, **kwargs)
    a, b, *rest = args
    return func(a.bfloat16(), b.bfloat16(), *rest, **kwargs).to(a.dtype)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Shows every ATen operation to the rules while it is entered."""

    def __init__(self, ledger: Ledger) -> None:
        """`ledger` holds the parameters and the inputs, and gets the uses."""
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.ledger = ledger

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run `func` as it is, then look at what it did."""
        out = _run(func, args, dict(kwargs or {}))
        given = tensors_of((args, dict(kwargs or {})))
        if any(self.ledger.knows(tensor) for tensor in given):
            self._look(func, args, given, tensors_of(out))
        return out

    def _look(
        self, func: Any, args: tuple[Any, ...], given: tuple[Tensor, ...], out: tuple[Tensor, ...]
    ) -> None:
        name, mutable = func.overloadpacket.__name__, func._schema.is_mutable
        if not out or name.endswith("_like") or name.startswith("new_"):
            return
        if not mutable and {key(t) for t in out} <= {key(t) for t in given}:
            return  # a view: its storage is known
        ledger = self.ledger
        if name not in COPIES and name not in ("sum", "mean"):
            ledger.keep_products(given)
        # Both are asked before the rule runs: an operation in place changes what is known.
        live, sources = ledger.is_live(given), ledger.sources(given)
        call = Call(name.rstrip("_") if mutable else name, args, given, out)
        made = rule(func, call.name)(ledger, call)
        activation = Activation(
            live=live and not made.chosen,
            sources=sources if made.sources is None else made.sources,
            products=made.products,
            groups=made.groups,
        )
        ledger.settle(out, activation)
