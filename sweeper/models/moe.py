"""A Llama-style decoder whose feed-forward layers are mixtures of experts.

Sigmoid gates, top-k routing by gate plus bias, and the mean over the active experts, as in
arXiv:2601.20205. All experts are computed and those not chosen multiplied by 0: wasteful at size,
and a model like any other at the sizes where one tunes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from sweeper.errors import ConfigError
from sweeper.models.llama import CausalSelfAttention, Decoder, SwiGLU, inner_width
from sweeper.models.scaled import (
    CrossEntropy,
    Embedding,
    GatedSiLU,
    Linear,
    Residual,
    RMSNorm,
    ScaledModule,
    check_heads,
    check_sizes,
    dropout_of,
    scale_gradient,
    tokens_in,
)


class ExpertLinear(ScaledModule):
    """`multiplier * W_e x` for every expert e, of one x or one each; W is [experts, out, in]."""

    multiplier: Tensor
    scales = ("multiplier",)

    def __init__(self, experts: int, in_features: int, out_features: int, *, unit: bool) -> None:
        super().__init__(unit=unit)
        self.weight = nn.Parameter(torch.empty(experts, out_features, in_features))

    def forward(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        """[(experts,) tokens, in] -> [experts, tokens, out]; if `chosen`, [k, tokens, out]."""
        weight: Tensor = self.weight
        if self.unit:
            weight = scale_gradient(weight, 1 / (sqrt(tokens_in(x)) * self.multiplier))
        y = torch.matmul(x, weight.mT) * self.multiplier
        if chosen is None:
            return y
        return y.gather(0, chosen.mT[..., None].expand(-1, -1, y.shape[-1]))


class Routing(nn.Module):
    """Which experts a token takes, and their gates.

    They are the largest of gate + bias. The bias is no parameter: in training every step moves it
    by `balance` times what its expert's load lacks of an even share (arXiv:2601.20205).
    """

    bias: Tensor

    def __init__(self, experts: int, active: int, balance: float) -> None:
        super().__init__()
        self.experts, self.active, self.balance = experts, active, balance
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """[tokens, experts] -> gates and indices of those chosen, [tokens, k] both."""
        gates = torch.sigmoid(logits)
        # The bias chooses and nothing else: gates that it shifted would change what is computed.
        chosen = (gates.detach() + self.bias.to(gates.dtype)).topk(self.active, -1).indices
        if self.training and self.balance:
            taken = torch.zeros_like(gates).scatter(-1, chosen, 1.0)
            lack = self.active / self.experts - taken.mean(0)
            # A new tensor in the buffer's place; the engine takes its values into the batch's.
            self.bias = self.bias + self.balance * lack.to(self.bias.dtype)
        return gates.gather(-1, chosen), chosen


class Experts(nn.Module):
    """A router, SwiGLU experts, and perhaps one more that all tokens take."""

    def __init__(self, model: MoE) -> None:
        super().__init__()
        unit, width, hidden, count = model.unit, model.width, model.expert_width, model.all_experts
        self.router = Linear(width, count, unit=unit)
        self.routing = Routing(count, model.active_experts, model.balance)
        self.up_gate = ExpertLinear(count, width, 2 * hidden, unit=unit)
        self.act = GatedSiLU(unit=unit)
        self.down = ExpertLinear(count, hidden, width, unit=unit)
        shared = model.shared_width
        self.shared = SwiGLU(width, shared, unit=unit) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, width] -> the same shape."""
        tokens = x.flatten(0, 1)
        gates, chosen = self.routing(self.router(tokens))
        up, gate = self.up_gate(tokens).chunk(2, -1)
        outputs = self.down(self.act(up, gate), chosen)  # [k, tokens, width]
        # A mean: the size of a sum, and with it the best eta, would depend on how many are active.
        out: Tensor = (outputs * gates.mT[..., None]).mean(0).view(x.shape)
        return out if self.shared is None else out + self.shared(x)


class MoEBlock(nn.Module):
    """One layer: two residual branches, attention then experts."""

    def __init__(self, index: int, model: MoE) -> None:
        super().__init__()
        unit, branches, base = model.unit, 2 * model.depth, 2 * model.base_depth
        self.attention_norm = RMSNorm(model.width)
        self.attention = CausalSelfAttention(model.width, model.head_size, model.seq_len, unit=unit)
        drop = model.dropout
        self.attention_residual = Residual(2 * index + 1, branches, base, unit=unit, dropout=drop)
        self.experts_norm = RMSNorm(model.width)
        self.experts = Experts(model)
        self.experts_residual = Residual(2 * index + 2, branches, base, unit=unit, dropout=drop)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, width] -> the same shape."""
        y = self.attention(self.attention_norm(self.attention_residual.split(x)))
        x = self.attention_residual.add(y, x)
        y = self.experts(self.experts_norm(self.experts_residual.split(x)))
        return self.experts_residual.add(y, x)


class MoE(Decoder):
    """Decoder of any width and depth, with any number of experts of any size.

    There are `experts * granularity` experts of inner width `ffn_ratio * width / granularity`, and
    a token takes `top_k * granularity` of them: granularity cuts every expert into so many.
    `shared` counts experts of the whole size, as one, that all tokens take. `balance` moves the
    biases that balance the loads, a step. `dropout` is the share of entries that training drops
    from words and from branches' outputs. `base_depth` and `unit` as in every model.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        classes: int,
        seq_len: int,
        experts: int = 8,
        top_k: int = 2,
        granularity: int = 1,
        shared: int = 0,
        balance: float = 0.01,
        head_size: int = 16,
        ffn_ratio: float = 2.0,
        dropout: float = 0.0,
        base_depth: int | None = None,
        unit: bool = False,
    ) -> None:
        """The parameterization draws all parameters; ConfigError names a size that is off."""
        super().__init__()
        check_sizes(width=width, depth=depth, head_size=head_size)
        check_sizes(experts=experts, top_k=top_k, granularity=granularity)
        check_heads(width, head_size, rotary=True)
        if top_k > experts:
            raise ConfigError("top_k", top_k, f"at most experts, which is {experts}")
        if shared < 0:
            raise ConfigError("shared", shared, "at least 0")
        if not 0 <= balance <= 1:
            raise ConfigError("balance", balance, "from 0 (no balancing) to 1")
        inner = inner_width(width, ffn_ratio)
        if inner % granularity:
            raise ConfigError("granularity", granularity, f"a divisor of {inner}")
        self.width, self.depth, self.seq_len, self.head_size = width, depth, seq_len, head_size
        self.all_experts, self.active_experts = experts * granularity, top_k * granularity
        self.expert_width, self.shared_width = inner // granularity, shared * inner
        self.granularity, self.balance, self.unit = granularity, balance, unit
        self.base_depth = base_depth or depth
        self.dropout = dropout
        self.embedding = Embedding(classes, width, unit=unit)
        self.embedding_dropout = dropout_of(dropout)
        self.layers = nn.ModuleList(MoEBlock(i, self) for i in range(depth))
        self.norm = RMSNorm(width)
        self.head = Linear(width, classes, unit=unit, readout=True)
        self.loss = CrossEntropy(classes, unit=unit)

    def inner_growth(self) -> Mapping[str, float]:
        """Inner width over that of granularity 1, by the names of the experts' second matrices."""
        return {f"layers.{i}.experts.down.weight": 1 / self.granularity for i in range(self.depth)}
