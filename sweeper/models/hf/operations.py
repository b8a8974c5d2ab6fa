"""A scheme's factors at attention and residual branches inside a model of transformers.

Attention is reached through transformers' own `AttentionInterface`: a function registered there
is called by every attention that supports it. Residual branches have no such place; where a
branch ends is listed here by family, and a hook multiplies what the module there returns.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from math import isclose, sqrt
from typing import Any

from torch import Tensor, nn

from sweeper.models.hf.names import library
from sweeper.models.scaled import Attention, ScaledModule
from sweeper.scaling.spec import ScaledOp

INTERFACE, EAGER = "sweeper", "sweeper_eager"
"""Names of the attention function in transformers: fused, and written out by each family."""
ATTENTION, BRANCH = "scaled_attention", "scaled_residual"
"""Names of what is put into a model; plans leave them out, since the author's has none."""
_CROSS = r"encoder_attn|cross_?attention"
"""Attention to another model's output, which there is none of here."""

_LLAMA, _NORMED = ("self_attn", "mlp"), ("post_attention_layernorm", "post_feedforward_layernorm")
_GPT2, _BERT = ("attn", "mlp"), ("attention.output.dense", "output.dense")
BRANCHES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("gemma", "granite", "llama", "mistral", "mixtral", "olmo", "olmoe", "phi", "phi3"), _LLAMA
    ),
    **dict.fromkeys(
        ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2"), _LLAMA
    ),
    **dict.fromkeys(("gemma2", "gemma3_text", "olmo2", "olmo3"), _NORMED),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "modernbert"), _GPT2),
    **dict.fromkeys(("bert", "camembert", "electra", "roberta", "xlm-roberta"), _BERT),
    **dict.fromkeys(("deit", "gpt_neox", "vit"), ("attention", "mlp")),
    "opt": ("self_attn", "fc2"),
}
"""The modules of a layer whose outputs are added to the stream, attention's first, by family.

With both times 0 a layer returns its input, or the norms of it that are outside of branches.
"""


class AttentionScale(Attention):
    """The factors of an attention of transformers; `scaled_attention` applies them.

    `logit` starts at head_size^-1/2, at which the attention is what the family has it be; another
    value multiplies the family's own scale by the ratio. `output` is a plain factor.
    """

    def __init__(self, head_size: int, seq_len: int, *, causal: bool, own: float = 1.0) -> None:
        """As in `Attention`; `own` is the family's scale over head_size^-1/2."""
        super().__init__(head_size, seq_len, causal=causal)
        self.logit.fill_(head_size**-0.5)
        if not isclose(own, 1.0):
            self.geometry["own"] = own


class BranchScale(ScaledModule):
    """The factor of a residual branch of transformers; the stream beside it cannot be scaled."""

    branch: Tensor
    scales = ("branch",)

    def __init__(self, index: int, branches: int, base_branches: int) -> None:
        """As in `Residual`."""
        super().__init__()
        self.geometry = {"branch": index, "branches": branches, "base_branches": base_branches}

    def scale_op(self, name: str) -> ScaledOp:
        """A "residual"."""
        return ScaledOp(name=name, kind="residual", geometry=self.geometry)


def scaled_attention(
    eager: bool,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The function that transformers calls: [batch, heads, seq, head_size] of query, key, value.

    The query is multiplied by a tensor, so that each trial of a pack has a factor of its own.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    function = _eager(module) if eager else _fused()
    scale = module._modules.get(ATTENTION)
    if not isinstance(scale, AttentionScale):
        out, weights = function(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return out, weights
    query = query * (scale.logit * (scaling * sqrt(scale.geometry["head_size"])))
    # Rotation may have made them wider than the values under autocast, which does not mend that
    # in a pack.
    query, key = query.to(value.dtype), key.to(value.dtype)
    out, weights = function(module, query, key, value, attention_mask, scaling=1.0, **options)
    return out * scale.output, weights


def _eager(module: nn.Module) -> Callable[..., Any]:
    """A family's own attention, written out; for those that torch's fused one does not serve."""
    function: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
    return function


def _fused() -> Callable[..., Any]:
    """Attention by torch's fused function, as transformers calls it."""
    function: Callable[..., Any] = library(
        "transformers.integrations.sdpa_attention"
    ).sdpa_attention_forward
    return function


def _mask(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make` for sequences without padding: it never has to look at the values of a mask."""

    def unpadded(*args: Any, attention_mask: Tensor | None = None, **options: Any) -> Any:
        return make(*args, attention_mask=None, **options)

    return unpadded


@cache
def register() -> None:
    """Make the attention function and its masks known to transformers, once a process."""
    masks, models = (
        library(f"transformers.{name}") for name in ("masking_utils", "modeling_utils")
    )
    for name, make in ((INTERFACE, masks.sdpa_mask), (EAGER, masks.eager_mask)):
        masks.AttentionMaskInterface.register(name, _mask(make))

    def fused(*args: Any, **options: Any) -> Any:
        return scaled_attention(False, *args, **options)

    def eager(*args: Any, **options: Any) -> Any:
        return scaled_attention(True, *args, **options)

    models.AttentionInterface.register(INTERFACE, fused)
    models.AttentionInterface.register(EAGER, eager)


def attention_name(model: Any, config: Any) -> str | None:
    """The attention that a class of models is built with; None leaves it to transformers."""
    calls_interface = hasattr(sys.modules[model.__module__], "ALL_ATTENTION_FUNCTIONS")
    if not model._supports_attention_backend and not calls_interface:
        return None
    fused = model._supports_sdpa and not getattr(config, "attn_logit_softcapping", None)
    return INTERFACE if fused else EAGER


def scale_attention(net: Any, head_size: int, seq_len: int) -> None:
    """Give every attention that asks transformers for its function a module `ATTENTION`."""
    ours = net.config._attn_implementation in (INTERFACE, EAGER)
    for path, module in list(net.named_modules()) if ours else ():
        if re.search(_CROSS, path):
            continue
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names:
            names = ("qk_head_dim", "head_dim", "head_size", "attention_head_size")
            size = next((getattr(module, n) for n in names if hasattr(module, n)), head_size)
            causal = bool(getattr(module, "is_causal", True))
            scale = getattr(module, "scaling", None)
            own = scale * sqrt(size) if isinstance(scale, int | float) and scale else 1.0
            module.add_module(ATTENTION, AttentionScale(size, seq_len, causal=causal, own=own))


def scale_branches(net: nn.Module, family: str, depth: int, base_depth: int) -> None:
    """Give the end of every residual branch a module `BRANCH`, where the family is known."""
    for layers in net.modules() if family in BRANCHES else ():
        if isinstance(layers, nn.ModuleList) and len(layers) == depth and _has_branches(layers[0]):
            paths = [(layer, path) for layer in layers for path in BRANCHES[family]]
            for index, (layer, path) in enumerate(paths, start=1):
                end = layer.get_submodule(path)
                end.add_module(BRANCH, BranchScale(index, len(paths), 2 * base_depth))
                end.register_forward_hook(_scale_output)


def _has_branches(layer: nn.Module) -> bool:
    return any(hasattr(layer, name) for name in ("attention", "attn", "self_attn"))


def _scale_output(module: nn.Module, args: Any, output: Any) -> Any:
    """A branch's output times its factor; of several outputs the first is the branch's."""
    factor = module.get_buffer(f"{BRANCH}.branch")
    if isinstance(output, tuple):
        return (output[0] * factor, *output[1:])
    return output * factor
