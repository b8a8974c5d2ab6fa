"""A model of transformers as sweeper trains it: inputs and targets in, the mean loss out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sweeper.errors import ConfigError
from sweeper.models.hf.masking import masked_positions
from sweeper.models.hf.names import Task, model_class, task_of
from sweeper.models.hf.operations import (
    attention_name,
    register,
    scale_attention,
    scale_branches,
)
from sweeper.models.hf.sizes import Family, HfSizes, config_fields
from sweeper.models.scaled import CrossEntropy
from sweeper.plugin import user_code

IGNORED = -100
"""The target of a token that takes no part in the loss."""


class HfModel(nn.Module):
    """Any `*ForCausalLM`, `*ForMaskedLM` or `*ForImageClassification` of transformers.

    `name` is the class. `width` must be a multiple of `head_size`; `kv_heads` are the heads of
    keys and values (null: as many as queries have), `ffn_ratio` is the inner width over the
    width (null: the family's own ratio), `tie` shares the matrices of embedding and head (null: as
    the family does), `patch_size` is the side of an image's patch. `config` holds further fields
    of the family's configuration. There is no dropout unless `config` asks for it.

    Parameters have the names that they have in the transformers model, so that a plan for
    this one is a plan for that one. Beside them there are the factors of a scheme, without
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
        self.task = _task_for(name, input_shape)
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
        """Own what `net` owns, under the same names, and keep it for its forward pass.

        The dictionaries are shared: a tensor that is put in one place is in the other too.
        """
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
        """As in every module."""
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
        return self._auxiliary(out, self.loss(out.logits, targets))

    def _of_tokens(self, tokens: Tensor) -> Any:
        """What the transformers model returns for tokens [batch, seq] without padding."""
        given: dict[str, Tensor] = {}
        if self._takes_mask:
            # With a mask, transformers does not look at positions for packed sequences, which
            # would need their values.
            given["attention_mask"] = torch.ones_like(tokens, dtype=torch.bool)
        if self._takes_positions:
            # Families would count them from the tokens that are no padding.
            places = torch.arange(tokens.shape[-1], device=tokens.device)
            given["position_ids"] = places[None]
        return self._net(input_ids=tokens, **given)

    def _auxiliary(self, out: Any, loss: Tensor) -> Tensor:
        """`loss` with the router's own, where the model returns one."""
        routers = getattr(out, "aux_loss", None)
        if not isinstance(routers, Tensor):
            return loss
        total: Tensor = loss + self._net.config.router_aux_loss_coef * routers
        return total


def _task_for(name: str, input_shape: tuple[int, ...] | None) -> Task:
    """What the class is for; ConfigError where the data is of the other kind."""
    task = task_of(name)
    if (task == "images") != (input_shape is not None):
        kind = "arrays, such as data=digits" if task == "images" else "sequences of tokens"
        raise ConfigError("name", name, f"a model for this kind of data: this one takes {kind}")
    return task


def _built(name: str, task: Task, sizes: HfSizes) -> Any:
    """The transformers model; ConfigError with its own reason where it refuses to be built."""
    register()
    cls = model_class(name)
    fields = config_fields(Family(name, cls.config_class), task, sizes)
    config = _configured(name, cls.config_class, fields)
    with user_code("name", name, "a model that can be built at this size"):
        config._attn_implementation = attention_name(cls, config)
        if cls._can_set_experts_implementation():
            # The others branch on the values of indices, which cannot be mapped over trials.
            config._experts_implementation = "batched_mm"
        net = cls(config)
    _check_tied(net, sizes.tie)
    return net


def _configured(name: str, config_class: Any, fields: Mapping[str, Any]) -> Any:
    """The configuration; ConfigError with all that transformers says against it."""
    try:
        return config_class(**fields)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        allowed = f"a model whose configuration allows these sizes ({reason})"
        raise ConfigError("name", name, allowed) from error


def _check_tied(net: Any, tie: bool | None) -> None:
    """ConfigError where the family ignores `tie`."""
    if tie is None:
        return
    head, embedding = net.get_output_embeddings(), net.get_input_embeddings()
    if (head is not None and head.weight is embedding.weight) != tie:
        own = "never" if tie else "always"
        raise ConfigError("tie", tie, f"null: {type(net).__name__} {own} shares the two matrices")
