"""A step as one graph of the GPU: recorded once for a shape, replayed without the host.

Uncompiled, a step is hundreds of kernels that the host launches one by one; of a small batch that
takes longer than the kernels. A graph holds operations and addresses, no code. So before a step is
recorded it is watched: what reads a value of the device, draws on the host, or changes what Python
holds cannot be replayed, and is run as it is.

Batches of a search repeat their shapes. So a run that ends, or goes on with fewer trials, leaves
what it recorded, and the tensors there, to the next of that shape, which copies its own in.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sweeper.errors import users_own

WARM_UP = 3
"""Steps of a shape that run as they are before one is recorded; the second of them is watched."""
GRAPH, GRAPHED_UPDATE = "graphed", "graphed update"
"""Names of the whole step as a graph and of the update within it, beside the gradients' modes."""
HOST_ALGORITHMS = (
    *("aten::_linalg_eigh", "aten::linalg_eig", "aten::_linalg_eigvals", "aten::_linalg_svd"),
    *("aten::linalg_lstsq", "aten::_linalg_check_errors"),
    *("sweeper::inverse_fourth_roots", "sweeper::soap_bases"),
)
"""Operations that wait for the device within."""
KEPT_SHARE = 0.25
"""Of the free memory: so much at most is for a corpus, and for recorded steps that are kept."""
MAX_KEPT = 16
"""Recorded steps that wait for a batch of their shape, in a process."""
WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""What torch says of operations whose result, or its shape, the host needs to know."""


class CudaGraph:
    """Records a step in a memory pool of its own, of `size` bytes, and replays it.

    `seeds` is how often a step seeds torch's generator: each goes on with one of its own.
    """

    def __init__(self, device: torch.device, seeds: int) -> None:
        self.seeds, self.size = seeds, 0
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device, self._index, self._graph = device, index, torch.cuda.CUDAGraph()
        self._default = torch.cuda.default_generators[index]
        self._generators = [self._default.clone_state() for _ in range(seeds)]
        for generator in self._generators:
            self._graph.register_generator_state(generator)

    @staticmethod
    @contextmanager
    def warm_up(device: torch.device) -> Iterator[None]:
        """On the stream that records: what is set up for a stream is there by then."""
        side, current = _side_stream(device), torch.cuda.current_stream(device)
        side.wait_stream(current)
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            current.wait_stream(side)

    def record(self, step: Callable[[], None]) -> None:
        """Nothing is carried out; an error leaves the device as it was."""
        own, pool = self._default.graphsafe_get_state(), torch.cuda.graph_pool_handle()
        side, first = _side_stream(self._device), list[BaseException]()
        try:
            # The outer one goes back to the stream before; the end of a broken recording does not.
            with torch.cuda.stream(side), torch.cuda.graph(self._graph, pool, side):
                before = torch.cuda.memory_reserved(self._index)
                try:
                    step()
                    self.size = torch.cuda.memory_reserved(self._index) - before
                except BaseException as error:
                    first.append(error)  # the end of the recording fails, too, of no operation
                    raise
        except BaseException as error:
            # One that was part of a broken recording draws nothing outside of it any more.
            own = own.clone_state()
            # torch leaves the pool of such a one open, would free nothing that it has cached, and
            # would ask the graph at each later recording whether it is that one's.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._index, pool)
                torch._C._cuda_releasePool(self._index, pool)
                _BROKEN.append(self._graph)
            raise (first.pop() if first else error) from None  # kept by no frame of its own
        finally:
            self._default.graphsafe_set_state(own)

    def seed(self, index: int) -> None:
        """The generator of this seed takes the default one's place."""
        self._default.graphsafe_set_state(self._generators[index])

    def replay(self, seeds: Sequence[int]) -> None:
        """One launch."""
        for generator, seed in zip(self._generators, seeds, strict=True):
            generator.manual_seed(seed)
        self._graph.replay()


_BROKEN = list[torch.cuda.CUDAGraph]()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


RECORDERS = {"cuda": CudaGraph}
"""By the type of the device; steps of all others run as they are."""


@dataclass(kw_only=True, eq=False)
class Recording:
    """A recorded step, which runs with the same `key` can replay, one at a time.

    `tensors` are those between steps, in the run's order; `attributes`, what Python held. An update
    that was not recorded finds its `grads` here, and which trials take it.
    """

    graph: CudaGraph
    key: Hashable
    tensors: list[Tensor]
    attributes: dict[tuple[int, str], Any]
    grads: list[Tensor]
    takes: Tensor | None

    @property
    def size(self) -> int:
        """Bytes of the device that it keeps."""
        return self.graph.size + sum(tensor.nbytes for tensor in self.tensors)

    def keep(self, device: torch.device) -> None:
        """Let a next run have it; where memory gets scarce, the oldest go."""
        KEPT.pop(self.key, None)
        KEPT[self.key] = self
        while len(KEPT) > MAX_KEPT or not fits(sum(each.size for each in KEPT.values()), device):
            del KEPT[next(iter(KEPT))]


KEPT = dict[Hashable, Recording]()
"""Those of no run at present, the oldest first."""


def fits(size: int, device: torch.device) -> bool:
    """Whether so many bytes may stay on the device beside a batch."""
    return device.type != "cuda" or size <= KEPT_SHARE * torch.cuda.mem_get_info(device)[0]


class StepWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes why the operations under it cannot be recorded, and whether some are random."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.refusal, self.draws = device, "", False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        reason = self.reason(func, args, tree_leaves([args, kwargs, out]))
        if reason and not self.refusal:
            own = users_own(traceback.extract_stack())
            self.refusal = reason + "".join(f", in {f.name}: {f.line}" for f in own[-1:])
        return out

    def reason(self, func: Any, args: Sequence[Any], leaves: Sequence[Any]) -> str:
        """Why an operation cannot be recorded; "" where it can."""
        name, kinds = func.name(), {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}
        waits = bool({*func.tags} & WAITING) or name.startswith(HOST_ALGORITHMS)
        fills = False
        if indexes := name.startswith(("aten::index.", "aten::index_put")):
            # Positions are no wait. A mask is, but for one that a single number of the host fills.
            masks = [i for i in tree_leaves(args[1]) if isinstance(i, Tensor) and i.itemsize == 1]
            fills = bool(masks) and len(args) > 2 and args[2].numel() == 1 and args[2].is_cpu
            waits = bool(masks) and not fills
        if waits:
            return f"{name} waits for a value of the device"
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.draws = True
            if kinds - {self.device.type}:
                return f"{name} draws on the host"
        # Of torch.tensor and its kin this is all that is seen.
        lifted = name == "aten::lift_fresh" and self.device.type in kinds
        if lifted or (len(kinds) > 1 and ("copy" in name or (indexes and not fills))):
            return f"{name} copies between host and device"
        # A replay has the value that it had when the step was recorded.
        if kinds and self.device.type not in kinds and func._schema.is_mutable:
            return f"{name} changes a tensor of the host"
        return ""


@contextmanager
def watching(
    device: torch.device, holders: Iterable[object], tensors: Callable[[], Mapping[str, Tensor]]
) -> Iterator[StepWatch]:
    """Watch a part of a step: its operations, attributes of `holders`, and where `tensors` lie."""
    holders, watch, before = list(holders), StepWatch(device), tensors()
    attributes, draws = attributes_of(holders), _host_draws()
    with watch:
        yield watch
    changed = [
        f"{type(holders[i]).__name__}.{name} changes"
        for i, name in changes(attributes, attributes_of(holders))
    ]
    if draws != _host_draws():
        changed.append("random numbers are drawn on the host")
    after = tensors()
    if {name: value.data_ptr() for name, value in after.items()} != {
        name: value.data_ptr() for name, value in before.items()
    }:
        changed.append("new tensors take the place of its state")
    watch.refusal = watch.refusal or (changed[0] if changed else "")


def attributes_of(holders: Iterable[object]) -> dict[tuple[int, str], Any]:
    """What Python holds between steps, by holder and name; containers with what is in them."""
    own = vars(nn.Module())
    return {
        (i, name): [value, *(value.values() if isinstance(value, dict) else value)]
        if isinstance(value, list | dict | set)
        else value
        for i, holder in enumerate(holders)
        for name, value in getattr(holder, "__dict__", {}).items()
        if name not in own
    }


def changes(before: dict[tuple[int, str], Any], after: dict[tuple[int, str], Any]) -> list[Any]:
    """Which attributes are others, by holder and name."""
    return [at for at, value in after.items() if not _same(before.get(at, before), value)]


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, list) and isinstance(after, list):
        # The container itself comes first.
        return len(before) == len(after) and all(map(_same, before, after))
    plain = isinstance(after, int | float | str | torch.Size) and type(before) is type(after)
    return before is after or (plain and before == after)


def _host_draws() -> tuple[Any, ...]:
    state = np.random.get_state(legacy=False)["state"]
    return random.getstate(), state["key"].tobytes(), state["pos"]
