"""Modules of a user's own: how their gradients are got, compiled or not, and what they keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
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
from tests.engine.tiny_trials import corpus, tree, trial
from tests.golden import Golden
from tests.specs import spec_of

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


MODULES = ["Plain", "Unmappable", "WithDropout", "WithStatistics", "WithReplacedBuffers"]
MODULES += ["Tied", "Shared", "WithExtraState", "ReadsItsValues"]


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_users_train_in_batches(name: str, tmp_path: Path) -> None:
    notices: list[str] = []
    trials = trials_of(name)
    together = train_trials(trials, tmp_path, control=Control(notify=notices.append))
    for one, result in zip(trials, together, strict=True):
        assert close_results(result, train_trials([one], tmp_path)[0])
    looped = name in ("Unmappable", "WithDropout")
    assert ("mapped" in program_for(trials[0].spec, "cpu").unsupported) == looped
    assert len(notices) == looped and all("one after the other" in line for line in notices)


def test_replaced_buffers_are_those_of_plain_torch(tmp_path: Path) -> None:
    run = BatchedRun(
        BatchedTrials(trials=tuple(trials_of("WithReplacedBuffers")), corpus=corpus(tmp_path))
    )
    alone = [
        BatchedRun(BatchedTrials(trials=(t,), corpus=corpus(tmp_path)))
        for t in trials_of("WithReplacedBuffers")
    ]
    for _ in range(3):
        weights = {name: value.detach()[0].clone() for name, value in run.params.items()}
        before = run.buffers["running"][0].clone()
        run.step()
        model: Any = run.prepared.model().double()
        model.load_state_dict(weights | {"running": before})
        x, y = run.feed.batch(run.step_index - 1)
        model(x[0], y[0])
        torch.testing.assert_close(run.buffers["running"][0], model.running)
        for one in alone:
            one.step()
    running = torch.cat([one.buffers["running"] for one in alone])
    torch.testing.assert_close(run.buffers["running"], running)


def test_recomputed_activations_change_nothing(tmp_path: Path) -> None:
    one = trial_of("Plain", steps=11)
    whole = train_trials([one], tmp_path)[0]
    program = program_for(one.spec, "cpu")
    assert program.recompute() and not program.recompute()
    calls: list[int] = []
    for block in program.model.hidden:  # type: ignore[union-attr]
        block.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    assert close_results(train_trials([one], tmp_path)[0], whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(
    "name",
    [
        "WithDropout",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("WithReplacedBuffers", "Tied")),
    ],
)
def test_compiled_modules_of_users_train_alike(name: str, tmp_path: Path) -> None:
    one, notices = trial_of(name, steps=4), list[str]()
    (whole,) = train_trials([one], tmp_path)
    reporter = Control(notify=notices.append)
    (compiled,) = train_trials([one], tmp_path, execution=Execution(compile="on"), control=reporter)
    assert close_results(compiled, whole) and not notices


def test_trials_that_are_recomputed_train_alone(tmp_path: Path, golden: Golden) -> None:
    trials = [replace(one, spec=trial_of("Tied", steps=9).spec) for one in trials_of("Tied")]
    batched, program = (
        BatchedTrials(trials=tuple(trials), corpus=corpus(tmp_path)),
        program_for(trials[0].spec, "cpu"),
    )
    whole = train(batched)
    assert program.recompute()
    outcome = TrainTrials(trials=batched.trials, corpus=batched.corpus, execution=Execution()).run(
        Control()
    )
    assert not outcome.results and outcome.failure and not program.unsupported
    assert not outcome.failure.retry
    golden.says(outcome.failure.reason)
    assert close_results(train_trials(trials[:1], tmp_path)[0], whole[0])


@pytest.mark.parametrize("count", [1, 2])
def test_frozen_parameters_stay_as_the_model_made_them(count: int, tmp_path: Path) -> None:
    trials = trials_of("Frozen")[:count]
    run = BatchedRun(BatchedTrials(trials=tuple(trials), corpus=corpus(tmp_path)))
    assert "head.weight" not in run.params
    before = {k: v.detach().clone() for k, v in run.params.items()}
    frozen = run.buffers["head.weight"].clone()
    assert frozen.abs().sum() > 0
    for _ in range(3):
        run.step()
    assert torch.equal(run.buffers["head.weight"], frozen)
    assert all(not torch.equal(run.params[name], value) for name, value in before.items())


@pytest.mark.parametrize("count", [1, 2])
def test_an_output_that_is_no_loss_is_an_error_that_says_so(count: int, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"must return the loss.*not a tuple of"):
        train_trials(trials_of("ReturnsMore")[:count], tmp_path)


def test_an_error_in_the_model_itself_rules_out_no_mode(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        train_trials(trials_of("Raises"), tmp_path)
    assert not program_for(trial_of("Raises").spec, "cpu").unsupported


def test_a_failure_to_compile_leaves_the_modules_buffers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(module: Any, **_: Any) -> Any:
        def fail(*given: Any) -> None:
            module(*given)
            raise RuntimeError("no compiler here")

        return fail

    (whole,) = train_trials([trial_of("WithStatistics")], tmp_path)
    monkeypatch.setattr(torch, "compile", broken)
    program = program_for(trial_of("WithStatistics").spec, "cpu")
    (result,) = train_trials(
        [trial_of("WithStatistics")], tmp_path, execution=Execution(compile="on")
    )
    assert "compiled alone" in program.unsupported and same_result(result, whole)
    run = BatchedRun(
        BatchedTrials(trials=(trial_of("WithStatistics"),), corpus=corpus(tmp_path)), compile="on"
    )
    assert not run.compiled  # nor tried again
    program.unsupported.clear()


@pytest.mark.parametrize(
    "name", ["first_order.AdamW", "first_order.SGD", "first_order.Lion", "first_order.Adafactor"]
)
def test_an_update_that_cannot_be_compiled_is_done_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def broken(function: Any, **_: Any) -> Any:
        def fail(*given: Any) -> None:
            raise torch._dynamo.exc.TorchDynamoException("no compiler here")

        return fail

    made = tree("standard", steps=3)
    made["optimizer"] = {"_target_": f"sweeper.engine.optimizers.{name}"}
    batched = BatchedTrials(
        trials=(replace(trial("standard"), spec=spec_of(made)),), corpus=corpus(tmp_path)
    )
    plain, other = BatchedRun(batched), BatchedRun(batched)
    monkeypatch.setattr(torch, "compile", broken)
    other.compiled, other.device = True, torch.device("meta")  # not a CPU, whose update is eager
    monkeypatch.setattr(BatchedRun, "_gradient_modes", lambda self: ["alone"])
    grads = [torch.ones_like(value) for value in plain.params.values()]
    now = StepInfo(step=torch.ones(()), schedule=torch.ones(1))
    for run in (plain, other):
        with torch.no_grad():
            run._update([g.clone() for g in grads], now)
    assert "compiled update" in other.program.unsupported
    for a, b in zip(plain.params.values(), other.params.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    [notice] = other.take_notices()
    golden.says(notice)


def test_an_update_that_fails_half_way_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have changed some weights: the batch begins anew, and then does not compile it."""

    def broken(function: Any, **_: Any) -> Any:
        def fail(params: list[Any], *given: Any) -> None:
            params[0].add_(1)
            raise RuntimeError("a kernel failed")

        return fail

    run = BatchedRun(BatchedTrials(trials=(trial("mup", eta=-9.0),), corpus=corpus(tmp_path)))
    monkeypatch.setattr(torch, "compile", broken)
    run.program.unsupported.clear()
    run.compiled, run.device = True, torch.device("meta")
    grads = [torch.ones_like(value) for value in run.params.values()]
    now = StepInfo(step=torch.ones(()), schedule=torch.ones(1))
    with torch.no_grad(), pytest.raises(RuntimeError, match="a kernel failed"):
        run._update(grads, now)
    assert run.program.unsupported.pop("compiled update") == "a kernel failed"
