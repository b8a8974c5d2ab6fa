"""Modules without scale buffers train exactly as modules with them do, under all rules."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.prepare import prepare
from sweeper.engine.program import loss_of
from sweeper.trial import Trial, plain
from tests.engine.runs import train_trials
from tests.engine.tiny_trials import PARAMETERIZATIONS, tokens, tree, trial
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.specs import spec_of
from tests.toy_models import PlainDecoder

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")
FACTORS = {"alpha_emb": 1.0, "alpha_output": -1.0, "alpha_attn": 0.5, "gamma_readout": 1.0}
"""Hyperparameters (log2) that reach multipliers and attention, where there are such."""
EXPORTABLE = sorted(PARAMETERIZATIONS.keys() - {"umup"})
"""u-muP also scales backward passes, which no plain module does."""


def trials_of(name: str, parameterization: str, **train: Any) -> list[Trial]:
    model = {"_target_": f"tests.toy_models.{name}", "width": 32, "depth": 2}
    base = {"width": 16, "depth": 2}
    spec = spec_of(tree(parameterization, **train) | {"model": model, "base": base})
    base_trial = trial(parameterization)
    changed = {key: value for key, value in FACTORS.items() if key in base_trial.log2_hps}
    hps = [base_trial.log2_hps, {**base_trial.log2_hps, **changed}]
    return [Trial(spec=spec, log2_hps=each, seed=0) for each in hps]  # type: ignore[arg-type]


@pytest.mark.parametrize("parameterization", EXPORTABLE)
def test_a_plain_module_trains_as_one_with_scales(parameterization: str) -> None:
    for by_plain, by_scaled in zip(
        train_trials(trials_of("PlainDecoder", parameterization)),
        train_trials(trials_of("ScaledDecoder", parameterization)),
        strict=True,
    ):
        assert by_plain.status == by_scaled.status == "complete"
        assert by_plain.objective == pytest.approx(by_scaled.objective, rel=1e-9)
        assert by_plain.heldout == pytest.approx(by_scaled.heldout, rel=1e-9)


def test_a_tied_head_is_divided_by_the_growth_in_width() -> None:
    usual, changed = trials_of("TiedDecoder", "mup")
    prepared = prepare(usual.spec)
    name = "head.scaled_tied_readout.output"
    assert prepared.buffers(usual.hps)[name] == 0.5, "1/m"
    assert prepared.buffers(changed.hps)[name] == 0.5 * 0.5 / 2, "alpha_output / (m alpha_emb)"


def test_a_matrix_that_is_used_both_ways_changes_the_start_of_no_other() -> None:
    trials = trials_of("MemoryDecoder", "mup")
    prepared = prepare(trials[0].spec)
    assert prepared.buffers(trials[0].hps)["scaled_tied_readout.output"] == 0.5
    assert {spec.head_init_fan_in for spec in prepared.specs} == {0}


def test_a_tied_head_that_no_factor_reaches_is_refused(golden: Golden) -> None:
    with raises_config_error("model._target_", "tests.toy_models.TransposedDecoder", golden):
        prepare(trials_of("TransposedDecoder", "mup")[0].spec)
    prepare(trials_of("TransposedDecoder", "standard")[0].spec)


def test_the_row_of_a_padding_stays_zero() -> None:
    trials = trials_of("PaddedDecoder", "mup")
    run = BatchedRun(BatchedTrials(trials=tuple(trials), corpus=tokens()))
    for _ in range(4):
        zero = (run.params["rows.weight"] == 0).all(-1).tolist()
        assert zero == [[row == 2 for row in range(32)]] * 2
        run.step()


def test_what_a_plain_module_lacks_is_told() -> None:
    # Of AdamW nothing is left to another Adam.
    by_mup = prepare(trials_of("PlainDecoder", "mup")[0].spec)
    assert by_mup.dead_hyperparameters() == ["gamma_adam"]
    prepared = prepare(trials_of("PlainDecoder", "umup")[0].spec)
    residuals = ["alpha_residual", "alpha_residual_attn_ratio"]
    assert prepared.dead_hyperparameters() == ["alpha_ffn_act", *residuals, "gamma_adam"]
    assert prepared.unseen_ops() == ["residual", "gated_silu"]
    lacking = prepared.not_applied(prepared.complete(plain(trial("umup").log2_hps)))
    assert lacking == {"head.backward_multiplier": pytest.approx(32 / 32**0.5)}


@pytest.mark.parametrize("name", ["PlainDecoder", "ScaledDecoder"])
def test_parts_of_a_batch_add_up_to_it(name: str) -> None:
    settings = {"batch_size": 4, "steps": 6}
    whole = train_trials(trials_of(name, "mup", **settings))
    parts = train_trials(trials_of(name, "mup", **settings, accumulate=2))
    for at_once, in_parts in zip(whole, parts, strict=True):
        assert at_once.curve == pytest.approx(in_parts.curve, rel=1e-5)
        assert at_once.heldout == pytest.approx(in_parts.heldout, rel=1e-9)


def test_the_objective_may_be_the_loss_on_held_out_data() -> None:
    training, heldout = (
        train_trials(trials_of("PlainDecoder", "mup", objective=kind))[0]
        for kind in ("training", "heldout")
    )
    assert heldout.objective == heldout.heldout == training.heldout != training.objective


def test_kept_values_are_the_models_own_of_the_trials_seed() -> None:
    spec = trials_of("PlainDecoder", "mup")[0].spec
    arguments = {**spec.model.arguments, "keep_init": ["qkv.*"]}
    spec = replace(spec, model=replace(spec.model, arguments=arguments))
    trials = [replace(trials_of("PlainDecoder", "mup")[0], spec=spec, seed=s) for s in (0, 1)]
    run = BatchedRun(BatchedTrials(trials=tuple(trials), corpus=tokens()))
    kept = run.params["qkv.0.weight"].detach()
    for seed in (0, 1):
        torch.manual_seed(seed)
        own: Any = run.prepared.model()
        assert torch.equal(kept[seed].float(), own.qkv[0].weight.detach())
    drawn = next(s for s in run.prepared.specs if s.name == "up.0.weight")
    assert drawn.init == "normal"


@pytest.mark.parametrize(
    "output",
    [
        torch.tensor(2.0),
        (torch.zeros(3, 4), torch.tensor(2.0)),
        {"loss": torch.tensor(2.0), "logits": torch.zeros(3)},
        SimpleNamespace(loss=torch.tensor(2.0)),
    ],
)
def test_the_loss_is_found_in_what_users_return(output: object) -> None:
    assert float(loss_of(output)) == 2.0


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (torch.zeros(2, 3), r"not a tensor of shape \[2, 3\]"),
        ((torch.zeros(2), torch.zeros(3)), r"not a tuple of a tensor of shape \[2\]"),
        ({"logits": torch.zeros(2)}, "not dict"),
        ((torch.tensor(1.0), torch.tensor(2.0)), "not a tuple of"),
        ({"loss": torch.zeros(2)}, "not dict"),
    ],
)
def test_anything_else_is_refused_by_what_it_is(output: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        loss_of(output)


def test_a_model_may_print_without_disturbing_the_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = trials_of("PlainDecoder", "mup")[0].spec
    prepare(replace(spec, model=replace(spec.model, name=f"{__name__}.Talkative")))
    captured = capsys.readouterr()
    assert captured.out == "" and "built" in captured.err


class Talkative(PlainDecoder):
    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        print("built")
        super().__init__(width=width, depth=depth, classes=classes, seq_len=seq_len)
