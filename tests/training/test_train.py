"""The run of a pack: who leaves it and when, checkpoints, and ways around what cannot be mapped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sweeper.control import Control, Leave
from sweeper.errors import ConfigError
from sweeper.runner.tasks import TrainPack
from sweeper.train_settings import TrainSettings
from sweeper.training import checkpoint
from sweeper.training.optimizer import StepInfo
from sweeper.training.pack import BALLAST, Pack, PackRun, clip
from sweeper.training.program import for_spec
from sweeper.training.train import Execution, train
from sweeper.trial import Result, Trial
from tests.specs import spec_of
from tests.training.helpers import corpus, tree, trial

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


def packed(trials: Sequence[Trial], folder: Path, **options: Any) -> list[Result]:
    return train(Pack(trials=tuple(trials), corpus=corpus(folder)), **options)


def same(one: Result, other: Result) -> bool:
    """Whether two results are the same but for their times."""
    timeless = {"seconds": 0.0, "finished_at": 0.0}
    return replace(one, **timeless) == replace(other, **timeless)


def close(one: Result, other: Result) -> bool:
    return one.objective == pytest.approx(other.objective, rel=1e-10) and (
        one.heldout == pytest.approx(other.heldout, rel=1e-10)
    )


class Cut:
    """A pruner that stops what it is told to."""

    def __init__(self, step: int, *keys: str) -> None:
        self.rungs, self.keys = (step,), set(keys)
        self.seen: dict[str, float] = {}

    def trials_to_stop(
        self, step: int, losses: Mapping[str, float], trials: Sequence[Trial]
    ) -> set[str]:
        assert step == self.rungs[0] and {t.key for t in trials} >= losses.keys()
        self.seen = dict(losses)
        return self.keys


def leave_at(step: int) -> Control:
    """Control that tells the pack to save itself and leave after so many steps."""
    left = [step]

    def should_leave() -> bool:
        left[0] -= 1
        return left[0] == 0

    return Control(should_leave=should_leave)


def wild(**changed: Any) -> Trial:
    """A trial that becomes not finite within some steps."""
    return trial("standard", eta=60.0, train={"precision": "float32", "steps": 40, **changed})


def test_pruned_trials_leave_and_change_nothing(tmp_path: Path) -> None:
    trials = [trial(seed=i, train={"steps": 20}) for i in range(4)]
    cut = Cut(12, trials[1].key, trials[3].key)
    results = packed(trials, tmp_path, pruner=cut)
    assert [r.status for r in results] == ["complete", "pruned", "complete", "pruned"]
    assert [r.steps for r in results] == [20, 12, 20, 12]
    for index in (0, 2):
        assert close(results[index], packed([trials[index]], tmp_path)[0])
    pruned = results[1]
    assert len(pruned.curve) == 12 and math.isnan(pruned.heldout)
    assert pruned.objective == pytest.approx(cut.seen[pruned.key])
    assert pruned.objective == pytest.approx(sum(pruned.curve[-2:]) / 2, abs=1e-4)


def test_a_diverged_trial_leaves_the_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    step = PackRun.step

    def counted(self: PackRun) -> Tensor:
        sizes.append(len(self.slots))
        return step(self)

    monkeypatch.setattr(PackRun, "step", counted)
    settings = {"precision": "float32", "steps": 40}
    calm = trial("standard", train=settings)
    results = packed([wild(), calm], tmp_path)
    assert results[0].status == "diverged" and results[0].steps < 10
    assert sizes[0] == 2 and sizes[-1] == 1 and results[1].status == "complete"
    assert results[1].objective == pytest.approx(packed([calm], tmp_path)[0].objective, rel=1e-5)


@pytest.mark.parametrize("step", [1, 7, 19])
def test_a_pack_goes_on_from_its_checkpoint_bit_for_bit(step: int, tmp_path: Path) -> None:
    trials = [
        trial(seed=i, eta=i / 2.0, train={"steps": 20, "precision": "float32"}) for i in (0, 1)
    ]
    whole = packed(trials, tmp_path)
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    with pytest.raises(Leave):
        packed(trials, tmp_path, execution=execution, control=leave_at(step))
    assert checkpoint.started(tmp_path / "checkpoints", trials) == [tuple(trials)]
    resumed = packed(trials, tmp_path, execution=execution)
    assert all(same(a, b) for a, b in zip(whole, resumed, strict=True))
    checkpoint.forget(tmp_path / "checkpoints", trials)
    assert not checkpoint.started(tmp_path / "checkpoints", trials)


@pytest.mark.parametrize("name", ["sgd.SGD", "lion.Lion", "adafactor.Adafactor", "muon.Muon"])
def test_every_optimizer_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    made = tree("spectral", steps=10)
    rule = "inverse_fan_in" if name.startswith("sgd") else "matched"
    made["parameterization"] = made["parameterization"] | {"rule": rule}
    made["optimizer"] = {"_target_": f"sweeper.training.{name}"}
    trials = [replace(trial("spectral", seed=i), spec=spec_of(made)) for i in (0, 1)]
    whole = packed(trials, tmp_path)
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    with pytest.raises(Leave):
        packed(trials, tmp_path, execution=execution, control=leave_at(4))
    resumed = packed(trials, tmp_path, execution=execution)
    assert all(same(a, b) for a, b in zip(whole, resumed, strict=True))


def test_a_checkpoint_knows_who_has_left(tmp_path: Path) -> None:
    settings = {"precision": "float32", "steps": 40}
    trials = [wild(), *(trial("standard", seed=i, train=settings) for i in range(3))]
    cut = Cut(20, trials[2].key)
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    whole = packed(trials, tmp_path, pruner=cut)
    with pytest.raises(Leave):
        packed(trials, tmp_path, execution=execution, control=leave_at(30), pruner=cut)
    resumed = packed(trials, tmp_path, execution=execution, pruner=cut)
    assert [r.status for r in resumed] == ["diverged", "complete", "pruned", "complete"]
    assert all(same(a, b) for a, b in zip(whole, resumed, strict=True))


def test_a_pack_saves_itself_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    monkeypatch.setattr(checkpoint, "save", lambda run, *_: saved.append(run.step_index))
    execution = Execution(checkpoints=tmp_path / "checkpoints", save_every=1e-9)
    packed([trial()], tmp_path, execution=execution)
    assert saved == list(range(1, 9))


def test_a_full_disk_loses_the_checkpoint_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    told: list[str] = []
    monkeypatch.setattr(checkpoint, "save", full)
    execution = Execution(checkpoints=tmp_path / "checkpoints", save_every=1e-9)
    (result,) = packed(
        [trial()], tmp_path, execution=execution, control=Control(notify=told.append)
    )
    assert result.status == "complete" and "No space left" in told[0]


@pytest.mark.parametrize("damage", ["truncated", "empty", "other trials", "other shapes"])
def test_a_damaged_checkpoint_is_told_and_not_used(damage: str, tmp_path: Path) -> None:
    folder, told = tmp_path / "checkpoints", list[str]()
    execution = Execution(checkpoints=folder)
    whole = packed([trial()], tmp_path)[0]
    other = trial(seed=1) if damage == "other trials" else trial()
    if damage == "other shapes":
        other = trial("umup", train={"steps": 9})
        other = replace(other, spec=replace(other.spec, width=16))
    with pytest.raises(Leave):
        packed([other], tmp_path, execution=execution, control=leave_at(4))
    path, mine = checkpoint.path_of(folder, [other]), checkpoint.path_of(folder, [trial()])
    if damage in ("truncated", "empty"):
        path.write_bytes(path.read_bytes()[: 5000 if damage == "truncated" else 0])
    path.rename(mine)
    reporter = Control(notify=told.append)
    (result,) = packed([trial()], tmp_path, execution=execution, control=reporter)
    assert same(result, whole) and len(told) == 1 and "begin anew" in told[0]


def test_a_kill_while_saving_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    with pytest.raises(Leave):
        packed([trial()], tmp_path, execution=execution, control=leave_at(3))
    path = checkpoint.path_of(tmp_path / "checkpoints", [trial()])
    before = path.read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sweeper.training.checkpoint.os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            packed([trial()], tmp_path, execution=execution, control=leave_at(3))
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1


def own(name: str, *, steps: int = 12) -> Trial:
    """A trial of one of `tests.training.modules`."""
    made = tree("standard", steps=steps)
    made["model"] = {"_target_": f"tests.training.modules.{name}", "width": 32, "depth": 2}
    return Trial(spec=spec_of(made), log2_hps=trial("standard").log2_hps, seed=0)


def family(name: str) -> list[Trial]:
    base = own(name)
    return [base, replace(base, seed=1), replace(base, log2_hps={**base.log2_hps, "eta": -6.0})]


MODULES = ["Plain", "Unmappable", "WithDropout", "WithStatistics", "WithOwnBuffers"]
MODULES += ["Tied", "Shared", "WithExtraState", "ReadsItsValues"]


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_a_users_own_pack(name: str, tmp_path: Path) -> None:
    told: list[str] = []
    trials = family(name)
    together = packed(trials, tmp_path, control=Control(notify=told.append))
    for one, result in zip(trials, together, strict=True):
        assert close(result, packed([one], tmp_path)[0])
    looped = name in ("Unmappable", "WithDropout")
    assert ("mapped" in for_spec(trials[0].spec, "cpu").refused) == looped
    assert len(told) == looped and all("one after the other" in line for line in told)


def test_a_modules_new_buffers_are_those_of_plain_torch(tmp_path: Path) -> None:
    run = PackRun(Pack(trials=tuple(family("WithOwnBuffers")), corpus=corpus(tmp_path)))
    alone = [PackRun(Pack(trials=(t,), corpus=corpus(tmp_path))) for t in family("WithOwnBuffers")]
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
    found = torch.cat([one.buffers["running"] for one in alone])
    torch.testing.assert_close(run.buffers["running"], found)


@pytest.mark.parametrize("name", ["WithStatistics", "WithOwnBuffers"])
def test_what_a_module_keeps_is_in_the_checkpoint(name: str, tmp_path: Path) -> None:
    trials = family(name)
    whole = packed(trials, tmp_path)
    execution = Execution(checkpoints=tmp_path / "checkpoints")
    with pytest.raises(Leave):
        packed(trials, tmp_path, execution=execution, control=leave_at(5))
    resumed = packed(trials, tmp_path, execution=execution)
    assert all(same(a, b) for a, b in zip(whole, resumed, strict=True))


def test_recomputed_activations_change_nothing(tmp_path: Path) -> None:
    one = own("Plain", steps=11)
    whole = packed([one], tmp_path)[0]
    program = for_spec(one.spec, "cpu")
    assert program.recompute() and not program.recompute()
    calls: list[int] = []
    for block in program.model.hidden:  # type: ignore[union-attr]
        block.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    assert close(packed([one], tmp_path)[0], whole)


@pytest.mark.parametrize("most", [1e-3, 1.0, 1e9])
def test_clipping_is_torchs_a_trial_at_a_time(most: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4, 5), (3, 7), (3, 2, 2, 2)]
    grads = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    grads[0][1] *= 100
    wanted = [grad.clone() for grad in grads]
    for index in range(3):
        leaves = [
            torch.nn.Parameter(torch.zeros(shape[1:], dtype=torch.float64)) for shape in shapes
        ]
        for leaf, grad in zip(leaves, wanted, strict=True):
            leaf.grad = grad[index]
        torch.nn.utils.clip_grad_norm_(leaves, most)
    clip(grads, most)
    for grad, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-12, atol=0)


def test_clipping_trains_and_stays_a_trials_own(tmp_path: Path) -> None:
    settings = {"clip": 0.01}
    trials = [trial("mup", seed=i, train=settings) for i in range(2)]
    together = packed(trials, tmp_path)
    assert close(together[1], packed([trials[1]], tmp_path)[0])
    assert together[0].objective != packed([trial("mup")], tmp_path)[0].objective


def test_schedule_and_decay_rates_are_a_trials_own(tmp_path: Path) -> None:
    names = ("warmup", "final_lr", "eps", "weight_decay", "one_minus_beta1", "one_minus_beta2")
    trials = [trial("mup"), *(trial("mup", **{name: 1.0}) for name in names)]
    together = packed(trials, tmp_path)
    for one, result in zip(trials, together, strict=True):
        assert close(result, packed([one], tmp_path)[0])
    assert len({result.objective for result in together}) == len(trials)


def test_a_trials_schedule_is_the_settings_times_its_factors() -> None:
    settings = TrainSettings(steps=100, batch_size=1, seq_len=1, warmup=0.1, final_lr=0.2)
    made = settings.with_hps({"warmup": 2.0, "final_lr": 16.0, "eta": 1.0})
    assert (made.warmup, made.final_lr) == (0.2, 1.0) and settings.with_hps(
        {"eta": 1.0}
    ) is settings


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_an_impossible_clip_is_refused(value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainSettings(steps=1, batch_size=1, seq_len=1, clip=value)
    assert caught.value.key == "clip"


def test_a_pack_is_filled_up_to_a_size_that_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    trials = [trial(seed=i, train={"steps": 13}) for i in range(4)]
    for_spec(trials[0].spec, "cpu").sizes.clear()
    packed(trials, tmp_path, execution=Execution(compile="on"))
    run = PackRun(Pack(trials=tuple(trials[:3]), corpus=corpus(tmp_path)), compile="on")
    assert run.slots == [0, 1, 2, BALLAST]
    cut = Cut(5, trials[0].key)
    filled = packed(trials[:3], tmp_path, execution=Execution(compile="on"), pruner=cut)
    assert [r.status for r in filled] == ["pruned", "complete", "complete"]
    for one, result in zip(trials[1:3], filled[1:], strict=True):
        assert close(result, packed([one], tmp_path)[0])
    assert for_spec(trials[0].spec, "cpu").sizes == {4}


def test_failing_to_compile_is_told_and_trains_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(function: Any, **_: Any) -> Any:
        def fail(*given: Any) -> None:
            raise RuntimeError("no compiler here")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    trials, told = [trial(seed=i, train={"steps": 14}) for i in range(2)], list[str]()
    results = packed(
        trials, tmp_path, execution=Execution(compile="on"), control=Control(notify=told.append)
    )
    assert all(result.status == "complete" for result in results)
    assert len(told) == 1 and "no compiler here" in told[0] and "without compiling" in told[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("name", ["WithDropout", "WithOwnBuffers", "Tied"])
def test_compiled_modules_of_a_users_own_train_alike(name: str, tmp_path: Path) -> None:
    one, told = own(name, steps=4), list[str]()
    (whole,) = packed([one], tmp_path)
    reporter = Control(notify=told.append)
    (found,) = packed([one], tmp_path, execution=Execution(compile="on"), control=reporter)
    assert close(found, whole) and not told


def test_trials_that_are_recomputed_train_alone(tmp_path: Path) -> None:
    trials = [replace(one, spec=own("Tied", steps=9).spec) for one in family("Tied")]
    pack, program = (
        Pack(trials=tuple(trials), corpus=corpus(tmp_path)),
        for_spec(trials[0].spec, "cpu"),
    )
    whole = train(pack)
    assert program.recompute()
    outcome = TrainPack(pack=pack, execution=Execution()).run(Control())
    assert not outcome.results and outcome.failure and not program.refused
    assert "OutOfMemoryError" in outcome.failure.reason and not outcome.failure.retry
    assert close(packed(trials[:1], tmp_path)[0], whole[0])


def test_frozen_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"make head\.weight a buffer") as caught:
        packed([own("Frozen")], tmp_path)
    assert caught.value.key == "model._target_"


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_no_loss_is_an_error_that_says_so(count: int, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must return the loss, a scalar tensor: not tuple"):
        packed(family("Many")[:count], tmp_path)


def test_an_error_of_the_models_own_refuses_no_way_of_training_it(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        packed(family("Raises"), tmp_path)
    assert not for_spec(own("Raises").spec, "cpu").refused


def test_a_failure_to_compile_leaves_the_modules_buffers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(module: Any, **_: Any) -> Any:
        def fail(*given: Any) -> None:
            module(*given)
            raise RuntimeError("no compiler here")

        return fail

    (whole,) = packed([own("WithStatistics")], tmp_path)
    monkeypatch.setattr(torch, "compile", broken)
    program = for_spec(own("WithStatistics").spec, "cpu")
    (result,) = packed([own("WithStatistics")], tmp_path, execution=Execution(compile="on"))
    assert "compiled alone" in program.refused and same(result, whole)
    run = PackRun(Pack(trials=(own("WithStatistics"),), corpus=corpus(tmp_path)), compile="on")
    assert not run.compiled  # nor tried again
    program.refused.clear()


@pytest.mark.parametrize("name", ["adamw.AdamW", "sgd.SGD", "lion.Lion", "adafactor.Adafactor"])
def test_an_update_that_cannot_be_compiled_is_done_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(function: Any, **_: Any) -> Any:
        def fail(*given: Any) -> None:
            raise RuntimeError("no compiler here")

        return fail

    made = tree("standard", steps=3)
    made["optimizer"] = {"_target_": f"sweeper.training.{name}"}
    pack = Pack(trials=(replace(trial("standard"), spec=spec_of(made)),), corpus=corpus(tmp_path))
    plain, other = PackRun(pack), PackRun(pack)
    monkeypatch.setattr(torch, "compile", broken)
    other.compiled, other.device = True, torch.device("meta")  # not a CPU, whose update is eager
    monkeypatch.setattr(PackRun, "_way", lambda self: ["alone"])
    grads = [torch.ones_like(value) for value in plain.params.values()]
    now = StepInfo(step=torch.ones(()), schedule=torch.ones(1))
    for run in (plain, other):
        with torch.no_grad():
            run._update([g.clone() for g in grads], now)
    assert "compiled update" in other.program.refused
    for a, b in zip(plain.params.values(), other.params.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_divergence_is_dated_by_its_step_whenever_it_is_noticed(tmp_path: Path) -> None:
    settings = {"precision": "float32", "steps": 200}
    pack = [trial("standard", eta=60.0, train=settings), trial("standard", train=settings)]
    whole = packed(pack, tmp_path)
    execution = Execution(checkpoints=tmp_path / "checkpoints", save_every=1e-9)
    assert whole[0].status == "diverged" and math.isinf(whole[0].curve[-1])
    assert all(map(same, whole, packed(pack, tmp_path, execution=execution)))
    checkpoint.forget(tmp_path / "checkpoints", pack)
    with pytest.raises(Leave):
        packed(pack, tmp_path, execution=execution, control=leave_at(whole[0].steps + 1))
    assert all(map(same, whole, packed(pack, tmp_path, execution=execution)))


def test_a_pack_that_goes_on_is_timed_where_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(PackRun, "compile", lambda run, *, worth: asked.append(run.step_index))
    execution = Execution(checkpoints=tmp_path / "checkpoints", compile="auto")
    long = trial("standard", train={"steps": 60})
    with pytest.raises(Leave):
        packed([long], tmp_path, execution=execution, control=leave_at(30))
    packed([long], tmp_path, execution=execution)
    assert asked == [12, 42]
