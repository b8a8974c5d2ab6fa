"""A whole step as one CUDA graph: one launch where there were hundreds.

The host then needs microseconds a step. It pays for packs whose step the GPU finishes sooner than
the host can launch it: small ones, and those that are not compiled. The numbers are those of the
step without it, to the last bit: the same kernels run on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from sweeper.training.device_errors import raise_if_out_of_memory

if TYPE_CHECKING:
    from sweeper.training.pack import PackRun, StepInputs

WARM_STEPS = 3
"""Steps before a capture: kernels are compiled or loaded, modes and algorithms chosen by then."""


class Graph(Protocol):
    """What has been captured."""

    def replay(self) -> None:
        """Do it again, on the same memory."""
        ...


Capture = Callable[[Callable[[], Tensor]], tuple[Graph, Tensor]]
"""A function's work captured, none of it done, and the tensor that it returns."""


def capture_cuda(function: Callable[[], Tensor]) -> tuple[Graph, Tensor]:
    """By CUDA. Whatever makes the host wait, or is of the host, is refused by CUDA itself."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


class StepGraph:
    """The steps of one pack, captured once and replayed; captured anew after `forget`."""

    def __init__(self, capture: Capture = capture_cuda) -> None:
        """Nothing is captured before WARM_STEPS steps."""
        self._capture, self._steps = capture, 0
        self._graph: Graph | None = None
        self._inputs: StepInputs | None = None
        self._losses: Tensor | None = None

    def forget(self) -> None:
        """What was captured is no longer what a step does."""
        self._graph, self._inputs, self._losses, self._steps = None, None, None, 0

    def step(self, run: PackRun, inputs: StepInputs) -> Tensor:
        """One step of `run`, replayed where that can be; losses [K]."""
        self._steps += 1
        if self._graph is None and not self._begin(run, inputs):
            return run.compute(inputs)
        assert self._graph and self._inputs and self._losses is not None
        for static, new in zip(_tensors(self._inputs), _tensors(inputs), strict=True):
            static.copy_(new)
        self._graph.replay()
        return self._losses.clone()

    def _begin(self, run: PackRun, inputs: StepInputs) -> bool:
        """Capture where it is time, and the pack's mode allows it."""
        if self._steps <= WARM_STEPS or run.mode not in ("mapped", "compiled mapped"):
            return False
        source = tuple(part.clone() for part in inputs.source)
        static = replace(
            inputs, source=source, step=inputs.step.clone(), schedule=inputs.schedule.clone()
        )
        try:
            self._graph, self._losses = self._capture(lambda: run.compute(static))
        except Exception as error:
            raise_if_out_of_memory(error)
            # Nothing was computed: a capture only writes down.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            run.notices.append(f"steps cannot be a CUDA graph ({reason[:200]}): they are launched")
            run.graph = None
            return False
        self._inputs = static
        return True


def _tensors(inputs: StepInputs) -> list[Tensor]:
    return [*inputs.source, inputs.step, inputs.schedule]
