"""Steps that are recorded and replayed are the steps that they were recorded of, to the last bit.

A tape on the CPU stands in for the GPU's graph: like it, it replays operations on their memory.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sweeper.data.corpus import Corpus
from sweeper.engine import graph
from sweeper.engine import train as training
from sweeper.engine.batched import BLOCK_STEPS, BatchedRun, BatchedTrials, resident
from sweeper.engine.graph import GRAPH, GRAPHED_UPDATE, WARM_UP, StepWatch
from sweeper.engine.optimizers.first_order import AdamW
from sweeper.engine.program import program_for
from sweeper.engine.train import Execution, train
from sweeper.launch.job import Control, Leave
from sweeper.trial import PluginSpec, Trial
from tests.engine.optimizers import NAMES
from tests.engine.runs import StopTrials, leave_at, others, same_result, train_trials, trials_of
from tests.engine.tape import Strict, Tape, taped
from tests.engine.test_faithful import configs, data, trials
from tests.engine.tiny_trials import tokens, trial
from tests.golden import Golden
from tests.toy_models import Base, WithReplacedBuffers

__all__ = ["data"]
pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")
FOREIGN = ["PlainDecoder", "WithDropout", "WithStatistics", "WithReplacedBuffers", "Unmappable"]
PRECISIONS = ["float64", "float32", "bfloat16", "bfloat16_stream", "float16"]
EXTRAS: list[dict[str, Any]] = [{}, {"clip": 0.5}, {"accumulate": 2}, {"dropout": 0.1}]
FALLS_BACK = ["ReadsALoss", "Masks", "Copies", "Counts", "Draws", "Remembers", "Replaces"]
ON_THE_HOST = ("shampoo", "soap")
"""Optimizers whose update takes eigenvalues, for which the device is waited for."""
STEPS = int(os.environ.get("SWEEPER_STEPS", "70"))
"""More than a block of what is sent ahead; `make test-long` takes 200."""


def cases() -> Iterator[Any]:
    """Those that hold pairs which none before has are in every run; of the product every tenth."""
    axes = ([*sorted(configs("model")), *FOREIGN], NAMES, PRECISIONS, range(len(EXTRAS)), (1, 2))
    every = [c for c in product(*axes) if c[2] != "float16" or c[1] not in ON_THE_HOST]
    random.Random(0).shuffle(every)
    seen, quick = set[tuple[int, int, Any, Any]](), list[Any]()
    for least in (10, 8, 5, 3, 2, 1):
        for case in every:
            pairs = {(i, j, case[i], case[j]) for i, j in combinations(range(len(case)), 2)}
            if len(pairs - seen) >= least:
                seen |= pairs
                quick.append(case)
    yield from quick
    yield from (pytest.param(*case, marks=pytest.mark.long) for case in every[::10])


def batched_case(
    model: str, optimizer: str, precision: str, extra: int, count: int, data: dict[str, Corpus]
) -> BatchedTrials:
    changed = dict(EXTRAS[extra])
    dropout = {"dropout": changed.pop("dropout", 0.0)}
    group = trials_of(model) if model in FOREIGN else trials(model, "adamw", "mup", data[model])
    spec = group[0].spec
    chosen = dict(configs("optimizer")[optimizer])
    settings = {"steps": STEPS, "batch_size": 2, "precision": precision, **changed}
    accepts = dropout if "dropout" in configs("model").get(model, {}) else {}
    spec = replace(
        spec,
        model=replace(spec.model, arguments={**spec.model.arguments, **accepts}),
        optimizer=PluginSpec(name=chosen.pop("_target_"), arguments=chosen),
        train=replace(spec.train, **settings),
    )
    group = [replace(each, spec=spec) for each in group[:count]]
    return BatchedTrials(trials=tuple(group), corpus=data.get(model, tokens()))


def everything(run: BatchedRun, steps: int) -> list[Tensor]:
    """All that is seen of so many steps."""
    losses = [run.step().clone() for _ in range(steps)]
    state = [value.clone() for value in run.tensors().values()]
    heldout = [value for value in run.heldout() if value is not None]
    return [*losses, *state, *heldout, run.clipped, run.broken, run.losses]


@pytest.mark.parametrize(("model", "optimizer", "precision", "extra", "count"), list(cases()))
def test_replayed_steps_are_plain_ones(
    model: str,
    optimizer: str,
    precision: str,
    extra: int,
    count: int,
    data: dict[str, Corpus],
) -> None:
    batched = batched_case(model, optimizer, precision, extra, count, data)
    plain, before = everything(BatchedRun(batched), STEPS), Tape.replayed
    with taped():
        run = BatchedRun(batched)
        replayed = everything(run, STEPS)
    assert Tape.replayed - before == STEPS - WARM_UP
    for mine, theirs in zip(replayed, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    unsupported = run.program.unsupported
    assert (GRAPHED_UPDATE in unsupported) == (
        optimizer in ON_THE_HOST
    ) and GRAPH not in unsupported
    assert_steps_keep_to_their_memory(run, whole=optimizer not in ON_THE_HOST)


def assert_steps_keep_to_their_memory(run: BatchedRun, *, whole: bool) -> None:
    """No value is read, nothing allocated stays, and what is read lies where it lay before."""
    places = list[set[int]]()
    for _ in range(3):
        run._send()
        run.step_index += 1
        with Strict() as strict:
            run._backward()
            if whole:
                run._finish()
        if not whole:
            run._finish()
        assert not strict.survivors()
        places.append({*strict.outside})
    assert places[2] <= places[1]


# What cannot be replayed.


class ReadsALoss(Base):
    def middle(self, x: Tensor) -> Tensor:
        return x if x.is_meta or x.detach().mean().item() > -1e9 else 2 * x


class Masks(Base):
    def middle(self, x: Tensor) -> Tensor:
        return x if x.is_meta else x + 0 * x.detach()[x.detach() > 0].sum()


class Copies(Base):
    def middle(self, x: Tensor) -> Tensor:
        return x if x.is_meta else x * torch.tensor([0.9], dtype=x.dtype, device=x.device)


class Counts(Base):
    calls = 0

    def middle(self, x: Tensor) -> Tensor:
        self.calls += not x.is_meta
        return x / (1 + self.calls % 3)


class Draws(Base):
    def middle(self, x: Tensor) -> Tensor:
        return x if x.is_meta or random.random() < 0.5 else 0.9 * x


class Remembers(Base):
    last: ClassVar[list[Any]] = [0.0]

    def middle(self, x: Tensor) -> Tensor:
        if x.is_meta:
            return x
        before, self.last[0] = self.last[0], x.detach().mean()
        return x + 0.1 * before


class Replaces(WithReplacedBuffers):
    def change(self, width: int) -> None:
        self.register_buffer("running", torch.zeros(()), persistent=False)


class Grows(Base):
    def change(self, width: int) -> None:
        self.register_buffer("table", torch.ones(1), persistent=False)
        self.register_buffer("made", None, persistent=False)

    def middle(self, x: Tensor) -> Tensor:
        if not x.is_meta and len(self.table) == 1:
            self.table = torch.linspace(0.5, 1, x.shape[-1], dtype=x.dtype)
            self.made = 1 + self.table
        return x if x.is_meta else x * self.table * self.made


@dataclass(frozen=True, kw_only=True)
class Replacing(AdamW):
    """Puts new tensors in the place of its moments."""

    def update(self, params: Any, grads: Any, state: Any, hps: Any, now: Any) -> None:
        super().update(params, grads, state, hps, now)
        state["first"] = [value.clone() for value in state["first"]]


@dataclass(frozen=True, kw_only=True)
class Noisy(AdamW):
    generator: ClassVar[torch.Generator] = torch.default_generator

    def update(self, params: Any, grads: Any, state: Any, hps: Any, now: Any) -> None:
        super().update(params, [g + 1e-3 * torch.randn_like(g) for g in grads], state, hps, now)


def fallback_of(name: str) -> Trial:
    [first, *_] = trials_of("Plain")
    place = PluginSpec(name=f"{__name__}.{name}", arguments={})
    model = issubclass(globals()[name], Base)
    half = replace(first.train, precision="float16")
    changed = {"model": place} if model else {"optimizer": place, "train": half}
    return replace(first, spec=replace(first.spec, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FALLS_BACK)
def test_a_module_that_cannot_be_recorded_is_told_by_the_operation(
    name: str, golden: Golden
) -> None:
    notices, single = list[str](), fallback_of(name)

    def trained() -> Any:
        model: Any = program_for(single.spec, "cpu").model
        model.calls, model.last, model.running = 0, [0.0], torch.zeros(())
        random.seed(0)
        return train_trials([single], control=Control(notify=notices.append))

    plain, recorded = trained(), Tape.recorded
    with taped():
        assert same_result(trained()[0], plain[0]) and Tape.recorded == recorded
        trained()
    golden.says("\n".join(notices))


def test_what_lies_on_the_host_is_told_from_what_lies_on_the_device() -> None:
    """A number of the host fills a mask; a value of the host that changes is not replayed."""
    there = {"device": "meta"}

    def refusal(step: Any) -> str:
        with StepWatch(torch.device("meta")) as watch:
            step(torch.ones(3, **there), torch.ones(3, **there) > 0)  # type: ignore[call-overload]
        return watch.refusal

    host, zero = torch.zeros(1), torch.zeros(())
    assert not refusal(lambda x, mask: x.index_put_((mask,), zero))
    assert not refusal(lambda x, mask: x.add_(zero))
    assert "waits" in refusal(lambda x, mask: x.index_put_((mask,), torch.ones(1, **there)))
    assert "copies" in refusal(lambda x, mask: x.index_put_((mask.long(),), zero))
    assert "aten::add_.Tensor changes" in refusal(lambda x, mask: host.add_(1))


@pytest.mark.parametrize("name", ["Replacing", "Noisy"])
def test_an_update_that_cannot_be_recorded_runs_behind_the_graph(name: str, golden: Golden) -> None:
    notices, batch = list[str](), [fallback_of(name), replace(fallback_of(name), seed=1)]

    def trained() -> Any:
        torch.manual_seed(0)
        return train_trials(batch, control=Control(notify=notices.append))

    program_for(batch[0].spec, "cpu")  # which draws, once
    plain, replayed = trained(), Tape.replayed
    with taped():
        assert all(map(same_result, trained(), plain))
    assert Tape.replayed - replayed == batch[0].train.steps - WARM_UP
    golden.says("\n".join(notices))


def test_a_recording_that_fails_is_told_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def fails(tape: Tape, step: Any) -> None:
        with torch.no_grad():
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    notices, batch = list[str](), trials_of("Tied")
    plain = train_trials(batch)
    monkeypatch.setattr(Tape, "record", fails)
    with taped():
        again = train_trials(batch, control=Control(notify=notices.append))
    assert all(map(same_result, again, plain))
    program_for(batch[0].spec, "cpu").unsupported.clear()
    golden.says("\n".join(notices))


# What is recorded serves the batches to come.


def lived(batched: BatchedTrials) -> list[Tensor]:
    """All that is seen of a batch to its end, of which a trial ends early."""
    run = BatchedRun(batched)
    seen = [value.clone() for value in everything(run, WARM_UP + 3)]
    if len(run.slots) > 1:
        run.select(range(1, len(run.slots)))
        seen += [value.clone() for value in everything(run, WARM_UP + 3)]
    run.keep()
    return seen


ALIKE = ["llama adamw bfloat16 1 3", "llama muon float16 1 2", "llama soap float64 2 2"]
ALIKE += ["mlp adamw float32 3 2", "moe soap float64 2 1", "WithDropout adamw float64 2 1"]
ALIKE += ["WithDropout adamw float32 0 3", "WithStatistics adamw float32 0 3"]
ALIKE += ["WithReplacedBuffers sgd float32 1 1"]


@pytest.mark.parametrize("case", ALIKE)
def test_batches_of_a_shape_replay_one_recording(case: str, data: dict[str, Corpus]) -> None:
    """And one of another shape between them does no harm."""
    model, optimizer, precision, extra, count = case.split()
    first = batched_case(model, optimizer, precision, int(extra), int(count), data)
    larger = replace(first, trials=(*first.trials, replace(first.trials[0], seed=1)))
    batches = [first, others(first, 1), larger, others(first, 2), others(larger, 3)]
    plain, recorded = [lived(batch) for batch in batches], Tape.recorded
    with taped():
        replayed = [lived(batch) for batch in batches]
    for mine, theirs in zip(chain(*replayed), chain(*plain), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    # Counts of clipped steps are of all trials of a batch, those that have ended too.
    assert Tape.recorded - recorded == (4 if extra == "1" and count != "1" else 3)


def test_what_a_module_of_one_trial_is_bound_to_is_not_left_behind() -> None:
    """A table that a run has made, whose memory is free by the next; weights before a recording."""
    batch, recorded = [fallback_of("Grows")], Tape.recorded
    first = BatchedTrials(trials=tuple(trials_of("Plain")[:1]), corpus=tokens())
    made, plain = train_trials(batch), everything(BatchedRun(others(first, 1)), 6)
    with taped():
        assert all(same_result(*train_trials(batch), *made) for _ in range(2))
        assert Tape.recorded - recorded == 2
        lived(first)
        run = BatchedRun(others(first, 1))
        run._send()
        run._warm = -1  # one step as it is: with its tensors
        losses = [run.step().clone(), run.step().clone()]
        assert run._recorded is not None
        run.uncompile()
        assert all(map(torch.equal, [*losses, *everything(run, 4)], plain))


def test_recordings_are_told_apart_by_what_operations_follow_from() -> None:
    # The second has one factor that is not 1 for all, as the first: of embeddings, not of the head.
    factors = [trial("mup"), trial("mup", alpha_emb=1.0, alpha_output=1.0)]
    alike = [*factors, fallback_of("Counts"), fallback_of("Draws")]
    batches = [BatchedTrials(trials=(each,), corpus=tokens()) for each in alike]
    run, *_ = runs = [BatchedRun(each) for each in batches]
    keys = [each._key() for each in runs]
    for run.compiled, run.program.unsupported in ((True, {}), (False, {"looped": ""}), (False, {})):
        keys += [run._key()]
    keys.pop()  # as it was
    for length in (4, 8):
        graph.KEPT[length] = Any
        run.feed.resident = resident(tokens(), length, run.device, run.dtype)
        keys += [run._key()]
        assert not graph.KEPT, "which read another corpus"
    assert len({*keys}) == len(keys)


def test_a_recording_is_of_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a corpus on the device, whose batches are those of the host."""
    spec = (group := trials_of("Plain"))[0].spec
    spec = replace(spec, train=replace(spec.train, clip=1e-3))
    first = BatchedTrials(trials=tuple(replace(t, spec=spec) for t in group), corpus=tokens())
    batches, recorded = [others(first, i) for i in range(3)], Tape.recorded

    def steps(run: BatchedRun) -> Tensor:
        return torch.stack([run.step() for _ in range(BLOCK_STEPS + 3)])

    runs = [BatchedRun(batch) for batch in batches]
    plain = [torch.cat([steps(run), steps(run)]) for run in runs]
    runs[0].select([0, 1])
    fewer = [steps(runs[0]), runs[0].clipped, runs[2].clipped]
    with taped():
        ended, alive, last = runs = [BatchedRun(batch) for batch in batches]
        for run in runs:
            run.feed.resident = resident(tokens(), 8, run.device, run.dtype)
        seen = [[steps(ended), steps(ended)], [steps(alive)]]
        ended.select([0, 1])
        seen += [[steps(last)], [steps(ended), ended.clipped.clone(), last.clipped]]
        seen[1] += [steps(alive)]
        seen[2] += [steps(last)]
        assert Tape.recorded - recorded == 3 and not graph.KEPT
        assert all(map(torch.equal, [*map(torch.cat, seen[:3]), *seen[3]], [*plain, *fewer]))
        alive.keep()
        # What a module has put in the place of another is not where the graph reads.
        monkeypatch.setattr(last.program.model, "table", torch.ones(1), raising=False)
        again = BatchedRun(first)
        again.feed.resident = ended.feed.resident
        steps(again)
        assert Tape.recorded - recorded == 4
        monkeypatch.setattr(graph, "fits", lambda size, device: size == 0)
        again.keep()
        assert not graph.KEPT, "where memory is scarce"


# Batches whose trials end, and that go on elsewhere.


@pytest.mark.parametrize("name", ["mixed", "float16"])
def test_trials_that_diverge_are_pruned_or_go_on_later_end_as_plain_ones(
    name: str, tmp_path: Path
) -> None:
    settings = {"precision": "float32" if name == "mixed" else name, "steps": 300, "clip": 1.0}
    batch = [
        trial("standard", eta=e, seed=i, train=settings) for i, e in enumerate((-7, 60, -6, -8))
    ]
    pruner = StopTrials(150, batch[2].key)
    plain = train_trials(batch, pruner=pruner)
    assert [result.status for result in plain] == ["complete", "diverged", "pruned", "complete"]
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    recorded = Tape.recorded
    with taped():
        with pytest.raises(Leave):
            train_trials(batch, pruner=pruner, execution=execution, control=leave_at(101))
        again = train_trials(batch, pruner=pruner, execution=execution)
        once_more = train_trials(batch, pruner=pruner)
    assert all(map(same_result, [*again, *once_more], [*plain, *plain]))
    assert Tape.recorded - recorded == 4, "of four slices, of three twice, of two; then of none"


def test_where_graphs_are_recorded_anew_a_batch_shrinks_by_a_quarter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes, select = list[int](), BatchedRun.select
    monkeypatch.setattr(training, "SHRINKS", {})
    monkeypatch.setattr(
        BatchedRun, "select", lambda run, slices: sizes.append(len(slices)) or select(run, slices)
    )
    ends = {5: 1, 10: 1, 15: 1}
    batch = [trial(seed=i, train={"steps": 40}) for i in range(5)]
    pruner: Any = StopTrials(5)
    pruner.rungs = tuple(ends)
    pruner.trials_to_stop = lambda step, losses, trials: {next(iter(losses))}
    with taped():
        results = train(BatchedTrials(trials=tuple(batch), corpus=tokens()), pruner=pruner)
    assert [result.status for result in results] == ["pruned"] * 3 + ["complete"] * 2
    assert sizes == [3, 2]
    for each, result in zip(batch[3:], results[3:], strict=True):
        assert result.objective == pytest.approx(train_trials([each])[0].objective, rel=1e-10)
