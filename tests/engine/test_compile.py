"""When a batch is compiled, by times that are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeper.engine import compile as compiling
from sweeper.engine.compile import TIMED_STEPS, CompileDecision, CompileRecord
from tests.golden import Golden

GPU = torch.device("meta")
"""No device that has a clock of its own."""


@dataclass
class Run:
    """A batch whose steps take `eager` seconds, or `compiled` after `cost` for compiling it."""

    eager: float = 1.0
    compiled_seconds: float = 0.25
    cost: float = 30.0
    device: torch.device = GPU
    step_index: int = 0
    slots: list[int] = field(default_factory=lambda: [0, 1, 2, 3])
    compiled: bool = False
    notices: list[str] = field(default_factory=list)
    record: CompileRecord = field(default_factory=CompileRecord)
    now: float = 0.0

    @property
    def program(self) -> Any:
        return SimpleNamespace(compile_record=self.record)

    def compile(self, *, pays: bool) -> None:
        self.compiled = pays

    def uncompile(self) -> None:
        self.compiled = False

    def step(self) -> None:
        self.step_index += 1
        self.now += self.compiled_seconds if self.compiled else self.eager
        if self.compiled:  # the first compiled step compiles
            self.now, self.cost = self.now + self.cost, 0.0


def train(
    run: Run, steps: int, monkeypatch: pytest.MonkeyPatch, pending: float = 0.0
) -> CompileDecision:
    monkeypatch.setattr(compiling.time, "perf_counter", lambda: run.now)
    decision = CompileDecision(run, steps, pending)  # type: ignore[arg-type]
    while run.step_index < min(steps, TIMED_STEPS[-1] + 1):
        run.step()
        decision.look(run.step_index)
    return decision


@pytest.mark.parametrize(
    ("steps", "pending", "compiled"),
    [(65, 0.0, False), (66, 0.0, True), (40, 0.0, False), (40, 60.0, True)],
    ids=["a little too short", "just long enough", "short", "short, but others wait"],
)
def test_compiled_where_it_should_save_more_than_it_costs(
    steps: int, pending: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 s are expected, and three quarters of each of the steps after the 12th."""
    run = Run()
    train(run, steps, monkeypatch, pending)
    assert run.compiled == compiled


def test_cost_and_gain_are_measured_for_the_batches_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()
    train(run, 1000, monkeypatch)
    assert run.record.gain == pytest.approx(4.0)
    assert run.record.seconds == pytest.approx(30.0)
    assert run.record.per_slice == pytest.approx(0.25 / 4)


def test_what_gains_nothing_goes_back_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    run = Run(compiled_seconds=1.1)
    train(run, 1000, monkeypatch)
    assert not run.compiled
    golden.says(run.notices[0])
    other = Run(record=run.record)
    train(other, 10**6, monkeypatch)
    assert not other.compiled


def test_a_cpu_compiles_only_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 times 40 s must be saved, of 0.286 s a step."""
    short, long = Run(device=torch.device("cpu")), Run(device=torch.device("cpu"))
    train(short, 570, monkeypatch)
    train(long, 574, monkeypatch)
    assert (short.compiled, long.compiled) == (False, True)


def test_a_smaller_batch_is_compiled_where_the_steps_left_earn_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiling costs 30 s; a slice's part of a step is 0.0625 s."""
    run = Run()
    decision = train(run, 1000, monkeypatch)
    for remaining, earned in ((161, True), (159, False)):
        run.step_index = 1000 - remaining
        assert decision.shrinks(size=1) is earned
    run.slots, run.step_index = [0, 1], 1000 - 161
    assert not decision.shrinks(size=1), "of two slices one is all that is saved"


def test_a_batch_that_shrinks_while_it_is_timed_says_nothing_of_the_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling.time, "perf_counter", lambda: run.now)
    run = Run()
    decision = CompileDecision(run, 1000, 0.0)  # type: ignore[arg-type]
    while run.step_index < TIMED_STEPS[-1]:
        run.step()
        decision.look(run.step_index)
        if run.step_index == 20:
            run.slots = [0]
    assert run.compiled and run.record == CompileRecord()
