"""A step that is captured once and replayed.

Where there is no GPU a recorder stands in for CUDA's: it writes down the operations of a step, and
does them again on the very same tensors. What a step reads of the host would be frozen by it, as by
CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sweeper.engine import train as training
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.graph import WARM_STEPS, StepGraph, _capture_stream, capture_cuda
from sweeper.engine.train import Execution
from tests.engine.runs import StopTrials, train_trials
from tests.engine.tiny_trials import corpus, tree, trial
from tests.specs import spec_of

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")

STEPS = 12


class Recorder(TorchDispatchMode):
    """Operations in their order, and the tensors that they made."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def recorder(run: BatchedRun, captures: list[Recorder]) -> Callable[..., Any]:
    """A capture that leaves the batch as it was: CUDA's does nothing either."""

    def capture(function: Callable[[], Tensor], _: torch.device) -> tuple[Recorder, Tensor]:
        before = {name: value.clone() for name, value in run.tensors().items()}
        graph = Recorder()
        with graph:
            result = function()
        with torch.no_grad():
            for name, value in run.tensors().items():
                value.copy_(before[name])
        captures.append(graph)
        return graph, result

    return capture


def losses_of(run: BatchedRun, steps: int = STEPS) -> Tensor:
    return torch.stack([run.step() for _ in range(steps)])


def both(
    folder: Path, optimizer: str = "first_order.AdamW", **train: Any
) -> tuple[BatchedRun, BatchedRun, list[Recorder]]:
    """A batch that runs its steps, and the same that replays them."""
    described = tree("mup", **{"steps": STEPS, **train})
    described["optimizer"] = {"_target_": f"sweeper.engine.optimizers.{optimizer}"}
    trials = tuple(
        replace(trial("mup", seed=i % 2, eta=0.5 * i - 7), spec=spec_of(described))
        for i in range(3)
    )
    batched = BatchedTrials(trials=trials, corpus=corpus(folder))
    plain, replayed, captures = BatchedRun(batched), BatchedRun(batched), list[Recorder]()
    replayed.graph = StepGraph(recorder(replayed, captures))
    return plain, replayed, captures


def check(plain: BatchedRun, replayed: BatchedRun, captures: list[Recorder]) -> None:
    assert torch.equal(losses_of(plain), losses_of(replayed))
    assert len(captures) == 1
    for name, value in plain.tensors().items():
        assert torch.equal(value, replayed.tensors()[name]), name


@pytest.mark.parametrize(
    "settings", [{}, {"accumulate": 2}, {"clip": 0.1}], ids=["plain", "accumulated", "clipped"]
)
def test_replayed_equals_launched_to_the_last_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    check(*both(tmp_path, **settings))


@pytest.mark.parametrize(
    "optimizer", ["muon.Muon", "first_order.Adafactor", "first_order.Lion", "first_order.SGD"]
)
def test_every_optimizer_s_update_is_replayed(optimizer: str, tmp_path: Path) -> None:
    check(*both(tmp_path, optimizer))


def test_a_batch_that_changes_is_captured_anew(tmp_path: Path) -> None:
    plain, replayed, captures = both(tmp_path, steps=30)
    for run in (plain, replayed):
        losses_of(run)
        run.select([0, 2])
    assert torch.equal(losses_of(plain), losses_of(replayed))
    assert len(captures) == 2


def test_what_a_step_would_read_of_the_host_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = BatchedRun.compute

    def of_the_host(self: BatchedRun, inputs: Any) -> Tensor:
        losses = compute(self, inputs)
        with torch.no_grad():
            for value in self.params.values():
                value.mul_(1 + self.step_index / 100)
        return losses

    monkeypatch.setattr(BatchedRun, "compute", of_the_host)
    plain, replayed, _ = both(tmp_path)
    one, other = losses_of(plain), losses_of(replayed)
    assert torch.equal(one[: WARM_STEPS + 1], other[: WARM_STEPS + 1])
    assert not torch.equal(one, other)


def test_what_cannot_be_captured_is_launched_and_told_once(tmp_path: Path) -> None:
    def refuse(function: Callable[[], Tensor], _: torch.device) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    plain, replayed, _ = both(tmp_path)
    replayed.graph = StepGraph(refuse)
    assert torch.equal(losses_of(plain), losses_of(replayed))
    [notice] = replayed.take_notices()
    assert "cannot be a CUDA graph (operation not permitted" in notice and "more" not in notice


def test_a_graph_s_memory_is_let_go_before_the_evaluation(tmp_path: Path) -> None:
    """Its pool serves nothing else: beside it the evaluation might not fit."""
    plain, replayed, _ = both(tmp_path)
    losses_of(plain)
    losses_of(replayed)
    assert replayed.graph and replayed.graph._graph is not None
    assert torch.equal(plain.heldout(), replayed.heldout())
    assert replayed.graph._graph is None and replayed.graph._losses is None


class Stream:
    device_index = 1


def test_a_capture_that_cannot_be_ended_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of this is CUDA: what torch leaves to do after such an error is done."""
    done: list[Any] = []

    @contextmanager
    def graph(*_: Any, **given: Any) -> Iterator[None]:
        done.append(given["pool"])
        yield

    def fail() -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    _capture_stream.cache_clear()
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(done.append(device)))
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "Stream", lambda index: f"stream {index}")
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda one: done.append(type(one)))
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda *given: done.append(given), raising=False)
    with pytest.raises(RuntimeError, match="not permitted"):
        capture_cuda(fail, torch.device("cuda:1"))
    _capture_stream.cache_clear()
    assert done == [torch.device("cuda:1"), (0, 7), Stream, *[(1, (0, 7))] * 2]


def test_a_trial_alone_is_launched(tmp_path: Path) -> None:
    """What is random in it follows the host's seeds."""
    run = BatchedRun(
        BatchedTrials(trials=(trial(train={"steps": STEPS}),), corpus=corpus(tmp_path))
    )
    captures: list[Recorder] = []
    run.graph = StepGraph(recorder(run, captures))
    losses_of(run)
    assert not captures


def test_a_whole_run_with_pruning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [trial(seed=i, train={"steps": 20}) for i in range(3)]
    pruner = StopTrials(9, trials[1].key)
    plain = train_trials(trials, tmp_path, pruner=pruner)
    captures: list[Recorder] = []

    class Replaying(BatchedRun):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.graph = StepGraph(recorder(self, captures))

    monkeypatch.setattr(training, "BatchedRun", Replaying)
    replayed = train_trials(trials, tmp_path, execution=Execution(), pruner=pruner)
    assert [r.objective for r in plain] == [r.objective for r in replayed]
    assert len(captures) == 2
