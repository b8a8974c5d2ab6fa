"""The engine's tasks: to train batched trials, to try a step, to measure how many to batch.

A task is what a job's process runs: `TrainTrials` in every job, `TryStep` before anything is
written, `MeasureSize` where `batched_trials` is "auto". `TrialsPerJob` decides by what is measured.
Measuring runs where jobs run: a model that brings its process down must not bring down the driver,
so that with worker processes the driver never trains.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from sweeper import schedule
from sweeper.data.corpus import Batch, Corpus
from sweeper.engine.architecture import few_rows, own_argument
from sweeper.engine.batched import BatchedRun, BatchedTrials, UpdateBrokenError, forget_kept
from sweeper.engine.branches import NO_BRANCHES, Branching, branchings, horizons
from sweeper.engine.graph import RECORDERS, WARM_UP
from sweeper.engine.measurements import MEASUREMENTS
from sweeper.engine.prepare import prepare
from sweeper.engine.program import (
    forget_frames,
    free_unused,
    is_out_of_memory,
    program_for,
    quiet_attention,
    raise_if_broken,
)
from sweeper.engine.train import Execution, device_name, train
from sweeper.errors import ConfigError, SweeperError, user_frames
from sweeper.files import RECORD_ERRORS, append, parse_json
from sweeper.launch.executor import Context, Executor, Launcher, Machine
from sweeper.launch.job import UNCONTROLLED, Control, JobFailure, JobOutcome
from sweeper.records import NAMES_CLASS, from_json, to_json
from sweeper.registry import plugin_target
from sweeper.search.prune import Pruner
from sweeper.trial import Result, Trial

UNTRAINABLE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError),
    *(RuntimeError, SystemExit, TypeError, ValueError),
)
"""What a trial, or a model of a user's own, may raise; anything else has other causes."""


@dataclass(frozen=True, kw_only=True)
class EngineTask:
    """What all tasks of the engine have: trials and their corpus."""

    trials: tuple[Trial, ...]
    corpus: Corpus = field(metadata=NAMES_CLASS)

    def modules(self) -> list[str]:
        """Modules of the user's own that the specification and the corpus name."""
        spec = self.trials[0].spec
        dotted = (plugin.name.rpartition(".")[0] for plugin in spec.plugins)
        of_schedule = schedule.modules(spec.train.schedule)
        modules = {*filter(None, dotted), *of_schedule, type(self.corpus).__module__}
        return sorted(name for name in modules if name.split(".")[0] != "sweeper")


@dataclass(frozen=True, kw_only=True)
class TrainTrials(EngineTask):
    """The task of a job: batched trials, longest horizon first, and what may stop them early."""

    execution: Execution
    pruner: Pruner | None = None

    def run(self, control: Control) -> JobOutcome:
        """Train, or measure, the trials; `Leave` when it was told to. Raises as `_train`."""
        parts = horizons(self.trials)
        branching = [NO_BRANCHES] * len(parts)
        if self.pruner is None and self.execution.checkpoints is not None:
            # Not under a pruner, which may end trials of the trunk: a branch starts with all of
            # them.
            branching = branchings(parts)
        steps = [
            len(part) * (part[0].spec.train.steps - each.starts_from[1])
            for part, each in zip(parts, branching, strict=True)
        ]
        results = list[Result]()
        for i, part in enumerate(parts):
            before, here = sum(steps[:i]) / sum(steps), steps[i] / sum(steps)

            def progress(fraction: float, before: float = before, here: float = here) -> None:
                control.progress(before + here * fraction)

            of_part = replace(control, progress=progress) if len(parts) > 1 else control
            outcome = self._train(part, branching[i], of_part)
            results += outcome.results
            if outcome.failure:
                return replace(outcome, results=tuple(results))
        return JobOutcome(results=tuple(results))

    def _train(
        self, trials: tuple[Trial, ...], branching: Branching, control: Control, again: bool = False
    ) -> JobOutcome:
        """Train batched trials of one specification, `again` where memory was short at first.

        Whatever a model raises is the outcome's failure. What is too large for the device is one
        too, but for a single trial, which is trained once more with its activations recomputed.
        SweeperError goes through: it is the configuration's fault. BrokenDeviceError when nothing
        more can be trained in this process.
        """
        device = torch.device(self.execution.device)
        batched = BatchedTrials(trials=trials, corpus=self.corpus)
        try:
            # A trial that measures is a batch by itself, see `EngineRunner.batches`.
            if trials[0].measurement:
                return JobOutcome(results=(self._measure(control),))
            trained = train(batched, self.execution, control, self.pruner, branching)
            return JobOutcome(results=tuple(trained))
        except SweeperError:
            raise
        except (MemoryError, *UNTRAINABLE) as error:
            problem: BaseException = error
        # Only from here on memory can be freed: inside `except` the interpreter itself still holds
        # the error, whose frames hold the tensors.
        if is_out_of_memory(problem):
            forget_frames(problem)
            kept = forget_kept()
            free_unused(device)
            if kept and not again:
                return self._train(trials, branching, control, again=True)
            program = program_for(trials[0].spec, self.execution.device)
            # No batch is filled up to what does not fit.
            count, sizes = len(trials), program.compiled_sizes
            sizes -= {size for size in sizes if size >= count}
            if count > 1:
                control.notify(f"{count} trials do not fit the device together: they are halved")
            elif program.recompute():
                control.notify("a trial does not fit the device: its activations are recomputed")
                return self._train(trials, branching, control)
        raise_if_broken(device, problem)
        # The program has noted which of its modes failed, so that this happens once.
        if isinstance(problem, UpdateBrokenError):
            control.notify(f"the compiled update failed ({problem}): begun anew without it")
            return self._train(trials, branching, control)
        reason = f"{type(problem).__name__}: {problem}"
        details = "\n".join(user_frames(problem))
        # Once more would fail alike: the loop halves the batch until the trial that fails is alone.
        return JobOutcome(failure=JobFailure(reason=reason, details=details, retry=False))

    def _measure(self, control: Control) -> Result:
        [trial] = self.trials
        start = time.perf_counter()
        measure = MEASUREMENTS[trial.measurement]
        measured = measure(trial, self.corpus, self.execution.device, control)
        return Result(
            trial=trial,
            status="complete",
            measurements=measured,
            objective=math.nan,
            seconds=time.perf_counter() - start,
            steps=prepare(trial.spec).train.steps,
            finished_at=time.time(),
            device=device_name(torch.device(self.execution.device)),
        )


class TryClasses:
    """A corpus whose batches hold the class `number`: its largest, so that all are tried.

    Of 0 they hold nothing else. What is no class, such as the negative number of a target that
    does not count, stays.
    """

    def __init__(self, corpus: Corpus, number: int) -> None:
        self._corpus, self._number = corpus, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._corpus, name)

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """A batch of the corpus with the class in it."""
        x, y = self._corpus.batch(seed, step, batch_size, seq_len)
        return self._with_class(x), self._with_class(y)

    def _with_class(self, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind not in "iu":
            return values
        values = values.copy()
        if self._number == 0:
            values[values >= 0] = 0
        else:
            values.flat[int(values.argmax())] = self._number
        return values


class _Rows(TorchFunctionMode):
    """Notes of the last lookup, or the last loss, how many classes it is for."""

    last = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        tensors = [each for each in (*args, *named.values()) if isinstance(each, torch.Tensor)]
        if func is torch.nn.functional.embedding and len(tensors) > 1:
            self.last = tensors[1].shape[0]
        elif func is torch.nn.functional.cross_entropy and tensors and tensors[0].dim():
            self.last = tensors[0].shape[min(1, tensors[0].dim() - 1)]
        return func(*args, **named)


MAX_TRIED = 200_000_000
"""Weights of the largest model that a step on the CPU is made with, to save the GPU from it."""


@dataclass(frozen=True, kw_only=True)
class TryStep(EngineTask):
    """A step of a trial on two examples, one of which has the largest class of the data."""

    trials: tuple[Trial]
    device: str

    @property
    def trial(self) -> Trial:
        """The only one."""
        return self.trials[0]

    def check(self) -> None:
        """Train it in this process; ConfigError, with the place, where that fails."""
        # A GPU that is asked for a row which is not there does nothing more in this process.
        if self.device != "cpu" and prepare(self.trial.spec).parameters() <= MAX_TRIED:
            try:
                self._step("cpu", self.corpus.classes - 1)
            except (SweeperError, *UNTRAINABLE):
                self._check_classes()  # any other failure may be the CPU's alone
        try:
            loss = self._step(self.device, self.corpus.classes - 1)
        except SweeperError:
            raise
        except UNTRAINABLE as error:
            if self.device == "cpu":
                self._check_classes()
            lines = [f"{type(error).__name__}: {error}", *user_frames(error)]
            if isinstance(error, TypeError):
                lines.append("A model is called as forward(inputs, targets), and returns its loss.")
            raise self._invalid_model("one step failed", "\n  ".join(lines)) from error
        if not math.isfinite(loss):
            allowed = f"a model whose first loss is a number, and on two examples it is {loss}"
            raise ConfigError("model._target_", self._target, allowed)

    def _check_classes(self) -> None:
        """ConfigError where a step with the data's largest class fails and one with the first not.

        Then the model is for fewer classes than the data have; or for fewer positions, where the
        step with the first class fails in a table that is shorter than a sequence.
        """
        classes, rows, length = self.corpus.classes, _Rows(), self.trial.train.seq_len
        try:
            with rows:
                self._step("cpu", 0)
        except IndexError as error:
            if 0 < rows.last < length and "input_shape" not in self.trial.spec.data:
                raise few_rows(self.trial.spec, rows.last, error) from error
            return
        except (SweeperError, *UNTRAINABLE):
            return
        with suppress(SweeperError, *UNTRAINABLE), rows:
            self._step("cpu", classes - 1)
            return
        smaller = 0 < rows.last < classes
        takes = f"and the model takes {rows.last}" if smaller else "more than it takes"
        own = own_argument(self.trial.spec.model, rows.last, classes)
        own = f", {own}" * bool(own)
        raise ConfigError(
            "model._target_",
            self._target,
            f"a model that takes all {classes} classes (words of the vocabulary) of the data, "
            f"{takes}: let it take an argument `classes`{own}, or give data whose largest class it "
            "takes, such as data=tokens data.path=FILE",
        )

    def _step(self, device: str, number: int) -> float:
        tried: Any = TryClasses(self.corpus, number)
        train = self.trial.spec.train
        small = replace(
            train, steps=1, batch_size=min(2, train.batch_size), accumulate=1, schedule="constant"
        )
        trial = replace(self.trial, spec=replace(self.trial.spec, train=small))
        run = BatchedRun(BatchedTrials(trials=(trial,), corpus=tried), device)
        try:
            with quiet_attention():
                return float(run.step()[0])
        finally:
            run.program.release()

    def run_in_worker(self, launcher: Launcher, machine: Machine) -> None:
        """Train it in a worker process, which has the GPU; ConfigError as in `check`."""
        with TemporaryDirectory() as folder:
            executor = launcher.executor(Context(folder=Path(folder), machine=machine))
            try:
                # A worker that is pinned to a GPU sees no other.
                device = "cuda" if self.device.startswith("cuda") else self.device
                [answer] = executor.call([replace(self, device=device)], executor.layouts[0])
            finally:
                executor.close()
        if answer is None:
            raise self._invalid_model("one step ended its process", "run it alone to see why")
        if answer:
            raise ConfigError(answer["key"], answer["value"], answer["allowed"])

    def run(self, control: Control) -> dict[str, Any]:
        """The parts of the ConfigError of `check`; nothing where all is well."""
        try:
            self.check()
        except ConfigError as error:
            return {"key": error.key, "value": str(error.value), "allowed": error.allowed}
        return {}

    @property
    def _target(self) -> str:
        return plugin_target("model", self.trial.spec.model.name)

    def _invalid_model(self, what: str, reason: str) -> ConfigError:
        allowed = f"a model that trains on these data, and {what}:\n  {reason}"
        return ConfigError("model._target_", self._target, allowed)


MAX_TIME_RATIO = 0.95
"""A larger batch must take at most this fraction of the smaller one's time per trial."""
NEARLY_FREE = 1.25
"""A batch whose step takes at most so many times that of one trial has room for others on a GPU."""


def step_seconds(
    batched: BatchedTrials, device: str, *, steps: int = 3, control: Control = UNCONTROLLED
) -> float:
    """Seconds of one step of `batched`: the fastest of `steps`.

    The first is not counted: it warms up allocators and, on a GPU, loads kernels. Nor are those
    before a graph is replayed.
    """
    forget_kept()
    run, times = BatchedRun(batched, device), []
    first = 1 + WARM_UP * (run.device.type in RECORDERS)
    try:
        with quiet_attention():
            for _ in range(steps + first):
                control.leave_if_asked()
                start = time.perf_counter()
                run.step()
                # A step is only queued when it returns.
                if run.device.type == "cuda":
                    torch.cuda.synchronize(run.device)
                times.append(time.perf_counter() - start)
    finally:
        run.program.release()
    return min(times[first:])


@dataclass(frozen=True, kw_only=True)
class MeasuredSize:
    """How many batched trials take the least time each, and the seconds of a trial's step then.

    `limited_by_trials` tells that a larger batch might be better still: there were too few trials
    to try one. A step of `nearly_free` trials hardly takes longer than that of one.
    """

    size: int
    seconds: float
    limited_by_trials: bool
    nearly_free: int = 1

    def covers(self, trials: int) -> bool:
        """Whether measuring with so many trials would try no larger batch."""
        return not self.limited_by_trials or trials <= self.size


def measure_size(
    batched: BatchedTrials, device: str, control: Control = UNCONTROLLED
) -> MeasuredSize:
    """How many batched trials take the least time each; doubled, up to all, as long as it pays.

    Running out of memory ends the search, not the work. Batches are timed without compiling
    them: a compiled batch gains from size at least as much, and each size costs a compilation.
    """
    best, size = MeasuredSize(size=1, seconds=math.inf, limited_by_trials=False), 1
    count, alone = len(batched.trials), math.inf
    while size <= count:
        part = BatchedTrials(trials=batched.trials[:size], corpus=batched.corpus)
        try:
            seconds = step_seconds(part, device, control=control) / size
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            forget_frames(error)
            free_unused(torch.device(device))
            return replace(best, limited_by_trials=False)
        # What is less than double is all of them: nine trials need not become five and four.
        ratio = MAX_TIME_RATIO if size >= 2 * best.size else 1.0
        if seconds > best.seconds * ratio:
            return replace(best, limited_by_trials=False)
        alone = seconds if size == 1 else alone
        free = size if size * seconds <= NEARLY_FREE * alone else best.nearly_free
        best = MeasuredSize(size=size, seconds=seconds, limited_by_trials=True, nearly_free=free)
        size = 2 * size if size == count else min(2 * size, count)
    return best


@dataclass(frozen=True, kw_only=True)
class MeasureSize(EngineTask):
    """The task of finding how many of these trials to batch on a device."""

    device: str

    def run(self, control: Control) -> dict[str, Any] | None:
        """The fields of `MeasuredSize`; None when the trials cannot be trained."""
        try:
            batched = BatchedTrials(trials=self.trials, corpus=self.corpus)
            return asdict(measure_size(batched, self.device, control))
        except SweeperError:
            return None
        except UNTRAINABLE as error:
            raise_if_broken(torch.device(self.device), error)
            return None


TrialCount = int | Literal["auto"]

MEASURING_PAYS = 60.0
"""Seconds of work in one process above which it is worth measuring whether several are faster."""
LONG_STEP = 2e10
"""FLOPs that take a processor about a second."""
MIN_GAIN = 1.05
"""Several processes must be so much faster than one."""
DOUBTFUL_GAIN = 1.5
"""Where less is seen, one is timed again: a wrong choice costs up to half of the speed."""
UNMEASURED_SIZE = 16
"""How many are batched where nothing can be measured: a login node cannot tell what fits a GPU."""

Measured = dict[str, list[MeasuredSize]]
"""What was measured, in order, by specification, device and layout."""
_MEASURED: Measured = {}
"""In this process or its workers."""


def measured_for(measured: Measured, key: str, trials: int) -> MeasuredSize | None:
    """The first measurement that says how many of so many trials to batch."""
    # The first: later ones, made for more trials, must not change what fewer were told.
    return next((size for size in measured.get(key, ()) if size.covers(trials)), None)


class BatchRecord:
    """`batches.jsonl` of a study: sizes that were measured, and the batches that were formed.

    Batched trials round as their batch does, in the last digits, and sizes follow the measured
    speed: by this record a search that is resumed or repeated trains the same batches. A line is
    on the disk before the batch is trained. A line that cannot be read is passed over, and a file
    that cannot be written costs the record alone.
    """

    def __init__(self, path: Path | None) -> None:
        """Read what earlier drivers left at `path`; None keeps nothing."""
        self.path, self.measured = path, Measured()
        self.formed: list[tuple[str, list[str]]] = []  # (under which settings, keys), oldest first
        lines: list[bytes] = []
        if path is not None:
            with suppress(OSError):
                lines = path.read_bytes().splitlines()
        for line in lines:
            with suppress(*RECORD_ERRORS, SweeperError):
                record = parse_json(line)
                if "keys" in record:
                    self.formed.append((str(record["settings"]), list(map(str, record["keys"]))))
                    continue
                size = from_json(MeasuredSize, record["measured"])
                if size.size >= 1:
                    self.measured.setdefault(str(record["of"]), []).append(size)

    def again(self, trials: Sequence[Trial], settings: str) -> list[tuple[Trial, ...]]:
        """Batches of `trials` that were formed under the same `settings`, the newest first."""
        by_key = {trial.key: trial for trial in trials}
        batches = []
        for formed_under, keys in reversed(self.formed):
            if formed_under == settings and keys and all(key in by_key for key in keys):
                batches.append(tuple(by_key.pop(key) for key in dict.fromkeys(keys)))
        # Taken newest first, so that a trial is in its last batch; given back in the order formed.
        return batches[::-1]

    def note_batches(self, batches: Sequence[Sequence[Trial]], settings: str) -> None:
        """Batches that are about to be trained."""
        keys = [[trial.key for trial in batch] for batch in batches]
        self._append(*({"settings": settings, "keys": batch} for batch in keys))

    def note_measured(self, key: str, size: MeasuredSize) -> None:
        """A size that decides from here on."""
        self.measured.setdefault(key, []).append(size)
        self._append({"of": key, "measured": to_json(size)})

    def _append(self, *records: Mapping[str, Any]) -> None:
        if self.path is None or not records:
            return
        # An empty line first: what a kill has torn off must not join the next.
        text = "".join(f"\n{json.dumps(record)}" for record in records)
        with suppress(OSError):
            append(self.path, f"{text}\n".encode())


def split(trials: Sequence[object], size: int) -> list[slice]:
    """Slices of at most `size`, as equal as they can be."""
    count = -(-len(trials) // size)  # rounded up
    edges = [round(i * len(trials) / count) for i in range(count + 1)] if count else [0]
    return [slice(a, b) for a, b in pairwise(edges)]


def measure_here(
    trials: tuple[Trial, ...], corpus: Corpus, device: str, size: TrialCount
) -> tuple[int, float]:
    """How many trials to batch and seconds of a trial's step; measured once for a spec.

    Where a step alone takes a processor seconds, one of fewer examples is timed in its place: it
    is all matrix products, whose time goes as the examples, and batching gains nothing.
    """
    train, alone = trials[0].spec.train, prepare(trials[0].spec)
    fewer = int(train.batch_size * LONG_STEP / (alone.flops() / train.steps))
    if device == "cpu" and fewer < train.batch_size:
        few = replace(train, batch_size=max(1, fewer), accumulate=1)
        trial = replace(trials[0], spec=replace(trials[0].spec, train=few))
        part = BatchedTrials(trials=(trial,), corpus=corpus)
        seconds = step_seconds(part, device, steps=1) * train.batch_size / few.batch_size
        return 1 if size == "auto" else size, seconds
    if size != "auto":
        part = BatchedTrials(trials=trials[:size], corpus=corpus)
        return size, step_seconds(part, device) / len(part.trials)
    key = _key(trials[0], device, 1)
    sizes = _MEASURED.setdefault(key, [])
    # With fewer trials than now, larger batches could not be tried.
    if not sizes or not sizes[-1].covers(len(trials)):
        sizes.append(measure_size(BatchedTrials(trials=trials, corpus=corpus), device))
    return sizes[-1].size, sizes[-1].seconds


def _key(trial: Trial, device: str, layout: int) -> str:
    return f"{trial.spec.digest} {device} {layout}"


class TrialsPerJob:
    """How many trials a job batches, for one sweep, and the layout of its executor."""

    def __init__(
        self,
        size: TrialCount,
        corpus: Corpus,
        device: str,
        notify: Callable[[str], None],
        path: Path | None = None,
        planned: int = 0,
    ) -> None:
        """Measure an "auto" `size`; `path` keeps it, and `planned` are all trials of the sweep."""
        self.fixed, self.corpus, self.device, self.notify = size, corpus, device, notify
        self.planned = planned
        self.record = BatchRecord(path)
        self.layout: int | None = None
        """How many jobs run at a time; None where every job is a process of its own."""

    @property
    def settings(self) -> str:
        """What batches depend on beside their trials: those of other settings are formed anew."""
        return f"{self.fixed} {self.device} {self.layout or 'elsewhere'}"

    @staticmethod
    def elsewhere(size: TrialCount) -> int:
        """The size where nothing can be measured."""
        return UNMEASURED_SIZE if size == "auto" else size

    def choose_layout(self, trials: Sequence[Trial], executor: Executor) -> None:
        """Choose, once, the executor's least number of jobs at a time, or its most where faster."""
        if self.layout is not None or not executor.layouts:
            return
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(trial.spec.digest, []).append(trial)

        def operations(group: list[Trial]) -> int:
            prepared = prepare(group[0].spec)
            return len(group) * prepared.train.steps * prepared.parameters()

        largest = max(groups.values(), key=operations)
        planned = max(self.planned, len(largest))
        if self.fixed != "auto":
            largest = largest[: self.fixed]
        self.layout, count = executor.layouts[0], min(executor.layouts[-1], planned)
        if count > self.layout:
            alone = self._measured(largest, executor, 1)
            steps = prepare(largest[0].spec).train.steps
            work = math.nan if alone is None else alone.seconds * steps * planned
            # Infinite where not even one trial fits without recomputing its activations.
            if alone is None or not MEASURING_PAYS <= work < math.inf:
                self.layout = 1
            else:
                rate = self._rate(largest, executor, count)
                gain = rate * alone.seconds
                if gain < DOUBTFUL_GAIN:
                    gain = rate * self._alone_again(largest, executor, alone).seconds
                self.layout = count if gain > MIN_GAIN else 1
                self.notify(
                    f"{count} worker processes do {gain:.2f} times the steps of one, as measured: "
                    f"{self.layout} used"
                )
        executor.use(self.layout)

    def size(self, trials: Sequence[Trial], executor: Executor) -> int:
        """How many of `trials`, which are of one specification, a job batches."""
        if self.fixed != "auto" or self.layout is None:
            return self.elsewhere(self.fixed)
        fair = -(-len(trials) // self.layout)  # what each of the jobs at a time would get
        if fair == 1:
            return 1
        measured = self._measured(trials[:fair], executor, self.layout)
        if measured is None:
            return 1  # what cannot be trained fails by itself, trial by trial, with its reason
        # In as many rounds as the best size takes, all jobs of a round as large as each other:
        # seven trials for two workers that take four at best are four and three, in one round.
        rounds = -(-len(trials) // (min(measured.size, fair) * self.layout))
        return -(-len(trials) // (rounds * self.layout))

    def room(self, trials: Sequence[Trial], ahead: Sequence[Trial], executor: Executor) -> int:
        """How many of `ahead` are nearly free; none on a CPU, where the losses would round anew."""
        if self.device == "cpu" or self.fixed != "auto" or self.layout is None or not ahead:
            return 0
        share = -(-(len(trials) + len(ahead)) // self.layout)
        measured = self._measured([*trials, *ahead][:share], executor, self.layout)
        return 0 if measured is None else max(0, measured.nearly_free * self.layout - len(trials))

    def _alone_again(
        self, trials: Sequence[Trial], executor: Executor, before: MeasuredSize
    ) -> MeasuredSize:
        """The mean of before and now: a machine that others use, too, changes its speed."""
        key = f"{_key(trials[0], self.device, 1)} again"
        recorded = self._recorded(key, len(trials))
        if recorded is None:
            [answer] = executor.call([self._task(trials[: before.size])], 1)
            after = before if answer is None else MeasuredSize(**answer)
            seconds = (before.seconds + after.seconds) / 2
            recorded = self._keep(key, replace(before, seconds=seconds))
        return recorded

    def _rate(self, trials: Sequence[Trial], executor: Executor, count: int) -> float:
        """Trial-steps a second of so many workers at once; 0 when one of them ends."""
        share = trials[: -(-len(trials) // count)]
        key = _key(trials[0], self.device, count)
        recorded = self._recorded(key, len(share))
        if recorded is None:
            answers = executor.call([self._task(share)] * count, count)
            measured = [MeasuredSize(**answer) for answer in answers if answer is not None]
            if len(measured) < len(answers):
                return 0.0
            # They shared the machine while they were measured; a round ends with the slowest.
            recorded = self._keep(key, max(measured, key=lambda size: size.seconds))
        return count / recorded.seconds

    def _measured(
        self, trials: Sequence[Trial], executor: Executor, layout: int
    ) -> MeasuredSize | None:
        """The best size of at most all `trials`, measured once; None if they cannot be trained."""
        key = _key(trials[0], self.device, layout)
        recorded = self._recorded(key, len(trials))
        if recorded is None:
            [answer] = executor.call([self._task(trials)], layout)
            recorded = None if answer is None else self._keep(key, MeasuredSize(**answer))
        return recorded

    def _recorded(self, key: str, trials: int) -> MeasuredSize | None:
        """What the study has by now, else what was measured for another one of this process."""
        if (recorded := measured_for(self.record.measured, key, trials)) is not None:
            return recorded
        recorded = measured_for(_MEASURED, key, trials)
        if recorded is not None:
            self.record.note_measured(key, recorded)
        return recorded

    def _keep(self, key: str, measured: MeasuredSize) -> MeasuredSize:
        _MEASURED.setdefault(key, []).append(measured)
        self.record.note_measured(key, measured)
        return measured

    def _task(self, trials: Sequence[Trial]) -> MeasureSize:
        return MeasureSize(trials=tuple(trials), corpus=self.corpus, device=self.device)
