"""A whole step as one CUDA graph: one launch where there were hundreds.

The host then needs microseconds a step. It pays for batches whose step the GPU finishes sooner than
the host can launch it: small ones, and those that are not compiled. The numbers are those of the
step without it, to the last bit: the same kernels run on the same memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from sweeper.engine.program import raise_if_out_of_memory
from sweeper.errors import first_line

if TYPE_CHECKING:
    from sweeper.engine.batched import BatchedRun, StepInputs

WARM_STEPS = 3
"""Steps before a capture: kernels are compiled or loaded, modes and algorithms chosen by then."""


class Graph(Protocol):
    """What has been captured."""

    def replay(self) -> None:
        """Do it again, on the same memory."""
        ...


Capture = Callable[[Callable[[], Tensor], torch.device], tuple[Graph, Tensor]]
"""A function's work on a device captured, none of it done, and the tensor that it returns."""


def capture_cuda(function: Callable[[], Tensor], device: torch.device) -> tuple[Graph, Tensor]:
    """By CUDA. Whatever makes the host wait, or is of the host, is refused by CUDA itself."""
    # Of another device nothing would be captured: the step would be done, and replays do nothing.
    with torch.cuda.device(device):
        # Steps that are kept alive by a cycle would tie what is captured to their stream.
        gc.collect()
        before, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        pool, stream = torch.cuda.graph_pool_handle(), _capture_stream(before.device_index)
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                result = function()
        except BaseException:
            _leave_capture(before, pool)
            raise
    return graph, result


@cache
def _capture_stream(device_index: int) -> torch.cuda.Stream:
    """One for each device: every stream that multiplies keeps a workspace of cuBLAS for good."""
    return torch.cuda.Stream(device_index)  # type: ignore[no-untyped-call]


def _leave_capture(before: torch.cuda.Stream, pool: Any) -> None:
    """Undo what torch leaves undone where a capture cannot be ended: its stream, and its memory.

    As long as it counts as under way, memory that is cached is not given back for larger blocks.
    """
    torch.cuda.set_stream(before)
    cuda: Any = torch._C
    with suppress(AttributeError, RuntimeError):  # it was ended: what was captured is what failed
        cuda._cuda_endAllocateToPool(before.device_index, pool)
        cuda._cuda_releasePool(before.device_index, pool)


class StepGraph:
    """The steps of one batch, captured once and replayed; captured anew after `forget`."""

    def __init__(self, capture: Capture = capture_cuda) -> None:
        """Nothing is captured before WARM_STEPS steps."""
        self._capture, self._steps = capture, 0
        self._graph: Graph | None = None
        self._inputs: StepInputs | None = None
        self._losses: Tensor | None = None

    def forget(self) -> None:
        """What was captured is no longer what a step does."""
        self._graph, self._inputs, self._losses, self._steps = None, None, None, 0

    def step(self, run: BatchedRun, inputs: StepInputs) -> Tensor:
        """One step of `run`, replayed where that can be; losses [K]."""
        self._steps += 1
        if self._graph is None and not self._begin(run, inputs):
            return run.compute(inputs)
        assert self._graph and self._inputs and self._losses is not None
        for static, new in zip(_tensors(self._inputs), _tensors(inputs), strict=True):
            static.copy_(new)
        self._graph.replay()
        return self._losses.clone()

    def _begin(self, run: BatchedRun, inputs: StepInputs) -> bool:
        """Capture where it is time, and the batch's mode allows it."""
        if self._steps <= WARM_STEPS or run.mode not in ("mapped", "compiled mapped"):
            return False
        source = tuple(part.clone() for part in inputs.source)
        static = replace(
            inputs, source=source, step=inputs.step.clone(), schedule=inputs.schedule.clone()
        )
        try:
            self._graph, self._losses = self._capture(lambda: run.compute(static), run.device)
        except Exception as error:
            raise_if_out_of_memory(error)
            # Nothing was computed: a capture only writes down.
            reason = first_line(error)[:200]
            run.notices.append(f"steps cannot be a CUDA graph ({reason}): they are launched")
            run.graph = None
            return False
        self._inputs = static
        return True


def _tensors(inputs: StepInputs) -> list[Tensor]:
    return [*inputs.source, inputs.step, inputs.schedule]
