"""Models of transformers as sweeper trains them, with a parameterization's factors inside.

Attention is reached through transformers' own `AttentionInterface`: a function registered there
is called by every attention that supports it. Residual branches have no such place; where a
branch ends is listed here by family, and a hook multiplies what the module there returns.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from math import isclose, sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sweeper.errors import ConfigError
from sweeper.models.hf_config import (
    HfFamily,
    HfSizes,
    Task,
    config_fields,
    library,
    task_of,
)
from sweeper.models.scaled import Attention, CrossEntropy, ScaledModule
from sweeper.records import user_code
from sweeper.scaling.spec import ScaledOp

SHARE = 0.15
"""The share of every sequence that is hidden, as in BERT."""
_MIX = 0x2545F4914F6CDD1D
"""The multiplier of xorshift64* (Vigna, arXiv:1402.6246); odd, so products modulo 2^64 differ."""


def masked_positions(tokens: Tensor) -> Tensor:
    """Whether a token of `tokens` [batch, seq] is hidden [batch, seq]: 15 % of each sequence.

    There are no random numbers, which a map over batched trials forbids. One number made of all
    tokens of a sequence and their places orders its positions, and the first are hidden: at least
    one, and always the same ones of the same sequence. The choice tells nothing of a hidden token
    that could be learned, since every token of the sequence changes all of it.
    """
    places = torch.arange(tokens.shape[-1], device=tokens.device)
    sequence = _mixed(_mixed(places + 1) + tokens).sum(-1, keepdim=True)
    # The second argsort inverts the first one's permutation: ranks, the lowest of which are hidden.
    order = _mixed(sequence ^ _mixed(places + 1)).argsort(-1).argsort(-1)
    return order < max(1, round(SHARE * tokens.shape[-1]))


def _mixed(x: Tensor) -> Tensor:
    """Integers scrambled, each by itself: xor-shifts and products modulo 2^64."""
    # A product carries low bits upwards alone; the shift before it brings high bits down. Three
    # such rounds let every bit of x change every bit of the result.
    for shift in (32, 29, 32):
        x = (x ^ (x >> shift)) * _MIX
    return x


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

    def __init__(
        self, head_size: int, seq_len: int, *, causal: bool, built_in: float = 1.0
    ) -> None:
        """`Attention`'s sizes; `built_in` is the family's scale over head_size^-1/2."""
        super().__init__(head_size, seq_len, causal=causal)
        self.logit.fill_(head_size**-0.5)
        if not isclose(built_in, 1.0):
            self.geometry["built_in"] = built_in


class BranchScale(ScaledModule):
    """The factor of a residual branch of transformers; the stream beside it cannot be scaled."""

    branch: Tensor
    scales = ("branch",)

    def __init__(self, index: int, branches: int, base_branches: int) -> None:
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

    The query is multiplied by a tensor, so that each of the batched trials has a factor of its own.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    function = _eager(module) if eager else _fused()
    scale = module._modules.get(ATTENTION)
    if not isinstance(scale, AttentionScale):
        out, weights = function(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return out, weights
    # The family's `scaling` times logit / head_size^-1/2: by itself, `logit` changes nothing.
    query = query * (scale.logit * (scaling * sqrt(scale.geometry["head_size"])))
    # Rotation may have made them wider than the values under autocast, which does not mend that
    # in a batch.
    query, key = query.to(value.dtype), key.to(value.dtype)
    out, weights = function(module, query, key, value, attention_mask, scaling=1.0, **options)
    return out * scale.output, weights


def _eager(module: nn.Module) -> Callable[..., Any]:
    """A family's own attention, written out; for those that torch's fused one does not serve."""
    function: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
    return function


def _fused() -> Callable[..., Any]:
    function: Callable[..., Any] = library(
        "transformers.integrations.sdpa_attention"
    ).sdpa_attention_forward
    return function


@cache
def register() -> None:
    """Make the attention function and its masks known to transformers, once a process."""
    masks, models = (
        library(f"transformers.{name}") for name in ("masking_utils", "modeling_utils")
    )

    # Sequences here have no padding, and the values of a mask need never be looked at.
    def unpadded(make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return make(*args, **{**options, "attention_mask": None})

    for name, make in ((INTERFACE, masks.sdpa_mask), (EAGER, masks.eager_mask)):
        masks.AttentionMaskInterface.register(name, partial(unpadded, make))

    models.AttentionInterface.register(INTERFACE, partial(scaled_attention, False))
    models.AttentionInterface.register(EAGER, partial(scaled_attention, True))


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
        # Families have no common class of attention, but each looks its function up in this table.
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names:
            names = ("qk_head_dim", "head_dim", "head_size", "attention_head_size")
            size = next((getattr(module, n) for n in names if hasattr(module, n)), head_size)
            causal = bool(getattr(module, "is_causal", True))
            scale = getattr(module, "scaling", None)
            built_in = scale * sqrt(size) if isinstance(scale, int | float) and scale else 1.0
            factors = AttentionScale(size, seq_len, causal=causal, built_in=built_in)
            module.add_module(ATTENTION, factors)


def scale_branches(net: nn.Module, family: str, depth: int, base_depth: int) -> None:
    """Give the end of every residual branch a module `BRANCH`, where the family is known."""
    for layers in net.modules() if family in BRANCHES else ():
        if not isinstance(layers, nn.ModuleList) or len(layers) != depth:
            continue
        # Other lists may be as long as the model is deep: layers have attention.
        if any(hasattr(layers[0], name) for name in ("attention", "attn", "self_attn")):
            paths = [(layer, path) for layer in layers for path in BRANCHES[family]]
            for index, (layer, path) in enumerate(paths, start=1):
                end = layer.get_submodule(path)
                # Within the end's own module, whose names do not change; the hook finds it there.
                end.add_module(BRANCH, BranchScale(index, len(paths), 2 * base_depth))
                end.register_forward_hook(_scale_output)


def _scale_output(module: nn.Module, args: Any, output: Any) -> Any:
    factor = module.get_buffer(f"{BRANCH}.branch")
    if isinstance(output, tuple):
        return (output[0] * factor, *output[1:])
    return output * factor


IGNORED = -100
"""The target of a token that takes no part in the loss."""


class HfModel(nn.Module):
    """Any `*ForCausalLM`, `*ForMaskedLM` or `*ForImageClassification` of transformers.

    `name` is the class. `width` must be a multiple of `head_size`; `kv_heads` are the heads of
    keys and values (null: as many as queries have), `ffn_ratio` is the inner width over the
    width (null: the family's own ratio), `tie` shares the matrices of embedding and head (null: as
    the family does), `patch_size` is the side of an image's patch. `config` holds further fields
    of the family's configuration. There is no dropout unless `config` asks for it.

    Parameters have the names that they have in the transformers model, so that a plan for this one
    is a plan for that one. Beside them there are the factors of a parameterization, without
    parameters: `scaled_attention` in attentions, `scaled_residual` at the ends of branches, `loss`.

    A causal model takes tokens and, as targets, the tokens that follow; nothing is shifted. A
    masked one takes tokens, hides 15 % of each sequence behind a token of its own (one more than
    the data has) by a rule that the tokens alone decide, and guesses them; of targets it only
    matters whether there are any. A router's auxiliary loss joins where
    `config.output_router_logits` is true.
    """

    declares_all_operations: ClassVar[bool] = False
    """Some families have attention or branches that nothing here reaches."""
    _net: Any

    def __init__(
        self,
        *,
        name: str,
        width: int,
        depth: int,
        classes: int,
        seq_len: int | None = None,
        input_shape: tuple[int, ...] | None = None,
        head_size: int = 16,
        kv_heads: int | None = None,
        ffn_ratio: float | None = None,
        tie: bool | None = None,
        patch_size: int | None = None,
        config: Mapping[str, Any] | None = None,
        base_depth: int | None = None,
    ) -> None:
        """Values are as transformers draws them; ConfigError names an argument that is refused."""
        super().__init__()
        self.task = task_of(name)
        if (self.task == "images") != (input_shape is not None):
            kind = "arrays, such as data=digits" if self.task == "images" else "sequences of tokens"
            raise ConfigError("name", name, f"a model for this kind of data: this one takes {kind}")
        sizes = HfSizes(
            width=width,
            depth=depth,
            classes=classes,
            seq_len=seq_len,
            input_shape=input_shape,
            head_size=head_size,
            kv_heads=kv_heads,
            ffn_ratio=ffn_ratio,
            tie=tie,
            patch_size=patch_size,
            config=config or {},
        )
        self.mask_token = classes
        net = _built(name, self.task, sizes)
        self._adopt(net)
        tokens = seq_len or (sizes.image()[1] * sizes.image()[2]) // sizes.patch() ** 2
        scale_attention(net, head_size, tokens)
        scale_branches(net, net.config.model_type, depth, base_depth or depth)
        self.loss = CrossEntropy(classes + (self.task == "masked"))

    def _adopt(self, net: Any) -> None:
        """Own what `net` owns by sharing its dictionaries: a tensor put in one is in both."""
        # Past `nn.Module.__setattr__`, which would make it a submodule and put `_net.` before all
        # names.
        self.__dict__["_net"] = net
        self._modules, self._parameters = net._modules, net._parameters
        self._buffers = net._buffers
        self._non_persistent_buffers_set = net._non_persistent_buffers_set
        taken = inspect.signature(type(net).forward).parameters
        ours = attention_name(type(net), net.config) is not None
        self._takes_mask = ours and "attention_mask" in taken
        counts = any(hasattr(m, "create_position_ids_from_input_ids") for m in net.modules())
        self._takes_positions = "position_ids" in taken and (counts or self.task == "masked")

    def train(self, mode: bool = True) -> HfModel:
        """The mode of this module and of transformers' own."""
        # `_net` is no submodule, so that torch does not reach its own flag.
        self._net.training = mode
        super().train(mode)
        return self

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits of tokens [batch, seq] or images [batch, ...]; with `targets`, the mean loss."""
        if self.task == "images":
            out = self._net(pixel_values=inputs if inputs.dim() == 4 else inputs[:, None])
        elif self.task == "masked" and targets is not None:
            hidden = masked_positions(inputs)
            targets = torch.where(hidden, inputs, IGNORED)
            out = self._of_tokens(torch.where(hidden, self.mask_token, inputs))
        else:
            out = self._of_tokens(inputs)
        if targets is None:
            logits: Tensor = out.logits
            return logits
        loss: Tensor = self.loss(out.logits, targets)
        routers = getattr(out, "aux_loss", None)
        if isinstance(routers, Tensor):  # already a mean, which no width makes grow
            loss = loss + self._net.config.router_aux_loss_coef * routers
        return loss

    def _of_tokens(self, tokens: Tensor) -> Any:
        options: dict[str, Tensor] = {}
        if self._takes_mask:
            # With a mask, transformers does not look at positions for packed sequences, which
            # would need their values.
            options["attention_mask"] = torch.ones_like(tokens, dtype=torch.bool)
        if self._takes_positions:
            # Families would count them from the tokens that are no padding.
            places = torch.arange(tokens.shape[-1], device=tokens.device)
            options["position_ids"] = places[None]
        return self._net(input_ids=tokens, **options)


def _built(name: str, task: Task, sizes: HfSizes) -> Any:
    register()
    cls = getattr(library(), name)
    fields = config_fields(HfFamily(name, cls.config_class), task, sizes)
    try:
        config = cls.config_class(**fields)
    except Exception as error:  # families check their fields each in their own way
        reason = " ".join(str(error).split())[:300]
        allowed = f"a model whose configuration allows these sizes ({reason})"
        raise ConfigError("name", name, allowed) from error
    with user_code("name", name, "a model that can be built at this size"):
        config._attn_implementation = attention_name(cls, config)
        if cls._can_set_experts_implementation():
            # The others branch on the values of indices, which cannot be mapped over trials.
            config._experts_implementation = "batched_mm"
        net = cls(config)
    if sizes.tie is not None:  # some families ignore it
        head, embedding = net.get_output_embeddings(), net.get_input_embeddings()
        if (head is not None and head.weight is embedding.weight) != sizes.tie:
            how_often = "never" if sizes.tie else "always"
            allowed = f"null: {type(net).__name__} {how_often} shares the two matrices"
            raise ConfigError("tie", sizes.tie, allowed)
    return net
