"""Numbers that a model multiplies by: a scale of the embeddings, of attention, of the logits.

A tensor on the meta device has no value. What a tensor of one entry was made of is therefore
noted when it is made, also while the model is built: Gemma's root of the width is a buffer.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import isclose, log
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

_SKIPPED = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_MADE_OF_NUMBERS = (
    *(torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.full),
    *(torch.linspace, torch.arange),
)
_LOOKING = (Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__int__, Tensor.__bool__)
"""Functions that look at values: rates of stochastic depth are often read off a linspace."""
MAX_KNOWN = 4096
"""Entries of the largest tensor whose values are kept."""
_FILLING = ("fill_", "constant_")
"""Names of functions that write one number into a tensor; transformers has a `constant_` too."""
_ELEMENTWISE = (
    *("sqrt", "rsqrt", "square", "reciprocal", "exp", "exp2", "log", "log2", "log10", "neg"),
    *("negative", "abs", "floor", "ceil", "round", "sigmoid", "tanh", "sin", "cos", "pow", "rpow"),
    *("add", "radd", "sub", "rsub", "mul", "multiply", "rmul", "div", "divide", "truediv", "rdiv"),
    *("rtruediv", "true_divide", "clamp", "maximum", "minimum"),
)
"""Names, without underscores, of functions that make known values of known values."""
_COPYING = (Tensor.to, Tensor.clone, Tensor.detach, Tensor.float, Tensor.half, Tensor.bfloat16)


@dataclass(frozen=True)
class Factor:
    """A number that a tensor is multiplied by: how (`verb`), in which module, and at which line.

    Of q k^T, `head_size` is the number of entries that it sums over, else 0.
    """

    verb: str
    value: float
    module: str
    place: str
    head_size: int = 0

    @property
    def over_head_size(self) -> float:
        """A factor of q k^T over 1 / head size, which is the same at all widths; 0 of any other."""
        value = 1 / self.value if self.verb == "divides by" else self.value
        return value * self.head_size


class Numbers:
    """Values of small tensors without values, by storage, and the factors that the model uses."""

    def __init__(self) -> None:
        self.factors: list[Factor] = []
        self.muted = False
        self._values: dict[int, tuple[Tensor, int, Tensor]] = {}

    def note(self, tensor: Tensor, values: Tensor) -> None:
        """Note the `values` (on the CPU) that `tensor`, which owns its storage, would have."""
        # With the tensor, whose address would soon belong to another one if it were freed, and
        # its version: what is written into later is not known any more.
        address = tensor.untyped_storage()._cdata
        with _disable_current_modes():  # a mode of fake tensors would make fake ones of the values
            self._values[address] = (tensor, tensor._version, values.detach().flatten())

    def forget(self, tensor: Tensor) -> None:
        """The values are none any more: `tensor` may be a view with a version of its own."""
        self._values.pop(tensor.untyped_storage()._cdata, None)

    def values(self, tensor: Tensor) -> Tensor | None:
        """The values of a tensor, or a view of one, that are known."""
        owner, version, flat = self._values.get(
            tensor.untyped_storage()._cdata, (tensor, -1, tensor)
        )
        if version != owner._version:
            return None
        with _disable_current_modes():
            return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def value(self, thing: object) -> float | None:
        """The number that `thing` is, or that a tensor of one entry holds; None if unknown."""
        if not isinstance(thing, Tensor):
            return plain(thing)
        values = self.values(thing) if thing.numel() == 1 else None
        return None if values is None else plain(values)

    def record(self, verb: str, value: float, module: str, head_size: int = 0) -> Factor | None:
        """Record a factor, at the line of the model's own code that runs now; None while muted."""
        if self.muted:
            return None
        self.factors.append(Factor(verb, value, module, _place(), head_size))
        return self.factors[-1]


def plain(value: object) -> float | None:
    """`value` as a float if it is a real number, or a tensor on the CPU of one; else None."""
    if isinstance(value, Tensor) and type(value) is Tensor and value.device.type == "cpu":
        with _disable_current_modes():
            value = value.item() if value.numel() == 1 else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _place() -> str:
    """File and line of the innermost frame outside of torch, the modules here, and modes."""
    frame: Any = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_SKIPPED)
        or frame.f_code.co_name == "__torch_function__"
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"


class NumberMode(TorchFunctionMode):
    """While entered, notes what tensors of one entry are made of, and the scale of attention."""

    def __init__(self, numbers: Numbers, module: Callable[[], str] = lambda: "") -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.numbers, self.module = numbers, module

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            return self._attention(func, args, named)
        if func in _LOOKING and (values := self.numbers.values(args[0])) is not None:
            with _disable_current_modes():
                return func(values)
        out = func(*args, **named)
        # Of ones a number is known, and no gain of a norm: nobody reads these.
        made = func in _MADE_OF_NUMBERS or (func is torch.ones and out.numel() == 1)
        if made and isinstance(out, Tensor) and out.numel() <= MAX_KNOWN:
            leaves = tree_leaves((args, named))
            if "out" not in named and not any(isinstance(leaf, Tensor) for leaf in leaves):
                with _disable_current_modes():  # made again, on the CPU, for its values
                    self.numbers.note(out, func(*args, **{**named, "device": "cpu"}))
        elif (
            getattr(func, "__name__", "") in _FILLING
            and (values := self._filled(*args, **named)) is not None
        ):
            self.numbers.note(args[0] if args else named["tensor"], values)
        elif func in _COPYING and isinstance(out, Tensor) and out is not args[0]:
            values = self.numbers.values(args[0])
            if values is None and out.is_meta and not args[0].is_meta:
                values = args[0]  # made elsewhere, with values
            if values is not None and out.is_contiguous() and out.numel() <= MAX_KNOWN:
                self.numbers.note(out, values)
        elif (
            _is_elementwise(func) and (values := self._computed(out, func, args, named)) is not None
        ):
            self.numbers.note(out, values)
        elif _writes(func):
            self.numbers.forget(args[0] if args else named["tensor"])
        return out

    def _computed(
        self, out: object, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        by_id = {id(tensor): self.numbers.values(tensor) for tensor in tensors}
        if not by_id or any(values is None for values in by_id.values()):
            return None
        if not isinstance(out, Tensor) or out.numel() > MAX_KNOWN or not out.is_contiguous():
            return None
        with _disable_current_modes():
            args = tuple(by_id.get(id(each), each) for each in args)
            kwargs = {name: by_id.get(id(each), each) for name, each in kwargs.items()}
            value: Tensor = func(*args, **kwargs)
            return value

    def _filled(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        number = plain([*args, *kwargs.values()][0])
        if number is None or not tensor.is_contiguous() or tensor.numel() > MAX_KNOWN:
            return None
        # A view: filling it says nothing of the rest of its storage, by which values are kept.
        if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
            return None
        with _disable_current_modes():
            return torch.full(tensor.shape, number)

    def _attention(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the scale once, and not the parts that torch splits it into."""
        query = args[0] if args else kwargs["query"]
        asked = self.numbers.value(kwargs.get("scale"))
        scale = query.shape[-1] ** -0.5 if asked is None else asked
        self.numbers.record("scales attention by", scale, self.module(), query.shape[-1])
        self.numbers.muted = True
        try:
            return func(*args, **kwargs)
        finally:
            self.numbers.muted = False


def _writes(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    return in_place or name == "__setitem__"


def _is_elementwise(func: Any) -> bool:
    return not _writes(func) and getattr(func, "__name__", "").strip("_") in _ELEMENTWISE


def width_dependent(
    base: Iterable[Factor], wider: Iterable[Factor], base_size: str, wider_size: str, ratio: float
) -> Iterator[str]:
    """A sentence for each factor that differs between two models; not q k^T's by head size."""
    differing = [
        (a.place, a.verb, a.value, b.value, a.module)
        for a, b in _paired(base, wider)
        if a.value != b.value
        and not (a.head_size and isclose(a.over_head_size, b.over_head_size, rel_tol=1e-6))
    ]
    for (place, verb, a, b), same in groupby(sorted(differing), key=lambda item: item[:4]):
        first, *more = (item[4] for item in same)
        where = f"{first or 'the model'}" + (f" (and {len(more)} more)" if more else "")
        # b / a = ratio^p, of numbers of one sign.
        power = f" (width^{log(b / a) / log(ratio):.2g})" if a * b > 0 and ratio != 1 else ""
        yield (
            f"{where} {verb} {a:.4g} at {base_size} and {b:.4g} at {wider_size}{power}, "
            f"{place}: {_expected(verb)}"
        )


def _expected(verb: str) -> str:
    heads = "by the head size, not its root, or have more heads of one size at all widths"
    if "attention" in verb:
        return f"its heads grow with the width, and trained logits with them: divide q k^T {heads}"
    return (
        "factors have to be the same at every width, so take one number, unless "
        f"the parameterization asks for this one. If it is attention's: divide q k^T {heads}"
    )


def _paired(base: Iterable[Factor], wider: Iterable[Factor]) -> Iterator[tuple[Factor, Factor]]:
    by_line: dict[tuple[str, str], deque[Factor]] = {}
    for factor in wider:
        by_line.setdefault((factor.place, factor.verb), deque()).append(factor)
    # The n-th time that a line multiplies in one model is the n-th in the other: layers in a loop.
    for factor in base:
        if there := by_line.get((factor.place, factor.verb)):
            yield factor, there.popleft()
