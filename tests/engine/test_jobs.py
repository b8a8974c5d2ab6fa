"""The engine's tasks: how trials become jobs, what is measured for it, and what failures become."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sweeper.engine import jobs, measurements
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.jobs import MeasureSize, TrainTrials, TryStep
from sweeper.engine.measure import ModuleMeasurement
from sweeper.engine.runner import Engine
from sweeper.engine.train import Execution
from sweeper.errors import ConfigError
from sweeper.launch.executor import Machine
from sweeper.launch.inline import Inline
from sweeper.launch.job import UNCONTROLLED, Control, Leave
from sweeper.launch.local import Local
from sweeper.records import from_json
from sweeper.scaling.spec import Role
from sweeper.trial import PluginSpec, Trial
from tests.engine.runs import failing
from tests.engine.tiny_trials import tokens, trial
from tests.golden import Golden
from tests.refusals import raises_config_error

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")

WHERE = tokens()
KINDS = [trial(train={"steps": steps}) for steps in (2, 4, 8)]
"""A trial of each of three specifications."""


def batch_of(count: int) -> BatchedTrials:
    return BatchedTrials(
        trials=tuple(replace(KINDS[0], seed=seed) for seed in range(count)), corpus=WHERE
    )


@given(st.integers(0, 200), st.integers(1, 50))
def test_parts_cover_everything_once_and_evenly(count: int, size: int) -> None:
    parts = [list(range(count))[part] for part in jobs.split(range(count), size)]
    assert [index for part in parts for index in part] == list(range(count))
    assert all(0 < len(part) <= size for part in parts)
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1
    assert len(parts) == math.ceil(count / size)


class Workers:
    """An executor of up to `most` jobs at a time, on a device that holds `fit` trials of a job.

    A step costs the same for any number of trials, so that as many as fit are best; without a
    layout (`most=0`) nothing can be measured.
    """

    def __init__(self, fit: int, most: int) -> None:
        self.fit, self.layouts, self.used = fit, range(1, most + 1), 0

    def call(self, tasks: Sequence[MeasureSize], layout: int) -> list[Any]:
        assert layout in self.layouts and len(tasks) in (1, layout)

        def seconds(batched: BatchedTrials, device: str, **_: object) -> float:
            if len(batched.trials) > self.fit:
                raise torch.OutOfMemoryError
            return 100.0

        with patch.object(jobs, "step_seconds", seconds):
            return [json.loads(json.dumps(task.run(UNCONTROLLED))) for task in tasks]

    def use(self, layout: int) -> None:
        assert not self.used, "chosen once"
        self.used = layout


@given(
    kinds=st.lists(st.sampled_from([(0, ""), (1, ""), (2, ""), (1, "scales")]), max_size=24),
    fit=st.integers(1, 12),
    most=st.integers(0, 4),
    batched_trials=st.just("auto") | st.integers(1, 7),
)
def test_every_trial_is_in_one_job_that_fits(
    kinds: list[tuple[int, str]], fit: int, most: int, batched_trials: Any
) -> None:
    trials = [
        replace(KINDS[kind], seed=seed, measurement=measurement)
        for seed, (kind, measurement) in enumerate(kinds)
    ]
    executor, sentences = Workers(fit, most), list[str]()
    with tempfile.TemporaryDirectory() as folder, patch.object(jobs, "_MEASURED", {}):
        runner = Engine(device="cpu", batched_trials=batched_trials).open(
            WHERE, Inline(), Path(folder), sentences.append
        )
        batches = runner.batches(trials, executor)  # type: ignore[arg-type]
        again = runner.batches(trials, executor)  # type: ignore[arg-type]
    assert again == batches, "the layout and what was measured stay"
    assert sorted(t.seed for batch in batches for t in batch) == list(range(len(trials)))
    most_of_a_job = batched_trials
    if batched_trials == "auto":
        most_of_a_job = fit if most else jobs.UNMEASURED_SIZE
    for batch in batches:
        assert len({t.spec.digest for t in batch}) == 1
        assert len(batch) <= (1 if batch[0].measurement else most_of_a_job)
    # Trials that only train keep their order, and come before those that measure more.
    order = [t.seed for batch in batches for t in batch]
    plain = [t.seed for t in trials if not t.measurement]
    assert order == plain + [t.seed for t in trials if t.measurement]
    assert runner.sizes.layout == (executor.used or None)


@given(
    count=st.integers(1, 40),
    fewer=st.integers(0, 40),
    fit=st.integers(1, 12),
    layout=st.integers(1, 5),
)
def test_workers_share_trials_in_as_few_rounds_as_what_fits_allows(
    count: int, fewer: int, fit: int, layout: int
) -> None:
    trials = [replace(KINDS[0], seed=seed) for seed in range(count)]
    sizes, others = (
        jobs.TrialsPerJob("auto", WHERE, "cpu", lambda sentence: None) for _ in range(2)
    )
    sizes.layout = others.layout = layout
    with patch.object(jobs, "_MEASURED", {}):
        size = sizes.size(trials, Workers(fit, layout))  # type: ignore[arg-type]
        jobs._MEASURED.clear()
        for earlier in (min(max(1, fewer), count), count):
            again = others.size(trials[:earlier], Workers(fit, layout))  # type: ignore[arg-type]
    assert again == size, "whatever was measured with fewer"
    assert 1 <= size <= fit
    parts = jobs.split(trials, size)
    # What is measured doubles, and goes no further than a worker's fair share.
    fair = math.ceil(count / layout)
    best = min(fair, 2 ** int(math.log2(fit)) if fit < fair else fair)
    assert math.ceil(len(parts) / layout) <= math.ceil(count / (best * layout))


@pytest.mark.parametrize(
    ("device", "batched_trials", "workers", "sizes"),
    [
        ("cuda", "auto", 1, [13]),
        ("cuda", "auto", 2, [7, 6]),
        ("cuda", 2, 1, [2, 1]),
        ("cpu", "auto", 1, [3]),
    ],
)
def test_a_gpu_s_batch_takes_along_what_costs_next_to_nothing(
    device: str, batched_trials: Any, workers: int, sizes: list[int], tmp_path: Path
) -> None:
    """Where all take as long as one, three have room for those that may follow."""
    trials = [replace(KINDS[0], seed=seed) for seed in range(13)]
    executor: Any = Workers(13, workers)
    executor.layouts = range(workers, workers + 1)
    runner = Engine(device="cpu", batched_trials=batched_trials).open(WHERE, Inline(), tmp_path)
    runner.sizes.device = device
    with patch.object(jobs, "_MEASURED", {}):
        batches = runner.batches(trials[:3], executor, trials[3:])
        again = runner.batches(trials[:3], executor, trials[3:])
    assert batches == again
    assert sorted(map(len, batches), reverse=True) == sizes
    seeds = [t.seed for batch in batches for t in batch]
    assert seeds == list(range(sum(sizes))), "what is asked for first"


@given(
    count=st.integers(1, 40),
    fits=st.lists(st.integers(1, 12), min_size=2, max_size=2),
    done=st.integers(0, 12),
    torn=st.integers(0, 30),
)
def test_a_study_forms_the_batches_again_that_it_has_formed(
    count: int, fits: list[int], done: int, torn: int
) -> None:
    """Whatever is measured the second time, and though a kill has torn off the record's end."""
    trials = [replace(KINDS[0], seed=seed) for seed in range(count)]

    def formed(wanted: Sequence[Trial], fit: int, folder: str) -> list[tuple[Trial, ...]]:
        with patch.object(jobs, "_MEASURED", {}):
            runner = Engine(device="cpu").open(WHERE, Inline(), Path(folder))
            return runner.batches(wanted, Workers(fit, 1))  # type: ignore[arg-type]

    with tempfile.TemporaryDirectory() as folder:
        first = formed(trials, fits[0], folder)
        record = Path(folder) / "batches.jsonl"
        with record.open("ab") as file:
            file.write(record.read_bytes()[:torn])
        remaining = first[done:] or first
        wanted = [trial for batch in remaining for trial in batch]
        assert formed(wanted, fits[1], folder) == remaining
        # Of a batch that is done in part, the rest is formed anew, by the recorded size.
        rest = formed(first[0][1:], fits[1], folder)
        assert [t for batch in rest for t in batch] == list(first[0][1:])
        fixed = Engine(device="cpu", batched_trials=3).open(WHERE, Inline(), Path(folder))
        for batch in fixed.batches(trials, Workers(1, 1)):  # type: ignore[arg-type]
            assert len(batch) <= 3, "what the user says counts"


@given(
    count=st.integers(1, 40),
    fit=st.integers(0, 40),
    fixed=st.floats(0.0, 10.0),
    each=st.floats(0.001, 10.0),
)
def test_a_measured_size_is_the_last_that_paid(
    count: int, fit: int, fixed: float, each: float
) -> None:
    """By steps that take `fixed` seconds, and `each` more for every trial; `fit` at most."""
    tried: list[int] = []

    def seconds(batched: BatchedTrials, device: str, **_: object) -> float:
        tried.append(len(batched.trials))
        if tried[-1] > fit:
            raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")
        return fixed + each * tried[-1]

    trials = tuple(replace(KINDS[0], seed=seed) for seed in range(count))
    with patch.object(jobs, "step_seconds", seconds):
        measured = jobs.measure_size(BatchedTrials(trials=trials, corpus=WHERE), "cpu")
    doubling = [2**power for power in range(7) if 2**power < count] + [count]
    assert tried == doubling[: len(tried)]
    assert measured.size <= max(1, min(fit, count))
    if not fit:
        assert measured.size == 1 and math.isinf(measured.seconds)
        return
    per_trial = fixed / measured.size + each
    assert measured.seconds == pytest.approx(per_trial)
    assert all(per_trial <= (fixed / k + each) * (1 + 1e-9) for k in tried if k <= measured.size)
    assert measured.limited_by_trials == (measured.size == tried[-1] == count)
    assert all(measured.covers(n) for n in range(1, count + 1))


@pytest.mark.parametrize(
    ("times", "size", "more"),
    [
        ({1: 1.0, 2: 1.1, 4: 1.2, 8: 9.0}, 4, False),
        ({1: 1.0, 2: 1.1, 4: 1.2, 8: 1.6, 9: 1.79}, 9, True),
        ({1: 1.0, 2: 1.1, 4: 1.2, 8: 1.6, 9: 1.9}, 8, False),
    ],
)
def test_measured_size(
    times: dict[int, float], size: int, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a step of K of nine trials takes `times[K]`."""
    monkeypatch.setattr(jobs, "step_seconds", lambda batched, *_, **__: times[len(batched.trials)])
    measured = jobs.measure_size(batch_of(9), "cpu")
    assert (measured.size, measured.limited_by_trials) == (size, more)
    assert measured.nearly_free == 4, "1.2 times as long as one"
    assert measured.seconds == pytest.approx(times[size] / size)


class Answering:
    """An executor whose workers answer at once: seconds of a trial's step by layout, or None."""

    layouts = range(1, 3)

    def __init__(self, seconds: dict[int, float | None]) -> None:
        self.seconds, self.asked, self.used = seconds, list[tuple[int, int]](), 0

    def call(self, tasks: list[Any], layout: int) -> list[Any]:
        self.asked.append((layout, len(tasks)))
        seconds, size = self.seconds[layout], len(tasks[0].trials)
        answer = {"size": size, "seconds": seconds, "limited_by_trials": False}
        return [None if seconds is None else answer for _ in tasks]

    def use(self, layout: int) -> None:
        self.used = layout


def chosen_layout(executor: Answering, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """What is said of the layouts, and the size of batches of four trials in the one chosen."""
    monkeypatch.setattr(jobs, "_MEASURED", {})
    monkeypatch.setattr(jobs, "MEASURING_PAYS", 0.0)
    trials, sentences = [trial(seed=i) for i in range(4)], list[str]()
    sizes = jobs.TrialsPerJob("auto", tokens(), "cpu", sentences.append)
    sizes.choose_layout(trials, executor)  # type: ignore[arg-type]
    return sentences, sizes.size(trials, executor)  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "gain", "used"), [(1.0, "2.00", 2), (1.95, "1.03", 1)])
def test_one_process_is_weighed_against_one_a_core(
    seconds: float, gain: str, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Answering({1: 1.0, 2: seconds})
    (sentence,), size = chosen_layout(executor, monkeypatch)
    assert sentence.startswith(f"2 worker processes do {gain} times ")
    assert sentence.endswith(f": {used} used")
    assert executor.used == used and size == 4 // used
    # Where several seem to gain little one is timed once more.
    again = [(1, 1)] * (used == 1)
    assert executor.asked == [(1, 1), (2, 2), *again] and len(jobs._MEASURED) == 2 + len(again)


def test_a_machine_that_slows_down_between_two_timings_is_not_misjudged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slowing(Answering):
        """Alone it takes 1 s; from then on the machine is 1.9 times as slow."""

        def call(self, tasks: list[Any], layout: int) -> list[Any]:
            answers = super().call(tasks, layout)
            self.seconds = {1: 1.9, 2: 1.9}
            return answers

    executor = Slowing({1: 1.0})
    (sentence,), _ = chosen_layout(executor, monkeypatch)
    # 2 / 1.9 times by the first timing, which is nothing; by the mean of both 1.53 times.
    assert executor.used == 2 and sentence.startswith("2 worker processes do 1.53 times ")
    # What goes on takes the same layout, by its record alone.
    record = tmp_path / "batches.jsonl"
    sizes = jobs.TrialsPerJob("auto", tokens(), "cpu", print, record)
    trials = [trial(seed=i) for i in range(4)]
    sizes.choose_layout(trials, Slowing({1: 1.0}))  # type: ignore[arg-type]
    monkeypatch.setattr(jobs, "_MEASURED", {})
    resumed = Answering({})
    others = jobs.TrialsPerJob("auto", tokens(), "cpu", print, record)
    others.choose_layout(trials, resumed)  # type: ignore[arg-type]
    assert resumed.used == 2 and not resumed.asked


def test_processes_are_chosen_for_all_trials_of_a_sweep_not_for_its_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "_MEASURED", {})
    trials, steps = [trial(seed=i) for i in range(4)], trial().spec.train.steps
    for planned, used in ((0, 1), (math.ceil(jobs.MEASURING_PAYS / steps), 2)):
        executor = Answering({1: 1.0, 2: 1.0})
        sizes = jobs.TrialsPerJob("auto", WHERE, "cpu", print, planned=planned)
        sizes.choose_layout(trials, executor)  # type: ignore[arg-type]
        assert executor.used == used


@pytest.mark.parametrize("seconds", [None, math.inf], ids=["dies", "fits nowhere"])
def test_what_cannot_be_measured_trains_in_one_process(
    seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no time to compare with that in several processes."""
    executor = Answering({1: seconds})
    sentences, size = chosen_layout(executor, monkeypatch)
    assert sentences == [] and executor.used == 1 and (size == 1 or seconds is not None)
    assert all(layout == 1 for layout, _ in executor.asked)


# What failures become.


@pytest.mark.parametrize("error", jobs.UNTRAINABLE, ids=lambda error: error.__name__)
def test_what_a_model_raises_is_its_trials_failure(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchedRun, "step", failing(error("a shape does not fit")))
    outcome = TrainTrials(**vars(batch_of(2)), execution=Execution()).run(UNCONTROLLED)
    assert not outcome.results and outcome.failure is not None
    assert not outcome.failure.retry and error.__name__ in outcome.failure.reason
    assert MeasureSize(**vars(batch_of(2)), device="cpu").run(UNCONTROLLED) is None
    with pytest.raises(ConfigError) as caught:
        TryStep(trials=(KINDS[0],), corpus=WHERE, device="cpu").check()
    assert caught.value.key == "model._target_" and "a shape does not fit" in caught.value.allowed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("the disk is full")])
def test_what_is_not_the_model_s_fault_goes_through(
    error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchedRun, "step", failing(error))
    for task in (
        TrainTrials(**vars(batch_of(1)), execution=Execution()),
        MeasureSize(**vars(batch_of(1)), device="cpu"),
    ):
        with pytest.raises(type(error)):
            task.run(UNCONTROLLED)


def test_a_measurement_is_left_when_it_is_told_to() -> None:
    """And the weights that it measured with are let go."""
    assert 0 < jobs.step_seconds(batch_of(1), "cpu") < math.inf
    asked = iter([False, True])
    with pytest.raises(Leave):
        MeasureSize(**vars(batch_of(1)), device="cpu").run(Control(should_leave=asked.__next__))
    program = jobs.program_for(KINDS[0].spec, "cpu")
    assert all(parameter.numel() == 0 for parameter in program.model.parameters())


# Tasks that go to other processes as files.


def test_what_a_run_measures_comes_back_from_its_record() -> None:
    """As plain JSON, infinite values and what is not a number included."""
    row = ModuleMeasurement(
        name="head",
        role=Role.READOUT,
        entries=2**40,
        rms=math.inf,
        changes=(0.5, math.nan),
        direct_changes=(),
    )
    batched = replace(batch_of(1), trials=(replace(KINDS[0], measurement="coordinates"),))
    with patch.object(measurements, "measure_modules", lambda *_: [row]):
        outcome = TrainTrials(**vars(batched), execution=Execution()).run(UNCONTROLLED)
    [result] = outcome.results
    assert result.trial.measurement == "coordinates" and result.status == "complete"
    [record] = json.loads(json.dumps(result.measurements, allow_nan=False))
    assert repr(from_json(ModuleMeasurement, record)) == repr(row)


# A step before anything is written.


def test_a_gpu_s_step_is_a_worker_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process would hold memory on a GPU that its workers train on."""
    asked: list[Machine] = []
    monkeypatch.setattr("sweeper.engine.runner.resolve_device", lambda name: "cuda")
    monkeypatch.setattr("sweeper.engine.runner.visible_gpus", lambda device: ("0", "1"))
    monkeypatch.setattr(
        TryStep, "run_in_worker", lambda s, launcher, machine: asked.append(machine)
    )
    Engine(device="cuda").validate(trial(), tokens(), Local())
    assert asked == [Machine(gpus=("0", "1"))]


def test_a_refusal_comes_back_from_the_worker(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    asked: list[TryStep] = []

    def call(self: Any, tasks: Any, layout: int) -> list[Any]:
        asked.extend(tasks)
        return answers

    monkeypatch.setattr("sweeper.launch.local.LocalExecutor.call", call)
    step = TryStep(trials=(trial(),), corpus=tokens(), device="cuda:1")
    answers: list[Any] = [{"key": "model.width", "value": "7", "allowed": "an even number"}]
    with raises_config_error("model.width", "7"):
        step.run_in_worker(Local(workers=1), Machine())
    assert asked == [replace(step, device="cuda")], "the one GPU that it sees"
    answers = [None]
    with raises_config_error("model._target_", "sweeper.models.llama.Llama", golden):
        step.run_in_worker(Local(workers=1), Machine())


class SmallVocabulary(nn.Module):
    def __init__(
        self, width: int, depth: int, seq_len: int, vocab: int = 128, block: int = 64
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(block, width)
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for layer in self.body:
            h = h + torch.tanh(layer(h))
        return nn.functional.cross_entropy(self.head(h).flatten(0, -2), y.flatten())


class Ascii:
    """Its batches hold no byte from 128 on, though its vocabulary has them."""

    classes = 256

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Any:
        x = np.arange(batch_size * seq_len).reshape(batch_size, seq_len) % 100
        return x, x


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_vocabulary_that_is_too_small_is_named_and_no_gpu_is_asked(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{__name__}.SmallVocabulary"
    spec = replace(trial().spec, model=PluginSpec(name=name), data={"classes": 256})
    trials: Any = (replace(trial(), spec=spec),)
    tried = TryStep(trials=trials, corpus=Ascii(), device=device)  # type: ignore[arg-type]
    devices: list[str] = []
    step = TryStep._step
    monkeypatch.setattr(TryStep, "_step", lambda s, on, n: devices.append(on) or step(s, on, n))
    with pytest.raises(ConfigError) as caught:
        tried.check()
    assert caught.value.key == "model._target_"
    advice = caught.value.allowed
    assert "all 256 classes" in advice and "takes 128" in advice and "+model.vocab=256" in advice
    assert set(devices) == {"cpu"}

    wide = replace(spec, model=PluginSpec(name=name, arguments={"vocab": 256}))
    replace(tried, trials=(replace(trial(), spec=wide),), device="cpu").check()
    # A table of positions that is too short fails with any class: its rows and its line are told.
    short = replace(wide, model=PluginSpec(name=name, arguments={"block": 1}))
    with pytest.raises(ConfigError, match="has so many rows") as caught:
        replace(tried, trials=(replace(trial(), spec=short),), device="cpu").check()
    assert (caught.value.key, caught.value.value) == ("train.seq_len", short.train.seq_len)
    assert caught.value.allowed.startswith("at most 1: ")
    assert f"model.block={short.train.seq_len}" in caught.value.allowed
