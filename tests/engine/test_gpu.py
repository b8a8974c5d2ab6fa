"""What only a GPU can show: kernels in bfloat16, memory that ends, a host that never waits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sweeper.engine.batched import BatchedRun, BatchedTrials, forget_kept
from sweeper.engine.graph import WARM_UP, CudaGraph
from sweeper.engine.runner import Engine
from sweeper.launch.inline import Inline
from sweeper.sweep.loop import Loop
from sweeper.trial import PluginSpec, Trial
from tests.engine.runs import others, trials_of
from tests.engine.tiny_trials import corpus, trial

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    # That its debug mode is a prototype, and what its compiler would rather be given.
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
DEVICE = "cuda"
BF16 = {"precision": "bfloat16", "seq_len": 64, "batch_size": 4, "steps": 24}
"""Sizes with heads of 32, so that flash attention takes part."""


def wide(seed: int = 0, eta: float = 0.0, **train: Any) -> Trial:
    """A trial in bfloat16 with heads of 32."""
    tiny = trial(seed=seed, eta=eta, train=BF16 | train)
    arguments = {**tiny.spec.model.arguments, "head_size": 32}
    model = PluginSpec(name=tiny.spec.model.name, arguments=arguments)
    return replace(tiny, spec=replace(tiny.spec, model=model, width=64, base_width=64))


def batched(folder: Path, count: int = 3, **train: Any) -> BatchedTrials:
    # Rates that repeat: of many trials the last would diverge, as they should.
    trials = tuple(wide(seed=i % 2, eta=i % 8 / 4, **train) for i in range(count))
    return BatchedTrials(trials=trials, corpus=corpus(folder))


def gradients(run: BatchedRun) -> list[Tensor]:
    x, y = run.feed.batch(0)
    with run.precision():
        return run._gradients(x[run.seed_rows], y[run.seed_rows])[1]


def test_bfloat16_gradients_batched_and_compiled_are_those_alone(tmp_path: Path) -> None:
    """To the rounding of bfloat16: kernels of other shapes add in another order."""
    many = batched(tmp_path)
    run = BatchedRun(many, DEVICE, compile="on")
    together = gradients(run)
    assert run.program.unsupported == {} and run.compiled
    for i, each in enumerate(many.trials):
        alone = gradients(BatchedRun(BatchedTrials(trials=(each,), corpus=many.corpus), DEVICE))
        precise = replace(each, spec=wide(precision="float32").spec)
        exact = gradients(BatchedRun(BatchedTrials(trials=(precise,), corpus=many.corpus), DEVICE))
        for mine, theirs, right in zip(together, alone, exact, strict=True):
            scale = right.norm()
            assert (mine[i] - theirs[0]).norm() < 0.03 * scale
            assert (mine[i] - right[0]).norm() < 0.05 * scale


@contextmanager
def no_host_waits() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("compile", ["off", "on"])
def test_no_step_waits_for_the_device(compile: Any, tmp_path: Path) -> None:
    run = BatchedRun(batched(tmp_path), DEVICE, compile=compile)
    for _ in range(WARM_UP + 1):
        run.step()
    with no_host_waits():
        losses = [run.step() for _ in range(8)]
    assert torch.isfinite(torch.stack(losses)).all() and run.program.unsupported == {}
    assert run._recorded is not None


@pytest.mark.parametrize("compile", ["off", "on"])
@pytest.mark.parametrize(
    ("name", "count", "settings"),
    [
        ("wide", 3, {"clip": 1.0}),
        ("wide", 1, {"accumulate": 2}),
        ("wide", 2, {"precision": "float16"}),
        ("WithDropout", 1, {"accumulate": 2}),
        ("WithDropout", 3, {}),
        ("WithReplacedBuffers", 3, {"clip": 1.0}),
    ],
)
def test_replayed_steps_are_plain_ones_to_the_bit(
    name: str,
    count: int,
    settings: dict[str, Any],
    compile: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With kernels that add in one order; random numbers follow from the same seeds.

    Two more batches replay the same, whatever has become of memory that was free between.
    """
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    many = batched(tmp_path, count, **settings)
    if name != "wide":
        group = trials_of(name)[:count]
        spec = replace(group[0].spec, train=replace(group[0].spec.train, **settings))
        many = BatchedTrials(trials=tuple(replace(t, spec=spec) for t in group), corpus=many.corpus)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        seen = []
        for recorders in ({}, {"cuda": CudaGraph}):
            monkeypatch.setattr("sweeper.engine.batched.RECORDERS", recorders)
            seen.append(list[Tensor]())
            for i in range(3):
                run = BatchedRun(others(many, i), DEVICE, compile=compile)
                seen[-1] += [run.step().clone()]
                assert (run._recorded is not None) == (bool(recorders) and i > 0), run.notices
                seen[-1] += [run.step().clone() for _ in range(11)]
                assert (run._recorded is not None) == bool(recorders), run.notices
                seen[-1] += [value.clone() for value in run.tensors().values()]
                run.keep()
                del run
                torch.cuda.empty_cache()
                torch.full((2**28,), torch.nan, device=DEVICE)
    finally:
        forget_kept()
        torch.use_deterministic_algorithms(False)
    for plain, replayed in zip(*seen, strict=True):
        torch.testing.assert_close(replayed, plain, rtol=0, atol=0)


def test_a_broken_recording_is_told_by_its_operation_and_leaves_the_device_as_it_was() -> None:
    """The stream, the generator, the memory that torch has cached, and the next recording."""
    device = torch.device(DEVICE)

    def reads() -> None:
        torch.ones(2**24, device=DEVICE).sum().item()

    def add() -> None:
        total.add_(1)

    reads()
    with pytest.raises(RuntimeError, match="capturing"):
        CudaGraph(device, 0).record(reads)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.rand(3, device=DEVICE).isfinite().all()
    reads()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < torch.cuda.memory_allocated() + 2**25
    total, graph = torch.zeros(1, device=DEVICE), CudaGraph(device, 0)
    graph.record(add)
    graph.replay([])
    assert total.item() == 1


def peak(many: BatchedTrials) -> int:
    """Bytes that two steps and the evaluation of a batch need at once, and all that is there."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run = BatchedRun(many, DEVICE)
    for _ in range(2):
        run.step()
    run.heldout()
    return torch.cuda.max_memory_allocated()


def test_a_batch_that_does_not_fit_is_halved(tmp_path: Path) -> None:
    """Under a real limit of the device's memory, between the needs of 16 trials and of 64.

    What any step needs, such as cuBLAS's workspaces, is larger than many of these trials.
    """
    trials = batched(tmp_path, 64).trials
    needs = [
        peak(BatchedTrials(trials=trials[:count], corpus=corpus(tmp_path))) for count in (16, 64)
    ]
    assert needs[1] - needs[0] > 2**26, "the limit would not tell them apart"
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    results, sizes = list[Any](), list[int]()

    def record(finished: Sequence[Any]) -> None:
        results.extend(finished)
        sizes.append(len(finished))

    engine = Engine(device=DEVICE, batched_trials=64, compile="off")
    runner = engine.open(corpus(tmp_path), Inline(), tmp_path)
    loop = Loop(runner=runner, launcher=Inline(), folder=tmp_path, record=record)
    torch.cuda.set_per_process_memory_fraction(sum(needs) / 2 / total)
    try:
        loop.run(lambda: [t for t in trials if t.key not in {r.key for r in results}])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert {r.status for r in results} == {"complete"} and len(results) == 64
    assert 1 < max(sizes) < 64


def test_an_illegal_access_breaks_the_device_for_its_process_alone() -> None:
    """In a process of its own, which it leaves useless."""
    program = (
        "import os, torch\n"
        "from sweeper.engine.program import raise_if_broken\n"
        "try:\n"
        "    torch.zeros(4, device='cuda')[torch.full((1,), 10**6, device='cuda')].sum().item()\n"
        "except RuntimeError as error:\n"
        "    try: raise_if_broken(torch.device('cuda'), error)\n"
        "    except Exception as broken: print(type(broken).__name__, flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "BrokenDeviceError"
    assert torch.ones(3, device="cuda").sum().item() == 3
