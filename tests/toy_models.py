"""Small models that tests train, classify, plan and measure, as users write them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sweeper.models import scaled

TOKENS = torch.zeros(2, 6, dtype=torch.long)

DECAY = 2.0**-13
"""Of a step: what a search tunes with where nothing is said."""


class Residual(nn.Module):
    """Somebody else's model: torch's own layers, biases, no scales."""

    def __init__(self, width: int, depth: int, classes: int = 11) -> None:
        super().__init__()
        self.tokens = nn.Embedding(classes, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
            for _ in range(depth)
        )
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.tokens(x)
        for layer in self.layers:
            h = h + layer(h)
        return F.cross_entropy(self.head(h).flatten(0, -2), y.flatten())


class NanoDecoder(nn.Module):
    """Attention with heads of 8, an FFN, learned positions; sizes are named as nanoGPT's are."""

    def __init__(self, n_embd: int, n_layer: int = 2, block: int = 12) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(17, n_embd), nn.Embedding(block, n_embd)
        self.h = nn.ModuleList(NanoBlock(n_embd) for _ in range(n_layer))
        self.scale = nn.Parameter(torch.full((n_embd,), 0.125))
        self.lm_head = nn.Linear(n_embd, 17, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(x * self.scale)  # type: ignore[no-any-return]


class NanoBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], -1, 8)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(x)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# The same decoder twice: of torch's own modules, and of modules with scales.


HEAD_SIZE = 8


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Decoder(nn.Module):
    """Pre-norm layers of attention and a perceptron; subclasses say what of."""

    linear: Any
    embedding: Any

    def __init__(self, *, width: int, depth: int, classes: int, seq_len: int) -> None:
        super().__init__()
        self.rows = self.embedding(classes, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.qkv = nn.ModuleList(self.linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(self.linear(width, width) for _ in range(depth))
        self.up = nn.ModuleList(self.linear(width, 2 * width) for _ in range(depth))
        self.down = nn.ModuleList(self.linear(2 * width, width) for _ in range(depth))
        self.head = self.linear(width, classes)
        self.change(width, classes, seq_len)

    def change(self, width: int, classes: int, seq_len: int) -> None:
        """Where a subclass has other modules."""

    attend = staticmethod(causal_attention)

    def loss(self, logits: Tensor, targets: Tensor) -> Any:
        raise NotImplementedError

    def forward(self, tokens: Tensor, targets: Tensor) -> Any:
        x = self.rows(tokens)
        for i in range(len(self.qkv)):
            shape = (*x.shape[:2], -1, HEAD_SIZE)
            parts = self.qkv[i](self.norms[2 * i](x)).chunk(3, -1)
            y = self.attend(*(t.reshape(shape).transpose(1, 2) for t in parts))
            x = x + self.out[i](y.transpose(1, 2).reshape(x.shape))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x))))
        return self.loss(self.head(self.norms[-1](x)), targets)


class PlainDecoder(Decoder):
    """Returns `(logits, loss)`, as nanoGPT does."""

    linear, embedding = staticmethod(partial(nn.Linear, bias=False)), nn.Embedding

    def loss(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class ScaledDecoder(Decoder):
    linear, embedding = scaled.Linear, scaled.Embedding

    def change(self, width: int, classes: int, seq_len: int) -> None:
        self.core = scaled.Attention(HEAD_SIZE, seq_len, causal=True)
        self.cross_entropy = scaled.CrossEntropy(classes)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Any:  # type: ignore[override]
        return self.core(q, k, v)

    def loss(self, logits: Tensor, targets: Tensor) -> Any:
        return self.cross_entropy(logits, targets)


class TiedDecoder(PlainDecoder):
    """Its head is the embedding's matrix."""

    def change(self, width: int, classes: int, seq_len: int) -> None:
        self.head.weight = self.rows.weight


class TransposedDecoder(PlainDecoder):
    """Tied by a product that is no call of a linear layer."""

    def change(self, width: int, classes: int, seq_len: int) -> None:
        del self.head
        self.head = self.product

    def product(self, x: Tensor) -> Tensor:
        return x @ self.rows.weight.T


class MemoryDecoder(PlainDecoder):
    """Slots that are keys and values, before the head."""

    def change(self, width: int, classes: int, seq_len: int) -> None:
        self.slots = nn.Parameter(torch.randn(6, width))
        self.readout = self.head
        del self.head
        self.head = self.read

    def read(self, x: Tensor) -> Tensor:
        values = F.linear(x, self.slots).softmax(-1) @ self.slots
        return self.readout(x + values)  # type: ignore[no-any-return]


class PaddedDecoder(PlainDecoder):
    """Its third token is padding."""

    def change(self, width: int, classes: int, seq_len: int) -> None:
        self.rows = nn.Embedding(classes, width, padding_idx=2)


# As newcomers write them: no scales, heads of torch, with and without a last norm.


class Causal(nn.Conv1d):
    """A convolution over the sequence that sees no later token."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)


class Mixing(nn.Module):
    """Attention by hand, heads of 8."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], -1, 8)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = (q @ k.mT / 8**0.5).masked_fill(later, -torch.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Recurrent(nn.RNN):
    """Its states alone."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


LAYERS: dict[str, Any] = {"conv": Causal, "attention": Mixing, "rnn": Recurrent}
LAYERS |= {"linear": lambda w: nn.Linear(w, w)}


class PlainNet(nn.Module):
    """Embedding, layers of one kind, perhaps a norm, head; the mean loss."""

    def __init__(
        self,
        width: int,
        depth: int,
        classes: int = 64,
        kind: str = "conv",
        norm: bool = False,
        residual: bool = True,
        bare: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.layers = nn.ModuleList(LAYERS[kind](width) for _ in range(depth))
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.head = nn.Linear(width, classes)
        self.residual, self.bare = residual, bare

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embedding(x)
        for layer in self.layers:
            h = h * self.residual + (layer(h) if self.bare else F.gelu(layer(h)))
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


# Hard to map over trials.


class Doubled(torch.autograd.Function):
    """Twice the input, in a form that `torch.func` refuses to map."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return 2 * grad


class Base(nn.Module):
    """Embedding, one hidden layer and a head; `middle` is what is special."""

    def __init__(self, *, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, classes, bias=False)
        self.change(width)

    def change(self, width: int) -> None:
        """Where a subclass has other modules."""

    def middle(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.hidden:
            x = self.middle(F.gelu(layer(x)))
        return F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())


class Plain(Base):
    """Nothing special."""


class Unmappable(Base):
    def middle(self, x: Tensor) -> Tensor:
        # On the meta device, where roles are read off, as what it computes.
        return 2 * x if x.is_meta else Doubled.apply(x)


class WithDropout(Base):
    def middle(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2, training=self.training and not x.is_meta)


class WithStatistics(Base):
    """Keeps a running mean and uses it, as batch normalization does."""

    running: Tensor

    def change(self, width: int) -> None:
        self.register_buffer("running", torch.zeros(()))

    def middle(self, x: Tensor) -> Tensor:
        if x.is_meta:
            return x
        if self.training:
            self.update(x.detach().mean())
        return x - self.running

    def update(self, mean: Tensor) -> None:
        self.running.mul_(0.9).add_(0.1 * mean)


class WithReplacedBuffers(WithStatistics):
    """Puts a new tensor in the place of its running mean, where others write into theirs."""

    def update(self, mean: Tensor) -> None:
        self.running = 0.5 * self.running + 0.5 * mean


class Tied(Base):
    """Look-up and head are one matrix, as GPT-2's."""

    def change(self, width: int) -> None:
        self.head.weight = self.embedding.weight


class Shared(Base):
    """One block with a norm, under several names and called as often."""

    def change(self, width: int) -> None:
        self.norm = nn.BatchNorm1d(width)
        block = nn.Linear(width, width)
        self.blocks = nn.ModuleList([block, block])
        self.again = self.norm

    def middle(self, x: Tensor) -> Tensor:
        if x.is_meta:  # BatchNorm cannot be watched: it mixes samples
            x = x * self.norm.weight + self.norm.bias
        else:
            x = self.again(x.flatten(0, 1)).view_as(x)
        for block in self.blocks:
            x = x + block(x)
        return x


class WithExtraState(Base):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 3}


class ReadsItsValues(Base):
    """In evaluation alone it cannot be mapped."""

    def middle(self, x: Tensor) -> Tensor:
        if x.is_meta or self.training:
            return x
        return x if x.mean().item() > -1e9 else 2 * x


class Frozen(Base):
    def change(self, width: int) -> None:
        self.head.weight.requires_grad_(False)


class ReturnsMore(Base):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        loss = super().forward(x, y)
        return loss, loss * 2


class Raises(Base):
    """Fails with an error that is no RuntimeError."""

    def middle(self, x: Tensor) -> Tensor:
        if x.is_meta:
            return x
        raise IndexError("index out of range in self")


# Weights that no call of their own module shows, or whose biases hide them.


class Biased(nn.Module):
    """Linear layers with biases; the embedding is the head too."""

    def __init__(self, width: int, depth: int, classes: int = 64) -> None:
        super().__init__()
        self.e = nn.Embedding(classes, width)
        self.ls = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def layer(self, index: int, h: Tensor) -> Tensor:
        return self.ls[index](h)  # type: ignore[no-any-return]

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, self.e.weight).flatten(0, 1), y.flatten())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.e(x)
        for index in range(len(self.ls)):
            h = h + F.gelu(self.layer(index, h))
        return self.loss(h, y)


class Functional(Biased):
    """Its layers hold weights, and are never called."""

    def layer(self, index: int, h: Tensor) -> Tensor:
        return F.linear(h, self.ls[index].weight, self.ls[index].bias)


class Listed(Biased):
    """Its weights are in a list of parameters, and its loss is of log-probabilities."""

    def __init__(self, width: int, depth: int, classes: int = 64) -> None:
        super().__init__(width, depth, classes)
        self.ls = nn.ParameterList(torch.randn(width, width) for _ in range(depth))
        self.out = nn.Parameter(torch.randn(classes, width))

    def layer(self, index: int, h: Tensor) -> Tensor:
        return h @ self.ls[index].T

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(h @ self.out.T, -1).flatten(0, 1), y.flatten())


class Unseen(Functional):
    """Its products are no function's that is known."""

    def layer(self, index: int, h: Tensor) -> Tensor:
        return (h[..., None, :] * self.ls[index].weight).sum(-1) + self.ls[index].bias


class Merged(Functional):
    """Its matrices are products of two that are never called."""

    def layer(self, index: int, h: Tensor) -> Tensor:
        return F.linear(h, self.ls[index].weight @ self.ls[index - 1].weight)


class Called(nn.MultiheadAttention):
    """Attention of torch, whose last matrix is used without a call of its module."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class Attending(Biased):
    def __init__(self, width: int, depth: int, classes: int = 64) -> None:
        super().__init__(width, depth, classes)
        self.ls = nn.ModuleList(Called(width) for _ in range(depth))
