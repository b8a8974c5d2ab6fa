"""A batch trains each of its trials as if it were alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sweeper.data.arrays import save_arrays
from sweeper.data.corpus import Corpus
from sweeper.engine import program
from sweeper.engine.batched import BLOCK_STEPS, BatchedRun, BatchedTrials, Feed, resident
from sweeper.engine.train import Execution, train
from sweeper.models import loss
from sweeper.trial import PluginSpec, Result, TrainSettings, Trial
from tests.engine.runs import train_trials
from tests.engine.tiny_trials import corpus, tokens, tree, trial
from tests.models.arrays import images
from tests.models.arrays import trials as array_trials
from tests.refusals import raises_config_error
from tests.specs import spec_of

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


def alone(single: Trial) -> Result:
    return train_trials([single])[0]


def test_a_diverging_neighbour_changes_nothing() -> None:
    """Its loss is finite in float64, and huge."""
    calm, wild = trial("standard"), trial("standard", eta=60.0)
    first, second = train(BatchedTrials(trials=(wild, calm), corpus=tokens()))
    assert (first.status, first.objective, first.heldout) == ("diverged", math.inf, math.inf)
    assert second.status == "complete"
    assert second.objective == pytest.approx(alone(calm).objective, rel=1e-12)


def test_the_objective_is_the_mean_of_the_last_stretch() -> None:
    single = trial(train={"steps": 12, "objective_window": 0.25})
    run = BatchedRun(BatchedTrials(trials=(single,), corpus=tokens()))
    losses = [float(run.step()[0]) for _ in range(12)]
    assert alone(single).objective == pytest.approx(sum(losses[-3:]) / 3, rel=1e-12)


def grad_scaled(run: BatchedRun, steps: int) -> tuple[list[float], list[bool], list[torch.Tensor]]:
    """Losses, steps that were taken, and last weights of a trial, by torch's own."""
    prepared, hps = run.prepared, run.update_hps
    model, specs = prepared.model(), prepared.trained_specs
    values = {name: value[0].detach().clone() for name, value in (run.params | run.buffers).items()}
    model.load_state_dict(values, strict=False)
    for name, buffer in model.named_buffers():
        buffer.data = values.get(name, buffer)
    weights = [model.get_parameter(spec.name) for spec in specs]
    peaks = [float(lr) for lr in hps.lr]
    groups = [
        {"params": [p], "lr": lr, "eps": float(eps), "weight_decay": float(decay) / lr}
        for p, lr, eps, decay in zip(weights, peaks, hps.eps, hps.weight_decay, strict=True)
    ]
    betas = (float(hps.settings["beta1"]), float(hps.settings["beta2"]))
    adam = torch.optim.AdamW(groups, betas=betas)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=float(program.INITIAL_SCALE), growth_interval=int(program.INTERVAL)
    )
    losses, taken = [], []
    for step, factor in enumerate(prepared.train.lr_factors(range(steps))):
        for group, peak in zip(adam.param_groups, peaks, strict=True):
            group["lr"] = peak * float(factor)
        x, y = (part[0] for part in run.feed.batch(step))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x, y)
        adam.zero_grad()
        scaler.scale(loss.float()).backward()
        scaler.step(adam)
        before = scaler.get_scale()
        scaler.update()
        losses.append(loss.item())
        taken.append(scaler.get_scale() >= before)
    return [*losses, scaler.get_scale()], taken, [p.detach() for p in weights]


def test_float16_scales_each_trial_s_loss_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that overflow are skipped and halve the scale, good ones in a row double it."""
    monkeypatch.setattr(program, "INITIAL_SCALE", 2.0**22)
    monkeypatch.setattr(program, "INTERVAL", 3.0)
    steps, where = 16, tokens()
    settings = {"precision": "float16", "steps": steps}
    trials = [trial("mup", eta=-7.0, alpha_output=a, train=settings) for a in (0.0, 5.0)]
    together = BatchedRun(BatchedTrials(trials=tuple(trials), corpus=where))
    both = torch.stack([together.step() for _ in range(steps)])
    counts = []
    for i, each in enumerate(trials):
        run = BatchedRun(BatchedTrials(trials=(each,), corpus=where))
        assert run.loss_scale and together.loss_scale
        (*losses, scale), taken, weights = grad_scaled(run, steps)
        mine = [float(run.step()[0]) for _ in range(steps)]
        assert mine == pytest.approx(losses, rel=1e-3)
        assert float(run.loss_scale.scale[0]) == scale
        assert int(run.loss_scale.taken[0]) == sum(taken)
        for value, right in zip(run.params.values(), weights, strict=True):
            torch.testing.assert_close(value[0].detach(), right, rtol=1e-3, atol=1e-4)
        assert both[:, i].tolist() == pytest.approx(losses, rel=1e-2)
        assert int(together.loss_scale.taken[i]) == sum(taken)
        counts.append(sum(taken))
    assert 0 < min(counts) < max(counts) < steps


def test_float16_goes_on_from_a_checkpoint_and_refuses_a_step_that_all_share() -> None:
    settings = {"precision": "float16"}
    batched = BatchedTrials(
        trials=tuple(trial(seed=i, train=settings) for i in range(2)), corpus=tokens()
    )
    run, again = BatchedRun(batched), BatchedRun(batched)
    for _ in range(3):
        run.step()
    again.load({k: v.clone() for k, v in run.tensors().items()}, run.slots, run.step_index)
    run.select([1])
    again.select([1])
    assert torch.equal(run.step(), again.step())
    assert run.loss_scale and again.loss_scale and len(run.loss_scale.scale) == 1
    assert torch.equal(run.loss_scale.taken, again.loss_scale.taken)
    soap = replace(
        trial("standard", train=settings).spec,
        optimizer=PluginSpec(name="sweeper.engine.optimizers.preconditioned.SOAP"),
    )
    shared = replace(batched, trials=(replace(batched.trials[0], spec=soap),))
    with raises_config_error("train.precision", "float16"):
        BatchedRun(shared)


@pytest.mark.parametrize(
    ("precision", "stream"), [("bfloat16", torch.float32), ("bfloat16_stream", torch.bfloat16)]
)
def test_bfloat16_is_an_autocast_over_float32_weights(precision: str, stream: torch.dtype) -> None:
    """The residual stream is of its type where that is asked for, batched and alone."""
    exact, rounded = (
        [trial("mup", seed=i, train={"precision": p}) for i in range(2)]
        for p in ("float64", precision)
    )
    run = BatchedRun(BatchedTrials(trials=tuple(rounded), corpus=tokens()))
    types: dict[str, torch.dtype] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda _module, _inputs, out: types.update({name: out.dtype})

    for name, module in run.program.model.named_modules():
        module.register_forward_hook(note(name))
    run.step()
    assert {types[name] for name in ("embedding", "layers.0", "layers.1", "norm")} == {stream}
    assert all(value.dtype == torch.float32 for value in run.params.values())
    result, right = alone(rounded[1]), alone(exact[1])
    assert result.objective != right.objective == pytest.approx(result.objective, rel=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled_equals_eager(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every run a perceptron's step is traced whole; a decoder's takes half a minute of C++.

    Operations with backward passes of their own take part: unit scaling, dropout, FP8, and of the
    decoder the chunked loss.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(loss, "MIN_CHUNKED_CLASSES", 10)
    monkeypatch.setattr(loss, "MIN_TOKENS", 4)
    formats = {"hidden": {"gradient": "e5m2"}}
    fp8 = PluginSpec(name="sweeper.models.fp8.Fp8", arguments=formats)
    if backend == "inductor":
        settings = tree(steps=3, heldout_batches=1)
        settings["model"] |= {"depth": 1, "dropout": 0.2}
        where, first = tokens(), replace(trial(), spec=spec_of(settings))
        trials = [first, replace(first, seed=1, log2_hps=trial(alpha_ffn_act=1.0).log2_hps)]
    else:
        where = images(tmp_path)
        model = {"_target_": "sweeper.models.mlp.MLP", "depth": 1, "dropout": 0.2}
        model["label_smoothing"] = 0.1
        trials = array_trials("umup", model, where, steps=3)[:2]
    spec = replace(trials[0].spec, fp8=fp8)
    batched = BatchedTrials(trials=tuple(replace(t, spec=spec) for t in trials), corpus=where)
    eager, compiled = train(batched), train(batched, Execution(compile="on"))
    for a, b in zip(eager, compiled, strict=True):
        assert a.objective == pytest.approx(b.objective, rel=1e-9)
    assert not program.program_for(spec, "cpu").unsupported


# Batches gathered on a device.


def arrays(folder: Path) -> Corpus:
    generator = np.random.default_rng(0)
    inputs = generator.integers(0, 255, (40, 4, 4), dtype=np.uint8)
    return save_arrays(folder, inputs, generator.integers(0, 5, 40, dtype=np.uint8), 30)


@pytest.mark.parametrize("make", [corpus, arrays], ids=["tokens", "arrays"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gathered_batches_equal_those_of_the_corpus(
    make: object, dtype: torch.dtype, tmp_path: Path
) -> None:
    where: Corpus = make(tmp_path)  # type: ignore[operator]
    settings = TrainSettings(steps=200, batch_size=3, seq_len=8)
    feed = Feed(where, settings, [0, 7], torch.device("cpu"), dtype)
    host = {step: feed.batch(step) for step in (0, 1, BLOCK_STEPS - 1, BLOCK_STEPS, 199)}
    feed.resident = resident(where, 8, feed.device, dtype)
    for step, (x, y) in host.items():
        there = feed.batch(step)
        assert torch.equal(there[0], x) and torch.equal(there[1], y)
        assert x.shape[:2] == (2, 3) and x.dtype in (dtype, torch.int64)
