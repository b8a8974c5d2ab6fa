"""microsoft/mup's own coordinate check, over models that nobody here wrote, by the plan alone.

A model is built as its own library builds it, drawn and trained by `TransferPlan` as in a user's
loop, and mup's hooks record the mean size of every module's output over widths and steps. Inside,
sizes must not depend on the width: the slope of log2 size over log2 width lies within 0.15 of
zero. The logits may fall, as they do at the start under muP, and may not rise.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sweeper
from tests.zoo.conftest import COORDINATES

pytest.importorskip("transformers", minversion="5.0")
coord_check = pytest.importorskip("mup.coord_check")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

BASE, WIDTHS = 64, (64, 128, 256, 512)
DEPTH, HEAD, SEQ, CLASSES = 2, 16, 32, 64
STEPS, SEEDS, ETA = 4, 4, 2.0**-7
INSIDE, NOISE = 0.15, 0.02
TRAINERS = Path(__file__).parents[3] / "shared" / "trainers"


def of_transformers(name: str, **more: Any) -> Callable[..., nn.Module]:
    """A causal model of `name`, its heads of 16, as transformers builds it."""

    def build(*, width: int) -> nn.Module:
        transformers = pytest.importorskip("transformers")
        cls = getattr(transformers, name)
        fields = {
            "vocab_size": CLASSES,
            "hidden_size": width,
            "num_hidden_layers": DEPTH,
            "num_attention_heads": width // HEAD,
            "intermediate_size": 2 * width,
            "max_position_embeddings": SEQ,
            "use_cache": False,
            "pad_token_id": None,
        }
        changed = {key: value(width) if callable(value) else value for key, value in more.items()}
        return cls(cls.config_class(**(fields | changed)))

    return build


def t5(*, width: int) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=CLASSES,
            d_model=width,
            d_kv=HEAD,
            d_ff=2 * width,
            num_layers=DEPTH,
            num_heads=width // HEAD,
            dropout_rate=0.0,
            use_cache=False,
            decoder_start_token_id=0,
        )
    )


gemma = of_transformers(
    "GemmaForCausalLM", head_dim=HEAD, num_key_value_heads=lambda width: width // HEAD
)


def base_root(*, width: int) -> nn.Module:
    """Gemma, its embedding times the base width's root at all widths, as its plan's `needs` ask."""
    model = gemma(width=width)
    model.model.embed_tokens.embed_scale.fill_(BASE**0.5)
    return model


class NanoGPT(nn.Module):
    """nanoGPT's own model, its head tied to its embedding, called as transformers' are."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        sys.path.insert(0, str(TRAINERS / "nanoGPT"))
        try:
            from model import GPT, GPTConfig  # type: ignore[import-not-found]
        finally:
            sys.path.pop(0)
        config = GPTConfig(
            block_size=SEQ,
            vocab_size=CLASSES,
            n_layer=DEPTH,
            n_head=width // HEAD,
            n_embd=width,
            dropout=0.0,
            bias=False,
        )
        self.gpt = GPT(config)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits, loss = self.gpt(input_ids, labels)
        return {"logits": logits, "loss": loss}


MODELS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "llama": (of_transformers("LlamaForCausalLM"), "lm_head"),
    "llama, 2 KV heads": (of_transformers("LlamaForCausalLM", num_key_value_heads=2), "lm_head"),
    "gemma, root of the base width": (base_root, "lm_head"),
    "mixtral": (
        of_transformers(
            "MixtralForCausalLM",
            num_local_experts=4,
            num_key_value_heads=lambda w: w // HEAD,
            experts_implementation="batched_mm",
        ),
        "lm_head",
    ),
    "mamba": (of_transformers("MambaForCausalLM", intermediate_size=lambda w: 2 * w), "lm_head"),
    "t5": (t5, "lm_head"),
    "nanoGPT, tied": (NanoGPT, "gpt.lm_head"),
}


def call_of(name: str) -> dict[str, Tensor]:
    torch.manual_seed(5)
    start = torch.randint(CLASSES, (8, 1))
    tokens = (start + torch.cumsum(torch.randint(1, 4, (8, SEQ + 1)), 1)) % CLASSES
    if name == "nanoGPT, tied":
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:].contiguous()}
    window = tokens[:, :SEQ].contiguous()
    return {"input_ids": window, "labels": window}


def slopes(name: str, parameterization: str) -> dict[tuple[str, int], float]:
    """By module and step: the slope of log2 of its output's mean size over log2 of the width."""
    models = {width: lazy(name, width, parameterization) for width in WIDTHS}
    names = with_one_tensor(models[BASE](), call_of(name))
    records = coord_check._get_coord_data(
        models,
        [call_of(name)],
        lambda model: torch.optim.AdamW(model.plan.param_groups(model), betas=(0.9, 0.95)),
        nsteps=STEPS,
        dict_in_out=True,
        filter_module_by_name=names.__contains__,
        cuda=False,
        nseeds=SEEDS,
        show_progress=False,
    )
    sizes = records.groupby(["module", "t", "width"])["l1"].mean().unstack("width")
    sizes = sizes[(sizes > 0).all(axis=1)]
    lines = np.polyfit(np.log2(WIDTHS), np.log2(sizes[list(WIDTHS)].to_numpy()).T, 1)
    return dict(zip(sizes.index, lines[0], strict=True))


def lazy(name: str, width: int, parameterization: str) -> Callable[[], nn.Module]:
    build, head = MODELS[name]
    sizes = {"base": {"width": BASE}, "target": {"width": width}}
    call = call_of(name)
    plan = sweeper.plan_for(
        build, **sizes, parameterization=parameterization, hps={"eta": ETA}, inputs=call
    )

    def make() -> nn.Module:
        model = build(width=width)
        # mup's check has set torch's seed; a seed of its own for each width and round.
        plan.init_(model, int(torch.randint(2**31, ())))
        # The factor on the logits that `needs` asks of the author of a tied model.
        factor = plan.operations.get(head, {}).get("output", 1.0)
        model.get_submodule(head).register_forward_hook(lambda _m, _i, out: factor * out)
        model.plan = plan
        return model

    return make


def with_one_tensor(model: nn.Module, call: dict[str, Tensor]) -> set[str]:
    """Names of the modules that return one tensor: mup's hooks know no caches and no objects."""
    names: set[str] = set()
    for name, module in model.named_modules():

        def note(_m: nn.Module, _i: Any, out: Any, name: str = name) -> None:
            if isinstance(out, Tensor):
                names.add(name)

        module.register_forward_hook(note)
    model(**call)
    return names


@pytest.mark.parametrize("name", MODELS)
def test_sizes_do_not_depend_on_the_width(name: str) -> None:
    if name.startswith("nanoGPT") and not TRAINERS.is_dir():
        pytest.skip("nanoGPT is not at hand")
    by_output, head = slopes(name, "mup"), MODELS[name][1]
    inside = {key: slope for key, slope in by_output.items() if key[0] != head}
    logits = [slope for key, slope in by_output.items() if key[0] == head]
    ends = ((min(part), max(part)) for part in (inside.values(), logits))
    cells = (f"{low:+.2f} to {high:+.2f}" for low, high in ends)
    COORDINATES.append((name, str(len(inside)), *cells))
    assert len(logits) == STEPS
    assert max(logits) <= NOISE
    assert not {key: slope for key, slope in inside.items() if abs(slope) > INSIDE}


def test_gemma_s_own_root_of_the_width_is_told_and_seen() -> None:
    build = MODELS.setdefault("gemma", (gemma, "lm_head"))[0]
    sizes = {"base": {"width": BASE}, "target": {"width": 4 * BASE}}
    call = call_of("gemma")
    plan = sweeper.plan_for(build, **sizes, parameterization="mup", hps={"eta": ETA}, inputs=call)
    assert "model.embed_tokens multiplies by 8 at width=64" in str(plan.needs)
    by_output = slopes("gemma", "mup")
    assert by_output["model.embed_tokens", 1] == pytest.approx(0.5, abs=0.05)


def test_standard_rates_are_seen_to_fail() -> None:
    by_output = slopes("llama", "standard")
    assert max(by_output.values()) > 2 * INSIDE
