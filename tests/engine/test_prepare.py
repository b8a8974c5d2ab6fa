"""From a specification to what its training needs; refusals name the key."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from torch import nn

from sweeper.engine.architecture import build_model
from sweeper.engine.prepare import check_decay, prepare
from sweeper.errors import ConfigError
from sweeper.models.fp8 import Formats, Fp8
from sweeper.trial import PlainHps
from tests.documents import ROOT
from tests.engine.tiny_trials import tree, trial
from tests.golden import Golden
from tests.refusals import raises_config_error
from tests.specs import spec_of


def test_flops_and_parameters_of_a_known_model() -> None:
    prepared = prepare(spec_of(tree()))
    hidden = 2 * (96 * 32 + 32 * 32 + 2 * 88 * 32 + 32 * 88)
    assert prepared.parameters() == hidden + 2 * 32 * 32
    tokens = 8 * 2 * 8
    assert prepared.flops() == tokens * (6 * (hidden + 32 * 32) + 12 * 32 * 8 * 2)


@pytest.mark.parametrize(
    ("section", "argument", "value"),
    [
        ("model", "head_sise", 8),
        ("model", "_target_", "sweeper.models.llama.Lama"),
        ("model", "_target_", "builtins.dict"),
        ("optimizer", "eps", -1.0),
        ("train", "steps", 0),
        ("parameterization", "alpha", 1),
    ],
)
def test_refusals_name_the_key(section: str, argument: str, value: Any) -> None:
    broken = tree()
    broken[section][argument] = value
    with raises_config_error(f"{section}.{argument}"):
        prepare(spec_of(broken))


def of_arrays(model: str, **more: Any) -> dict[str, Any]:
    """A configuration whose data are images of 8 x 8 in ten classes."""
    made = tree("mup")
    made["model"] = {"_target_": f"sweeper.models.{model}", "width": 32, "depth": 2, **more}
    made["data"] = {"digest": "0" * 64, "classes": 10, "input_shape": [8, 8]}
    return made


def test_flops_of_models_of_arrays() -> None:
    """An image is one token to the perceptron, and four patches to the transformer."""
    samples = 8 * 2
    assert prepare(spec_of(of_arrays("mlp.MLP"))).flops() == samples * 6 * (2 * 32 * 32 + 32 * 10)
    weights = 2 * 12 * 32 * 32 + 32 * 10
    assert prepare(spec_of(of_arrays("vit.ViT"))).flops() == samples * 4 * (
        6 * weights + 12 * 32 * 4 * 2
    )


def test_a_model_for_other_data_is_refused(golden: Golden) -> None:
    with raises_config_error("model._target_", "sweeper.models.llama.Llama", golden):
        prepare(spec_of(of_arrays("llama.Llama", head_size=8)))
    broken = tree()
    broken["model"] = of_arrays("mlp.MLP")["model"]
    with raises_config_error("model._target_", "sweeper.models.mlp.MLP", golden):
        prepare(spec_of(broken))


def of_vocab(width: int, depth: int, vocab: int, unit: bool) -> nn.Module:
    return nn.Embedding(vocab, width)


def test_an_argument_without_a_value_says_how_to_give_it_or_name_it() -> None:
    broken = tree()
    broken["model"] = {"_target_": f"{__name__}.of_vocab", "width": 32, "depth": 2}
    with pytest.raises(ConfigError) as caught:
        prepare(spec_of(broken))
    assert str(caught.value) == (
        "model.vocab: it needs a value; give +model.vocab=..., or name it as what is offered: "
        "classes, base_depth, seq_len"
    )


def test_a_model_must_be_a_module(golden: Golden) -> None:
    broken = tree()
    broken["model"] = {"_target_": "argparse.Namespace", "width": 32, "depth": 2}
    with raises_config_error("model._target_", "argparse.Namespace", golden):
        prepare(spec_of(broken))


def test_weight_decay_is_a_hyperparameter_of_any_space() -> None:
    prepared = prepare(spec_of(tree("mup")))
    hps = trial("mup").hps
    decays = [
        {name: each.weight_decay for name, each in prepared.prescriptions(values).items()}
        for values in (hps, {**hps, "weight_decay": 4.0})
    ]
    assert decays[1] == {name: 4 * value for name, value in decays[0].items()}


@pytest.mark.parametrize(
    ("decay", "value", "refused"),
    [("independent", 0.9, 0), ("independent", 1.0, 1), ("coupled", 30.0, 0), ("coupled", 300.0, 1)],
)
def test_a_decay_is_bounded_by_what_a_step_removes(decay: str, value: float, refused: bool) -> None:
    rules = {"_target_": "sweeper.scaling.relative.Standard", "decay": decay}
    adamw = {"_target_": "sweeper.engine.optimizers.first_order.AdamW", "weight_decay": value}
    prepared = prepare(spec_of({**tree("standard"), "parameterization": rules, "optimizer": adamw}))
    with raises_config_error("optimizer.weight_decay") if refused else nullcontext():
        check_decay(prepared, PlainHps({"eta": 2.0**-8}))


FP8 = {"_target_": "sweeper.models.fp8.Fp8", "head": {"input": "e4m3"}}


class Plain(nn.Module):
    """A model that knows no FP8."""

    def __init__(self, *, width: int, depth: int) -> None:
        super().__init__()


def test_the_model_is_given_the_formats() -> None:
    made = build_model(spec_of(tree() | {"fp8": FP8}), False, 32, 2)
    assert made.fp8 == Fp8(head=Formats(input="e4m3"))
    assert build_model(spec_of(tree()), False, 32, 2).fp8 == Fp8()


def test_a_model_without_fp8_refuses_it() -> None:
    model = {"_target_": f"{__name__}.Plain", "width": 32, "depth": 2}
    assert isinstance(build_model(spec_of(tree() | {"model": model}), False, 32, 2), Plain)
    with raises_config_error("fp8"):
        build_model(spec_of(tree() | {"model": model, "fp8": FP8}), False, 32, 2)
    with raises_config_error("fp8.heads"):
        build_model(spec_of(tree() | {"fp8": FP8 | {"heads": None}}), False, 32, 2)


def test_llama_declares_its_fused_matrices() -> None:
    parts = prepare(spec_of(tree())).architecture.parts
    layers = {name.removeprefix("layers.0."): n for name, n in parts.items() if "layers.0" in name}
    assert layers == {"attention.qkv.weight": 3, "ffn.up_gate.weight": 2}


def test_flops_of_a_tied_head_and_of_attention_with_a_scale_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts/examples/gpt")
    for module in ("before", "train"):
        made = tree("mup")
        made["model"] = {"_target_": f"{module}.GPT", "width": 32, "depth": 2}
        prepared = prepare(spec_of(made))
        per_token = prepared.flops() / prepared.tokens()
        weights = prepared.parameters() - 64 * 32  # positions are looked up
        assert per_token == 6 * weights + 12 * 32 * prepared.train.seq_len * 2
