"""Every family of transformers that can be built small: roles by module, rates by microsoft/mup.

A role is expected from the type of the module that owns a parameter, by a table written by hand.
The learning rates are mup's own, MuAdam's and MuSGD's, from the shapes alone.
"""

import copy
import re
from typing import Any

import pytest
import torch
from mup import set_base_shapes
from mup.optim import MuAdam, MuSGD

from sweeper.errors import BadInput, ConfigError
from sweeper.models.hf import HfModel
from sweeper.models.hf_config import known_classes, library
from sweeper.scaling.relative import MuP
from sweeper.scaling.spec import ParamSpec, Update
from tests.specs import specs_between
from tests.zoo.conftest import ROWS

pytest.importorskip("transformers", minversion="5.0")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

BASE, WIDE, DEPTH, SEQ, CLASSES = 64, 128, 2, 12, 61
MODULES = [
    (r"Embedding|Embed(s)?$", "embedding"),
    (r"Norm", "vector"),
    (r"Router|TopKGate|MoEGate", "readout"),
    (r"Linear$|^Conv1D$|Experts", "hidden"),
    (r"^Conv2d$", "embedding"),
]
"""Roles of matrices by the type of their module; the first that matches. Biases are vectors."""
HEADS = r"(^|\.)(lm_head|classifier|score|embed_out|cls_classifier)\."
GATES = r"(\.|_)(gate|router)\.weight$"
"""Routers that are plain linear layers: to as many outputs as there are experts."""
KNOWN = {
    r"\.sinks$": "roles: a number for each head, taken for an embedding",
    r"conv_?1d\.(weight|bias)$|\.rg_lru\.": "SGD: mup counts a group's fan-in alone",
    r"experts\.\w+_proj$|mlp\.(in|out)put_linear\.weight$": (
        "SGD: mup takes the first two of three dimensions for the fans"
    ),
    r"layers\.0\.mlp\.gate\.weight$": "roles: DeepSeek-V4's weights of experts that a table chose",
}
"""Parameters that disagree, and in what: they are left out there."""
HEAVY = {"GitForCausalLM", "Phi4MultimodalForCausalLM"}
"""With towers for images and sound, which keep their size."""
NOT_CALLED = {
    "DeepseekV2ForCausalLM": "has no default for its number of experts",
    "FlaubertWithLMHeadModel": "fails without a mask for its padding",
    "ImageGPTForImageClassification": "takes colours by number",
    "LongcatFlashForCausalLM": "its two sizes of heads do not go together by default",
    "MiMoV2FlashForCausalLM": "its heads of keys and values are more than its heads",
    "MusicgenForCausalLM": "takes four tokens at each place",
    "MusicgenMelodyForCausalLM": "takes four tokens at each place",
    "XLMWithLMHeadModel": "fails without a mask for its padding",
    "XmodForCausalLM": "wants to be told a language",
    "XmodForMaskedLM": "wants to be told a language",
}
"""What a call with tokens or images alone, at these sizes, fails for."""
UNDECIDED = {
    "DiffLlamaForCausalLM": "vectors of which only a product's sum is used",
    "GptOssForCausalLM": "biases of experts",
}
"""Parameters that take a role given by hand."""
CAUSAL = (
    "BailingHybrid Bamba CodeGen FalconH1 GPTJ GPTNeoXJapanese GraniteMoeHybrid Inkling2 "
    "Inkling Jamba JetMoe KimiLinear Lfm2 Lfm3 MiniMax OlmoHybrid Qwen3Next Qwen3_5 "
    "Qwen3_5Moe Qwen4Exp Zaya"
)
MASKED = (
    "BigBird ConvBert IBert Longformer Luke MegatronBert Nystromformer RemBert RoFormer "
    "SqueezeBert Tapas"
)
VALUES = [f"{name}ForCausalLM" for name in CAUSAL.split()]
VALUES += [f"{name}ForMaskedLM" for name in MASKED.split()]
"""Forward passes that look at values, such as those of a mask, which tracing may not have."""
NOT_TRACED = {**NOT_CALLED, **UNDECIDED, **dict.fromkeys(VALUES, "looks at values")}

NAMES = sorted(known_classes().keys() - HEAVY)


def build(name: str, width: int, depth: int = DEPTH) -> HfModel:
    data: dict[str, Any] = {"seq_len": SEQ, "classes": CLASSES}
    if known_classes()[name] == "images":
        data = {"input_shape": (8, 8), "classes": 10}
    torch.manual_seed(0)
    return HfModel(name=name, width=width, depth=depth, **data)


def built(name: str) -> HfModel:
    try:
        return build(name, BASE)
    except ConfigError as error:
        ROWS.append((name, "-", f"refused: {error.allowed[:70]}", "", ""))
        pytest.skip(str(error))


def batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    if known_classes()[name] == "images":
        return torch.rand(2, 8, 8), torch.randint(10, (2,))
    # RoBERTa's kin would take token 1 for padding.
    return torch.randint(2, CLASSES, (2, SEQ)), torch.randint(CLASSES, (2, SEQ))


def classified(name: str) -> dict[str, ParamSpec]:
    sizes = {"base": (BASE, DEPTH), "target": (WIDE, DEPTH)}
    inputs = tuple(tensor.to("meta") for tensor in batch(name))
    specs = specs_between(lambda width, depth: build(name, width, depth), **sizes, inputs=inputs)
    return {spec.name: spec for spec in specs if not spec.note.startswith("never used")}


def expected_role(model: HfModel, spec: ParamSpec) -> str | None:
    """The role by the owner's type; None where the table does not know the type."""
    owner = model.get_submodule(spec.name.rpartition(".")[0])
    kinds = [base.__name__ for base in type(owner).__mro__]
    role = next((r for p, r in MODULES for kind in kinds if re.search(p, kind)), None)
    grows = [a != b for a, b in zip(spec.base_shape, spec.shape, strict=True)]
    if "bias" in spec.name.rpartition(".")[2] or len(grows) == 1:
        return "vector" if any(grows) or role == "vector" else None
    if sum(grows) == 1 and re.search(HEADS, spec.name):
        return "embedding" if spec.tied else "readout"
    if getattr(owner, "groups", 1) > 1 and sum(grows) == 1:
        return "up"
    if role == "hidden" and sum(grows) == 1:
        return "readout" if re.search(GATES, spec.name) else None
    return role if any(grows) else None


def mup_rates(name: str, optimizer: Any) -> dict[str, float]:
    """mup's learning rates at the wide size over the base's, by name of parameter."""
    base, model, delta = (build(name, width) for width in (BASE, WIDE, WIDE))
    set_base_shapes(model, base, delta=delta, do_assert=False)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = optimizer(model.parameters(), lr=1.0).param_groups
    return {names[id(p)]: group["lr"] for group in groups for p in group["params"]}


def folded(rates: dict[str, float], specs: dict[str, ParamSpec], power: int) -> dict[str, float]:
    """mup's rates, those of what is few within the body (keys, adapters) without a multiplier.

    mup knows the multiplier 1/m of its readouts alone to make a weight of few outputs train
    right. Folded into the weight it divides the rate by m under Adam, by m^2 under SGD.
    """
    repeated = {
        name
        for name, spec in specs.items()
        if "products of a number that grows" in spec.note or spec.role == "down"
    }
    return {n: lr / (WIDE / BASE) ** power if n in repeated else lr for n, lr in rates.items()}


def compared(what: str, ours: dict[str, Any], expected: dict[str, Any]) -> tuple[str, list[str]]:
    left_out = [pattern for pattern, reason in KNOWN.items() if reason.startswith(what)]
    names = [n for n in expected if n in ours and not any(re.search(p, n) for p in left_out)]
    wrong = [f"{what}: {n}: {ours[n]}, not {expected[n]}" for n in names if ours[n] != expected[n]]
    return f"{len(names) - len(wrong)}/{len(names)}", wrong


@pytest.mark.parametrize("name", NAMES)
def test_roles_and_rates(name: str) -> None:
    model = built(name)
    try:
        specs = classified(name)
    except BadInput:
        reason = NOT_TRACED.get(name)
        ROWS.append((name, "-", f"not classified: {reason}", "", ""))
        if reason:
            pytest.xfail(reason)
        raise
    roles = {n: role for n, s in specs.items() if (role := expected_role(model, s)) is not None}
    results = [compared("roles", {n: str(s.role) for n, s in specs.items()}, roles)]
    ones = dict.fromkeys(MuP.hyperparameters, 1.0)
    kinds = (("Adam", Update.SIGN, MuAdam, 1), ("SGD", Update.GRADIENT, MuSGD, 2))
    for what, update, optimizer, power in kinds:
        rates = {n: MuP().scale(s, ones, update).lr for n, s in specs.items()}
        expected = folded(mup_rates(name, optimizer), specs, power)
        results.append(compared(what, rates, expected))
    cells, wrong = [cell for cell, _ in results], [line for _, lines in results for line in lines]
    ROWS.append((name, str(len(specs)), cells[0], cells[1], cells[2]))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_transformers_does(name: str) -> None:
    """Equal logits from equal weights, and, of models of the next token, none from what follows."""
    model = built(name).eval()
    if name in NOT_CALLED:
        pytest.xfail(NOT_CALLED[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x, _ = batch(name)
    config = copy.deepcopy(model._net.config)
    config._attn_implementation, config._experts_implementation = None, "eager"
    plain = getattr(library(), name)(config).eval()
    plain.load_state_dict(model.state_dict())
    inputs = {"pixel_values": x[:, None]} if model.task == "images" else {"input_ids": x}
    if model._takes_positions:
        inputs["position_ids"] = torch.arange(SEQ)[None]
    with torch.no_grad():
        logits, own = model(x), plain(**inputs).logits
        torch.testing.assert_close(logits, own, rtol=1e-3, atol=1e-3)
        if model.task == "causal":
            x[:, 6:] = (x[:, 6:] + 1) % CLASSES
            torch.testing.assert_close(model(x)[:, :6], logits[:, :6], rtol=1e-3, atol=1e-4)
