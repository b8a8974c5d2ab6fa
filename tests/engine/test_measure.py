from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sweeper.data.corpus import TokenCorpus
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.measure import RepeatedBatch, measure_modules, rms, tensors_in
from sweeper.engine.prepare import prepare
from sweeper.engine.program import program
from sweeper.scaling.spec import LOGITS
from sweeper.trial import Trial
from tests.engine.tiny_trials import GAMMAS, corpus, tree
from tests.specs import spec_of
from tests.toy_models import Residual

STEPS = 3


@pytest.fixture
def tokens(tmp_path: Path) -> TokenCorpus:
    return corpus(tmp_path, classes=11)


def plain_tree() -> dict[str, Any]:
    """Somebody's own model under the standard parameterization, float64."""
    made = tree("standard", steps=STEPS, warmup=0.0, final_lr=1.0, batch_size=3, seq_len=6)
    made["model"] = {"_target_": "tests.toy_models.Residual", "width": 16, "depth": 2}
    made["base"] = {"width": 8, "depth": 2}
    made["data"]["classes"] = 11
    made["optimizer"] |= {"weight_decay": 0.0}
    return made


def plain_trial(**optimizer: float) -> Trial:
    """A trial of it."""
    made = plain_tree()
    made["optimizer"] |= optimizer
    return Trial(spec=spec_of(made), log2_hps=dict.fromkeys(GAMMAS, 0.0) | {"eta": -6.0}, seed=3)


def stages(model: Residual, x: Tensor) -> dict[str, Tensor]:
    """Outputs of some modules of `Residual`, written out."""
    h = model.tokens(x)
    outputs = {"tokens": h}
    for index, layer in enumerate(model.layers):
        outputs[f"layers.{index}.1"] = layer[1](layer[0](h))
        outputs[f"layers.{index}"] = layer(h)
        h = h + outputs[f"layers.{index}"]
    return outputs | {"head": model.head(h), "head's input": h}


def test_changes_are_those_of_torch_s_own_adam(tokens: TokenCorpus) -> None:
    """Another optimizer's code trains the same weights on the same batch over and over."""
    trial = plain_trial()
    run = BatchedRun(BatchedTrials(trials=(trial,), corpus=tokens))
    model = Residual(16, 2).double()
    model.load_state_dict({name: value.detach()[0] for name, value in run.params.items()})
    x, y = (part[0] for part in run.feed.batch(0))
    adam = torch.optim.Adam(model.parameters(), lr=2.0**-6, eps=1e-8)
    with torch.no_grad():
        before, head = stages(model, x), model.head.weight.clone()
    measured = {row.name: row for row in measure_modules(trial, tokens)}
    for step in range(STEPS):
        adam.zero_grad()
        model(x, y).backward()
        adam.step()
        with torch.no_grad():
            after = stages(model, x)
            for name, value in after.items():
                if name in measured:
                    expected = float((value - before[name]).square().mean().sqrt())
                    assert measured[name].changes[step] == pytest.approx(expected, rel=1e-6)
            by_parameters = before["head's input"] @ (model.head.weight - head).T
            expected = float(by_parameters.square().mean().sqrt())
            assert measured["head"].direct_changes[step] == pytest.approx(expected, rel=1e-6)
    for name in ("tokens", "layers.1", "head"):
        assert measured[name].rms == pytest.approx(rms([before[name]]), rel=1e-9)


def test_decay_is_no_movement(tokens: TokenCorpus) -> None:
    """It moves a weight by a share of itself at any rate: rates that fail would pass by it."""
    decayed = measure_modules(plain_trial(weight_decay=0.3), tokens)
    assert decayed == measure_modules(plain_trial(), tokens)


class Outside(Residual):
    """Its readout is a parameter of its own, and the logits change after all modules."""

    def __init__(self, width: int, depth: int, classes: int = 11) -> None:
        super().__init__(width, depth, classes)
        self.out = nn.Parameter(torch.randn(classes, classes))

    def by_modules(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        for layer in self.layers:
            h = h + layer(h)
        return self.head(h)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = 3 * self.by_modules(x) @ self.out.T
        return nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())


def test_logits_are_measured_with_the_parameters_outside_of_modules(tokens: TokenCorpus) -> None:
    made = plain_tree() | {"model": {"_target_": f"{__name__}.Outside", "width": 16, "depth": 2}}
    outside = replace(plain_trial(), spec=spec_of(made))
    logits = next(row for row in measure_modules(outside, tokens) if row.name == LOGITS)
    repeated = RepeatedBatch(tokens)
    assert repeated.identity() == tokens.identity()
    run = BatchedRun(BatchedTrials(trials=(outside,), corpus=repeated))
    start = {name: value.detach()[0].clone() for name, value in run.params.items()}
    model, (x, _) = Outside(16, 2).double(), (part[0] for part in run.feed.batch(0))
    model.load_state_dict(start)
    with torch.no_grad():
        before = 3 * model.by_modules(x)
    assert logits.rms == pytest.approx(rms([before @ start["out"].T]))
    for direct in logits.direct_changes:
        run.step()
        moved = run.params["out"].detach()[0] - start["out"]
        assert direct == pytest.approx(rms([before @ moved.T]), rel=1e-6)


def test_modules_are_in_the_order_in_which_they_return(tokens: TokenCorpus) -> None:
    changes = measure_modules(plain_trial(), tokens)
    layers = [f"layers.{i}{part}" for i in (0, 1) for part in (".0", ".1", ".2", "")]
    assert [row.name for row in changes] == ["tokens", *layers, "head", LOGITS]
    by_name = {row.name: row for row in changes}
    assert by_name["head"].entries == 3 * 6 * 11 and by_name["head"].role == "readout"
    assert by_name["tokens"].role == "embedding" and by_name["layers.0.1"].role == "hidden"
    assert by_name["layers.0"].role is None and by_name["layers.0"].direct_changes == ()
    # What an embedding changes, it changes by itself.
    assert by_name["tokens"].direct_changes == by_name["tokens"].changes


def test_it_is_the_same_each_time_and_leaves_no_hooks(tokens: TokenCorpus) -> None:
    trial = plain_trial()
    assert measure_modules(trial, tokens) == measure_modules(trial, tokens)
    model = program(prepare(trial.spec), torch.device("cpu")).model
    assert not any(module._forward_hooks for module in model.modules())


def test_a_head_of_many_classes_is_seen_too(tokens: TokenCorpus) -> None:
    """From 4096 classes on, training computes the loss in chunks and calls no head."""
    trial = plain_trial()
    spec = replace(
        trial.spec,
        data={**trial.spec.data, "classes": 4096},
        model=spec_of(tree()).model,
        width=16,
        depth=1,
        base_width=16,
        base_depth=1,
    )
    changes = measure_modules(Trial(spec=spec, log2_hps=trial.log2_hps, seed=0), tokens)
    head = next(row for row in changes if row.name == "head")
    assert head.entries == 3 * 6 * 4096 and head.changes[0] > 0


def test_outputs_of_any_form_have_names() -> None:
    x = torch.ones(3)
    returned = {"loss": x.sum(), "states": (x, 2 * x), "tokens": x.long()}
    tensors = dict(tensors_in("m", returned))
    assert list(tensors) == ["m[states][0]", "m[states][1]"]
    assert list(tensors_in("m", None)) == []
