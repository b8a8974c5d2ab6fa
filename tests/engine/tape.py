"""A step's operations on a CPU, recorded and replayed as a GPU's graph is: no Python runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import TensorWeakRef

from sweeper.engine import graph
from sweeper.engine.graph import StepWatch


def tensors_of(*values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Strict(StepWatch):
    """Fails on a read of a value, and notes which memory a step has and takes from outside."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.own = set[int]()
        self.outside = dict[int, str]()
        self.made = list[TensorWeakRef]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_of(args, kwargs):
            if tensor.numel() and address(tensor) not in self.own:
                self.outside.setdefault(address(tensor), func.name())
        out = super().__torch_dispatch__(func, types, args, kwargs)
        assert not self.refusal, self.refusal
        for tensor in tensors_of(out):
            if address(tensor) not in self.outside:
                self.own.add(address(tensor))
                self.made.append(TensorWeakRef(tensor))
        return out

    def survivors(self) -> list[torch.Size]:
        """Shapes of what the step allocated and left, not in the memory that was there."""
        alive = [made for each in self.made if (made := each()) is not None and made.numel()]
        return [tensor.shape for tensor in alive if address(tensor) not in self.outside]


class Tape(TorchDispatchMode):
    """A `Recorder` of operations with the tensors that they read and write."""

    recorded: int = 0
    """By all tapes of this process."""
    replayed: int = 0
    size = 0

    def __init__(self, device: torch.device, seeds: int) -> None:
        super().__init__()
        self.entries: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]] | int] = []
        self.seeds = seeds

    @staticmethod
    def warm_up(device: torch.device) -> AbstractContextManager[Any]:
        return nullcontext()

    def record(self, step: Callable[[], None]) -> None:
        """A graph's recording changes nothing; this one's step is undone."""
        Tape.recorded += 1
        written: dict[int, tuple[Tensor, Tensor]] = {}
        self.before = written
        with self:
            step()
        with torch.no_grad():
            for tensor, value in written.values():
                tensor.copy_(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_of(args, kwargs)
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in tensors_of(value):
                        whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                        self.before.setdefault(address(tensor), (whole, whole.clone()))
        out = func(*args, **kwargs)
        # Like a graph it is of the memory: a tensor may be put elsewhere later.
        args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        places = {address(tensor) for tensor in given}
        fresh = [(i, t.detach()) for i, t in enumerate(tensors_of(out)) if address(t) not in places]
        self.entries.append((func, args, kwargs, fresh))
        return out

    def seed(self, index: int) -> None:
        assert index < self.seeds
        self.entries.append(index)
        torch.default_generator.manual_seed(0)

    @torch.no_grad()
    def replay(self, seeds: Sequence[int]) -> None:
        Tape.replayed += 1
        assert len(seeds) == self.seeds
        for entry in self.entries:
            if isinstance(entry, int):
                torch.default_generator.manual_seed(seeds[entry])
                continue
            func, args, kwargs, fresh = entry
            out = tensors_of(func(*args, **kwargs))
            for i, tensor in fresh:
                tensor.copy_(out[i])


@contextmanager
def taped() -> Iterator[None]:
    """Steps on a CPU are recorded and replayed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(graph.RECORDERS, "cpu", Tape)
        graph.KEPT.clear()
        yield
        graph.KEPT.clear()
