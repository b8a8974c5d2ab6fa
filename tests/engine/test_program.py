"""Modules of a user's own: how their gradients are got, compiled or not, and what they keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.jobs import TrainTrials
from sweeper.engine.optimizers.optimizer import StepInfo
from sweeper.engine.program import program_for
from sweeper.engine.train import Execution, train
from sweeper.launch.job import Control
from tests.engine.runs import close_results, same_result, train_trials, trial_of, trials_of
from tests.engine.tiny_trials import tokens, trial
from tests.golden import Golden

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


MODULES = ["Plain", "Unmappable", "WithDropout", "WithStatistics", "WithReplacedBuffers"]
MODULES += ["Tied", "Shared", "WithExtraState", "ReadsItsValues"]


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_users_train_in_batches(name: str) -> None:
    notices: list[str] = []
    trials = trials_of(name)
    together = train_trials(trials, control=Control(notify=notices.append))
    for each, result in zip(trials, together, strict=True):
        assert close_results(result, train_trials([each])[0])
    looped = name in ("Unmappable", "WithDropout")
    assert ("mapped" in program_for(trials[0].spec, "cpu").unsupported) == looped
    assert len(notices) == looped and all("one after the other" in line for line in notices)


def test_replaced_buffers_are_those_of_plain_torch() -> None:
    run = BatchedRun(BatchedTrials(trials=tuple(trials_of("WithReplacedBuffers")), corpus=tokens()))
    for _ in range(3):
        weights = {name: value.detach()[0].clone() for name, value in run.params.items()}
        before = run.buffers["running"][0].clone()
        run.step()
        model: Any = run.prepared.model().double()
        model.load_state_dict(weights | {"running": before})
        x, y = run.feed.batch(run.step_index - 1)
        model(x[0], y[0])
        torch.testing.assert_close(run.buffers["running"][0], model.running)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled_modules_of_users_train_alike(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor, which computes the same, compiles C++ for half a minute."""
    if backend != "inductor":
        compiler = torch.compile
        monkeypatch.setattr(torch, "compile", lambda module, **_: compiler(module, backend=backend))
    trials, notices = [trial_of("WithDropout", steps=4)], list[str]()
    (whole,) = train_trials(trials)
    reporter, on = Control(notify=notices.append), Execution(compile="on")
    (compiled,) = train_trials(trials, execution=on, control=reporter)
    assert close_results(compiled, whole) and not notices


def test_trials_that_are_recomputed_train_alone(golden: Golden) -> None:
    trials = [replace(each, spec=trial_of("Tied", steps=9).spec) for each in trials_of("Tied")]
    batched = BatchedTrials(trials=tuple(trials), corpus=tokens())
    program = program_for(trials[0].spec, "cpu")
    whole = train(batched)
    assert program.recompute() and not program.recompute()
    outcome = TrainTrials(**vars(batched), execution=Execution()).run(Control())
    assert not outcome.results and outcome.failure and not program.unsupported
    assert not outcome.failure.retry
    golden.says(outcome.failure.reason)
    assert close_results(train_trials(trials[:1])[0], whole[0])


@pytest.mark.parametrize("count", [1, 2])
def test_frozen_parameters_stay_as_the_model_made_them(count: int) -> None:
    trials = trials_of("Frozen")[:count]
    run = BatchedRun(BatchedTrials(trials=tuple(trials), corpus=tokens()))
    assert "head.weight" not in run.params
    before = {k: v.detach().clone() for k, v in run.params.items()}
    frozen = run.buffers["head.weight"].clone()
    assert frozen.abs().sum() > 0
    for _ in range(3):
        run.step()
    assert torch.equal(run.buffers["head.weight"], frozen)
    assert all(not torch.equal(run.params[name], value) for name, value in before.items())


@pytest.mark.parametrize(("name", "error"), [("ReturnsMore", TypeError), ("Raises", IndexError)])
def test_an_error_in_the_model_itself_rules_out_no_mode(name: str, error: type[Exception]) -> None:
    for count in (1, 2):
        with pytest.raises(error):
            train_trials(trials_of(name)[:count])
    assert not program_for(trial_of(name).spec, "cpu").unsupported


def compiler_that(fails: Callable[..., None]) -> Callable[..., Any]:
    """A stand-in for `torch.compile`: what it returns does what `fails` does to the function."""
    return lambda function, **_: partial(fails, function)


def test_a_failure_to_compile_leaves_the_modules_buffers_alone(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def fails(module: Any, *inputs: Any) -> None:
        module(*inputs)
        raise RuntimeError("no compiler here")

    notices, trials = list[str](), (trial_of("WithStatistics"),)
    (whole,) = train_trials(trials)
    monkeypatch.setattr(torch, "compile", compiler_that(fails))
    program, on = program_for(trials[0].spec, "cpu"), Execution(compile="on")
    control = Control(notify=notices.append)
    (result,) = train_trials(trials, execution=on, control=control)
    assert "compiled alone" in program.unsupported and same_result(result, whole)
    [notice] = notices
    golden.says(notice)
    run = BatchedRun(BatchedTrials(trials=trials, corpus=tokens()), compile="on")
    assert not run.compiled  # nor tried again
    program.unsupported.clear()


def updating(run: BatchedRun) -> None:
    """One update by gradients of 1, as on a device that compiles it: a CPU's update is eager."""
    run.compiled, run.device = True, torch.device("meta")
    now = StepInfo(step=torch.ones(()), schedule=torch.ones(1))
    with torch.no_grad():
        run._update([torch.ones_like(value) for value in run.params.values()], now)


def test_an_update_that_cannot_be_compiled_is_done_without(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def fails(*_: Any) -> None:
        raise torch._dynamo.exc.TorchDynamoException("no compiler here")

    batched = BatchedTrials(trials=(trial("standard"),), corpus=tokens())
    plain, other = BatchedRun(batched), BatchedRun(batched)
    plain.program.unsupported["compiled update"] = "not tried"
    updating(plain)
    plain.program.unsupported.clear()
    monkeypatch.setattr(torch, "compile", compiler_that(fails))
    updating(other)
    assert "compiled update" in other.program.unsupported
    for a, b in zip(plain.params.values(), other.params.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    [notice] = other.take_notices()
    golden.says(notice)


def test_an_update_that_fails_half_way_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have changed some weights: the batch begins anew, and then does not compile it."""

    def fails(update: Any, params: list[Any], *_: Any) -> None:
        params[0].add_(1)
        raise RuntimeError("a kernel failed")

    run = BatchedRun(BatchedTrials(trials=(trial("mup", eta=-9.0),), corpus=tokens()))
    monkeypatch.setattr(torch, "compile", compiler_that(fails))
    run.program.unsupported.clear()
    with pytest.raises(RuntimeError, match="a kernel failed"):
        updating(run)
    assert run.program.unsupported.pop("compiled update") == "a kernel failed"
