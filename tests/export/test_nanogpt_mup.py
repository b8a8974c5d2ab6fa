"""nanoGPT-mup's flags: by the rules of its model.py, and its own code where it is at hand."""

from __future__ import annotations

import importlib.util
import sys
from math import sqrt
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import sweeper
from sweeper.export.nanogpt_mup import NanogptMup
from sweeper.plan.plan import TransferPlan
from tests.export.plans import COMPLETEP, executed, made, missing, plan
from tests.toy_models import NanoBlock

CODE = Path(__file__).parents[3] / "shared" / "trainers" / "nanoGPT-mup" / "model.py"
TOKENS = (torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 6, dtype=torch.long))
HPS = {"eta": 2.0**-7, "alpha_emb": 3.0, "alpha_output": 2.0}


class Tied(nn.Module):
    """nanoGPT's shape: the head is the embedding."""

    def __init__(self, n_embd: int, n_layer: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(17, n_embd)
        self.h = nn.ModuleList(NanoBlock(n_embd) for _ in range(n_layer))
        self.lm_head = nn.Linear(n_embd, 17, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        return self.lm_head(x)  # type: ignore[no-any-return]


def tied(
    parameterization: Any = "mup", depth: int = 2, width: int = 128, **hps: float
) -> TransferPlan:
    base, target = {"n_embd": 32, "n_layer": 2}, {"n_embd": width, "n_layer": depth}
    given = {**HPS, **hps}
    return sweeper.plan_for(Tied, base, target, parameterization, given, inputs=TOKENS[0])


def flags(plan: TransferPlan, **options: Any) -> dict[str, Any]:
    """What train.py's configurator takes from the file; types matter to it."""
    names = executed(made(plan, "nanogpt-mup", **options)["plan_nanogpt_mup.py"])
    return {name: value for name, value in names.items() if not name.startswith("__")}


def test_flags_are_the_plan_s_numbers() -> None:
    found = flags(tied())
    assert found["learning_rate"] == 2.0**-7 and found["mup_width_multiplier"] == 4.0
    assert (found["mup_input_alpha"], found["mup_output_alpha"]) == (3.0, 2.0)
    assert found["mup_enabled"] is True and "depth_multiplier" not in found
    lacks = missing(tied(), "nanogpt-mup")
    assert not lacks.keys() & {"output", "attention", "hidden_lr", "embedding_lr", "residual"}


def test_its_initial_values_are_always_0_02() -> None:
    """train.py reads --init_std, and does not hand it to the model."""
    assert "init_std" not in flags(tied())
    assert any("0.02 given" in line for line in missing(tied(), "nanogpt-mup")["init"])


def test_attention_is_1_over_d_alone() -> None:
    (line,) = missing(tied(alpha_attn=2.0), "nanogpt-mup")["attention"]
    assert "0.25 asked, 0.125 given" in line


def test_the_completep_branch_has_the_branches_and_not_the_main_one() -> None:
    deep = tied(COMPLETEP, depth=6)
    assert "residual" in missing(deep, "nanogpt-mup")
    lacks = missing(deep, "nanogpt-mup", completep=True)
    assert not lacks.keys() & {"residual", "hidden_lr", "output"}
    found = flags(deep, completep=True)
    assert found["depth_alpha_enabled"] is True
    assert (found["depth_multiplier"], found["depth_alpha_exp"]) == (3.0, 1.0)
    hidden = next(p for p in deep.parameters if p.name == "h.0.qkv.weight").target
    assert found["adam_eps"] / 4 / 3 == pytest.approx(hidden.eps)
    half = flags(tied("mup", depth=6), completep=True)
    assert half["depth_alpha_exp"] == pytest.approx(0.5)


def test_another_optimizer_and_frozen_parameters_are_refused() -> None:
    assert "optimizer" in missing(plan("mup", "lion"), "nanogpt-mup")


@pytest.fixture
def code() -> ModuleType:
    """Its model.py as published."""
    if not CODE.is_file():
        pytest.skip("nanoGPT-mup is not at hand")
    spec = importlib.util.spec_from_file_location("nanogpt_mup_model", CODE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_its_own_groups_and_factors_are_those_of_the_rules(code: ModuleType) -> None:
    def build(n_embd: int, n_layer: int, **more: Any) -> Any:
        sizes = {"n_embd": n_embd, "n_layer": n_layer, "n_head": n_embd // 8}
        config = code.GPTConfig(
            **sizes, block_size=8, vocab_size=17, dropout=0.0, bias=False, **more
        )
        return code.GPT(config)

    base, target = {"n_embd": 32, "n_layer": 2}, {"n_embd": 128, "n_layer": 2}
    plan = sweeper.plan_for(build, base, target, "mup", HPS, inputs=TOKENS)
    exporter, found = NanogptMup(), flags(plan)
    fields = {name: value for name, value in found.items() if name.startswith("mup_")}
    model = build(**target, **fields)
    rate, decay = found["learning_rate"], found["weight_decay"]
    optimizer = model.configure_optimizers(decay, rate, (0.9, 0.95), "cpu")
    names = {id(p): name for name, p in model.named_parameters()}
    parameters = {parameter.name: parameter for parameter in plan.parameters}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            expected = exporter.setting(plan, parameters[names[id(parameter)]])
            lr = rate * group["lr_scale"]  # as train.py has it at every step
            assert lr == pytest.approx(expected.lr)
            assert lr * group["weight_decay"] == pytest.approx(expected.weight_decay)
            assert group["eps"] == expected.eps
            if parameter.dim() > 1:
                assert parameter.std().item() == pytest.approx(expected.init_std, rel=0.1)
    # The factors of the forward pass, as the loss has them: logits and embedding.
    tokens = torch.arange(8).reshape(1, 8)
    with torch.no_grad():
        _, scaled = model(tokens, tokens)
        plain = build(**target)
        plain.load_state_dict(model.state_dict())
        for block in plain.transformer.h:
            block.attn.c_attn.weight[:128] *= 1 / sqrt(8)  # 1/d in q's place
        embedding = nn.Parameter(plain.transformer.wte.weight * found["mup_input_alpha"])
        plain.transformer.wte.weight = embedding
        plain.transformer.wpe.weight *= found["mup_input_alpha"]
        plain.lm_head.weight = nn.Parameter(
            model.lm_head.weight * found["mup_output_alpha"] / found["mup_width_multiplier"]
        )
        _, folded = plain(tokens, tokens)
    assert scaled.item() == pytest.approx(folded.item(), rel=1e-5)
