"""Which errors mean too little memory, and when a device is given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sweeper.engine.batched import BatchedRun, UpdateBrokenError
from sweeper.engine.jobs import MeasureSize, TrainTrials
from sweeper.engine.program import forget_frames, is_out_of_memory, program_for, raise_if_broken
from sweeper.engine.train import Execution
from sweeper.errors import BrokenDeviceError, SweeperError
from sweeper.launch.executor import Context
from sweeper.launch.inline import InlineExecutor
from sweeper.launch.job import UNCONTROLLED, Control, Job
from tests.engine.runs import failing, same_result
from tests.engine.tiny_trials import tokens, trial
from tests.golden import Golden

CUDA = torch.device("cuda")


class Wrapped(RuntimeError):
    """As torch's compiler wraps what its backend raises."""

    def __init__(self, inner: Exception) -> None:
        self.inner_exception = inner
        super().__init__("backend='inductor' raised")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError(),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronous"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"),
    Wrapped(torch.OutOfMemoryError("tried")),
    caused(RuntimeError("the kernel failed"), MemoryError()),
]
OTHER = [
    RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("vmap: it looks like you're calling .item() on a Tensor"),
    ValueError("out of memory of the user's own words"),
]


@pytest.mark.parametrize("error", [*NO_MEMORY, *OTHER])
def test_allocations_fail_in_many_words(error: Exception) -> None:
    assert is_out_of_memory(error) == (error in NO_MEMORY)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_answers_no_more_is_broken() -> None:
    """Here CUDA answers nothing from the start."""
    with pytest.raises(BrokenDeviceError, match="cuda is unusable after an error: an assertion"):
        raise_if_broken(CUDA, RuntimeError("an assertion\nwith many lines"))
    raise_if_broken(torch.device("cpu"), RuntimeError("an assertion"))


def task(count: int = 2) -> TrainTrials:
    trials = tuple(trial(seed=i) for i in range(count))
    return TrainTrials(trials=trials, corpus=tokens(), execution=Execution())


@pytest.mark.filterwarnings("ignore:.*batching rule for aten")
@pytest.mark.parametrize("where", ["_mapped", "_update"])
def test_a_failed_allocation_is_the_batch_s_failure_and_rules_out_no_mode(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices, program = list[str](), program_for(task().trials[0].spec, "cpu")
    error = RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")
    monkeypatch.setattr(BatchedRun if where == "_update" else program, where, failing(error))
    outcome = task().run(Control(notify=notices.append))
    assert outcome.failure is not None and not outcome.failure.retry and not outcome.results
    assert notices == ["2 trials do not fit the device together: they are halved"]
    assert not program.unsupported


def test_halves_are_not_filled_up_to_what_did_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    job = task()
    program = program_for(job.trials[0].spec, "cpu")
    monkeypatch.setattr(program, "compiled_sizes", {1, len(job.trials), 64})
    monkeypatch.setattr(BatchedRun, "step", failing(torch.OutOfMemoryError("full")))
    job.run(UNCONTROLLED)
    assert program.compiled_sizes == {1}


def test_frames_of_all_that_was_raised_on_the_way_are_let_go() -> None:
    """Causes, and what was being handled too: it holds the tensors as well."""

    def handle() -> None:
        try:
            raise torch.OutOfMemoryError("full")
        except RuntimeError:
            raise ValueError("another")  # noqa: B904

    with pytest.raises(ValueError, match="another") as caught:
        handle()
    error, handled = caught.value, caught.value.__context__
    error.__cause__ = cause = KeyError().with_traceback(error.__traceback__)
    assert handled is not None and handled.__traceback__ is not None
    forget_frames(error)
    assert all(each.__traceback__ is None for each in (error, handled, cause))


def test_a_broken_device_ends_the_process_not_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    broken = BrokenDeviceError("cuda is unusable after an error: an illegal memory access")
    monkeypatch.setattr("sweeper.engine.jobs.train", failing(RuntimeError("illegal")))
    monkeypatch.setattr("sweeper.engine.jobs.raise_if_broken", failing(broken))
    with pytest.raises(BrokenDeviceError):
        task().run(UNCONTROLLED)
    monkeypatch.setattr(BatchedRun, "step", failing(RuntimeError("illegal")))
    measuring = MeasureSize(trials=(trial(),), corpus=tokens(), device="cpu")
    with pytest.raises(BrokenDeviceError):
        measuring.run(UNCONTROLLED)
    executor = InlineExecutor(Context(folder=tmp_path))
    executor.submit(Job(task=task()))
    with pytest.raises(SweeperError) as caught:
        executor.poll()
    golden.says(caught)


def test_a_device_without_memory_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def full(*_: object, **where: object) -> None:
        asked.append(where["device"])
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(torch, "zeros", full)
    raise_if_broken(CUDA, RuntimeError("full"))
    assert asked == [CUDA]


@pytest.mark.filterwarnings("ignore:.*batching rule for aten")
def test_a_batch_whose_update_broke_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    notices, broken = list[str](), [UpdateBrokenError("a kernel failed")]
    update = BatchedRun._update

    def fails_once(self: BatchedRun, *arguments: Any) -> None:
        if broken:
            raise broken.pop()
        update(self, *arguments)

    whole = task(1).run(UNCONTROLLED)
    monkeypatch.setattr(BatchedRun, "_update", fails_once)
    again = task(1).run(Control(notify=notices.append))
    assert again.results[0].objective == whole.results[0].objective
    assert notices == ["the compiled update failed (a kernel failed): begun anew without it"]


@pytest.mark.filterwarnings("ignore:.*batching rule for aten")
def test_kept_steps_make_room_before_a_batch_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    job, step, kept, full = task(), BatchedRun.step, {1: Any}, failing(MemoryError())
    plain = job.run(UNCONTROLLED).results
    monkeypatch.setattr("sweeper.engine.graph.KEPT", kept)
    monkeypatch.setattr(BatchedRun, "step", lambda run: full() if kept else step(run))
    assert all(map(same_result, job.run(UNCONTROLLED).results, plain)) and not kept
    monkeypatch.setattr(BatchedRun, "step", lambda run: kept.update({1: Any}) or full())
    assert job.run(UNCONTROLLED).failure, "and that once"
