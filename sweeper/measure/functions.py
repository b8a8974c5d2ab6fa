"""What functions make of parameters that no call of a module shows, and what the loss gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from sweeper.scaling.spec import LOGITS

CONVOLUTIONS = {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)}
PRODUCTS = CONVOLUTIONS | {
    *("linear", "bilinear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "embedding"),
    "multi_head_attention_forward",
}
"""Names of functions whose output tells what a matrix among their arguments does."""
Note = Callable[[str, Tensor, Callable[[Tensor], Tensor] | None], None]
"""Gets a name, an output, and what another value of the parameter of that name would make of it."""


class WatchedFunctions(TorchFunctionMode):
    """Notes what the loss gets, as `LOGITS`, and the products with `parameters`, by their names.

    `parameters` gives them as they are while the model runs. A product may be with a view of one,
    such as its transpose. Nothing is noted while `paused`.
    """

    def __init__(
        self,
        note: Note,
        parameters: Callable[[], Mapping[str, Tensor]],
        paused: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.note, self.parameters, self.paused = note, parameters, paused
        self._by_storage: dict[int, list[tuple[str, Tensor]]] = {}
        self._function: dict[str, str] = {}
        self._log_softmax: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, and note what it tells."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if self.paused():
            return result
        if func in (F.cross_entropy, F.nll_loss) or name == "log_softmax":
            self._note_loss(func, args[0] if args else kwargs["input"], result)
        elif name in PRODUCTS or name == "add":
            self._note_product(func, name, args, kwargs, result)
        return result

    def _note_loss(self, func: Any, x: Tensor, result: Tensor) -> None:
        """The logits are what cross_entropy gets, or log_softmax before nll_loss."""
        if func is F.cross_entropy:
            self.note(LOGITS, x, None)
        elif func is not F.nll_loss:
            self._log_softmax[_storage(result)] = result, x
        elif known := self._log_softmax.get(_storage(x)):
            self.note(LOGITS, known[1], None)

    def _note_product(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """The output of a product with a parameter, or of one added to what is larger than it."""
        output = result[0] if isinstance(result, tuple) else result
        found = list(self._parameters_in((args, kwargs)))
        if len(found) > 1 and name != "multi_head_attention_forward":  # a product of weights
            return
        for key, parameter, view in found:
            if name == "add" and output.numel() <= view.numel():  # a sum of weights
                continue
            # A table that is also the readout is measured where it is used first.
            if self._function.setdefault(key, name) != name:
                continue

            def with_value(value: Tensor, own: Tensor = parameter) -> Tensor:
                def replaced(leaf: Any) -> Any:
                    return _like(leaf, own, value) if _is_view(leaf, own) else leaf

                again = func(*tree_map(replaced, args), **tree_map(replaced, kwargs))
                return again[0] if isinstance(again, tuple) else again  # type: ignore[no-any-return]

            self.note(key, output, with_value)

    def _parameters_in(self, values: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Parameters among arguments, with the view of each; vectors are mere biases."""
        if not self._by_storage:
            for name, parameter in self.parameters().items():
                if parameter.dim() > 1:
                    self._by_storage.setdefault(_storage(parameter), []).append((name, parameter))
        for leaf in tree_leaves(values):
            if isinstance(leaf, Tensor):
                for name, parameter in self._by_storage.get(_storage(leaf), ()):
                    if _is_view(leaf, parameter):
                        yield name, parameter, leaf


def _storage(x: Tensor) -> int:
    """The address of the memory that views of a tensor share; 0 where there is none."""
    try:
        return x.untyped_storage().data_ptr()
    except RuntimeError:  # within vmap, or sparse
        return 0


def _is_view(x: Any, parameter: Tensor) -> bool:
    """Whether `x` is the parameter or a part of it."""
    if not isinstance(x, Tensor) or not (address := _storage(x)) or address != _storage(parameter):
        return False
    return 0 <= x.storage_offset() - parameter.storage_offset() < parameter.numel()


def _like(view: Tensor, parameter: Tensor, value: Tensor) -> Tensor:
    """The same view of `value`."""
    offset = view.storage_offset() - parameter.storage_offset()
    # Laid out in memory as the parameter is.
    laid_out = parameter.detach().clone().copy_(value)
    return laid_out.as_strided(view.shape, view.stride(), offset)
