"""Operations of plain modules: found where they are called, scaled there and nowhere else."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint

from sweeper.classifier.operations import (
    OperationWatch,
    OpSite,
    SeenAttention,
    apply_scales,
    observe,
)
from tests.golden import Golden
from tests.refusals import raises_config_error

HEAD_SIZE, CLASSES = 4, 11
TIED = {"rows.weight": {"fan_in": 8, "base_fan_in": 8, "built_in": 1.0}}
BRANCHES = ["layers.*.attention", "layers.*.mlp"]

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")


class Attention(nn.Module):
    def __init__(self, width: int, scale: float | None = None) -> None:
        super().__init__()
        self.qkv, self.out, self.scale = nn.Linear(width, 3 * width), nn.Linear(width, width), scale

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], -1, HEAD_SIZE)
        q, k, v = (t.reshape(shape).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        out: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, scale: float | None) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(width, scale), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        y: Tensor = x + self.mlp(x)
        return y


class Decoder(nn.Module):
    """Tied, with attention in layers, which may be run again in the backward pass."""

    def __init__(self, width: int = 8, scale: float | None = None, recompute: bool = False) -> None:
        super().__init__()
        self.rows, self.recompute = nn.Embedding(CLASSES, width), recompute
        self.layers = nn.ModuleList(Layer(width, scale) for _ in range(2))
        self.head = nn.Linear(width, CLASSES, bias=False)
        self.head.weight = self.rows.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.rows(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def decoder(**arguments: Any) -> tuple[Decoder, tuple[OpSite, ...], tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = Decoder(**arguments).double()
    batch = torch.randint(CLASSES, (2, 5)), torch.randint(CLASSES, (2, 5))
    return model, observe(model, lambda: model(*batch), TIED, BRANCHES).sites, batch


def set_scales(model: nn.Module, **values: float) -> None:
    for name, buffer in model.named_buffers():
        kind, _, scale = name.rpartition("scaled_")[2].partition(".")
        buffer.data = torch.tensor(values.get(f"{kind}_{scale}", 1.0), dtype=torch.float64)


def test_operations_are_found_by_the_module_that_calls_them() -> None:
    _, sites, _ = decoder()
    assert [(site.module, site.kind) for site in sites] == [
        ("layers.0.attention", "attention"),
        ("layers.1.attention", "attention"),
        ("head", "tied_readout"),
        ("", "loss"),
        ("layers.0.attention", "residual"),
        ("layers.0.mlp", "residual"),
        ("layers.1.attention", "residual"),
        ("layers.1.mlp", "residual"),
    ]
    assert sites[0].geometry == {"head_size": HEAD_SIZE, "seq_len": 5, "causal": True}
    assert [s.geometry["branch"] for s in sites if s.kind == "residual"] == [1, 2, 3, 4]


def test_attention_with_a_scale_of_its_own_keeps_it() -> None:
    _, sites, _ = decoder(scale=1 / HEAD_SIZE)
    assert "attention" not in {site.kind for site in sites}
    _, sites, _ = decoder(scale=HEAD_SIZE**-0.5)
    assert "attention" in {site.kind for site in sites}


def reference(model: Decoder, tokens: Tensor, targets: Tensor, s: dict[str, float]) -> Tensor:
    x = F.embedding(tokens, model.rows.weight)
    for layer in model.layers:
        inner: Any = layer
        q, k, v = (
            t.reshape(2, 5, -1, HEAD_SIZE).transpose(1, 2)
            for t in inner.attention.qkv(x).chunk(3, -1)
        )
        logits = s["attention_logit"] * (q @ k.transpose(-1, -2))
        logits = logits.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
        y = s["attention_output"] * (logits.softmax(-1) @ v)
        x = x + s["residual_branch"] * inner.attention.out(y.transpose(1, 2).reshape(x.shape))
        x = x + s["residual_branch"] * inner.mlp(x)
    out = s["tied_readout_output"] * (x @ model.rows.weight.T)
    return F.cross_entropy(s["loss_logit"] * out.flatten(0, 1), targets.flatten())


SCALES = {
    "attention_logit": 0.3,
    "attention_output": 1.7,
    "residual_branch": 0.6,
    "tied_readout_output": 0.2,
    "loss_logit": 1.4,
}


@pytest.mark.parametrize("recompute", [False, True])
def test_every_operation_is_scaled_once_and_so_are_its_gradients(recompute: bool) -> None:
    model, sites, batch = decoder(recompute=recompute)
    weights = list(model.parameters())
    expected = reference(model, *batch, SCALES)
    gradients = torch.autograd.grad(expected, weights)
    apply_scales(model, sites)
    set_scales(model, **SCALES)
    loss = model(*batch)[1]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for got, wanted in zip(torch.autograd.grad(loss, weights), gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


def test_slices_of_a_map_have_scales_of_their_own() -> None:
    model, sites, batch = decoder()
    apply_scales(model, sites)
    set_scales(model)
    buffers = {n: torch.linspace(0.5, 1.5, 3).double() for n, _ in model.named_buffers()}
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    tied = {"head.weight": parameters["rows.weight"]}

    def loss(scales: dict[str, Tensor]) -> Tensor:
        values = parameters | tied | scales
        return functional_call(model, values, batch, tie_weights=False)[1]  # type: ignore[no-any-return]

    together = vmap(loss)(buffers)
    alone = torch.stack([loss({n: v[i] for n, v in buffers.items()}) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=0)
    assert len({float(value) for value in together}) == 3


def test_of_modules_within_each_other_the_outermost_is_the_branch() -> None:
    model, _, batch = decoder()
    sites = observe(model, lambda: model(*batch), {}, ["layers.*"]).sites
    assert [s.module for s in sites if s.kind == "residual"] == ["layers.0", "layers.1"]


class Heads(nn.Module):
    def __init__(self, child: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Embedding(CLASSES, 8), nn.Embedding(CLASSES, 8)
        self.child = child

    def forward(self, tokens: Tensor) -> list[Tensor]:
        x = self.a(tokens) + self.b(tokens)
        within = self.child(tokens) if self.child else []
        return [F.linear(x, self.a.weight), F.linear(x, self.b.weight), *within]


class Losses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(x, torch.zeros(len(x)).long())


class Auxiliary(Losses):
    def __init__(self) -> None:
        super().__init__()
        self.child = Losses()

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([super().forward(x), self.child(x)])


class Sizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b = x.reshape(-1, 5, 4), x.reshape(-1, 10, 2)
        whole, half = (F.scaled_dot_product_attention(t, t, t) for t in (a, b))
        return torch.stack([whole.flatten(), half.flatten()])


def scaled(model: nn.Module, x: Tensor, values: list[float], tied: tuple[str, ...] = ()) -> Any:
    apply_scales(model, observe(model, lambda: model(x), {name: {} for name in tied}, []).sites)
    for value, (_, buffer) in zip(values, model.named_buffers(), strict=True):
        buffer.fill_(value)
    return model(x)


def test_every_tied_weight_is_scaled_once_by_its_own_factor() -> None:
    model, tokens = Heads(Heads()), torch.randint(CLASSES, (2, 5))
    before = model(tokens)
    tied = ("a.weight", "b.weight", "child.a.weight", "child.b.weight")
    after = scaled(model, tokens, [4.0, 5.0, 2.0, 3.0], tied)
    for factor, a, b in zip([2.0, 3.0, 4.0, 5.0], after, before, strict=True):
        torch.testing.assert_close(a, factor * b)


def test_a_loss_within_another_module_is_scaled_once() -> None:
    x = torch.randn(6, CLASSES)
    torch.testing.assert_close(scaled(Auxiliary(), x, [2.0, 2.0]), Auxiliary()(2 * x))


def test_heads_of_several_sizes_have_factors_of_their_own() -> None:
    x = torch.randn(20, 2)
    ratios = scaled(Sizes(), x, [4**-0.5, 3.0, 2**-0.5, 7.0]) / Sizes()(x)
    torch.testing.assert_close(ratios, torch.tensor([[3.0], [7.0]]).expand_as(ratios))


@pytest.mark.parametrize("pattern", ["*", "layers"])
def test_a_branch_that_is_never_called_is_refused(pattern: str, golden: Golden) -> None:
    model, _, batch = decoder()
    with raises_config_error("branches", "layers", golden):
        observe(model, lambda: model(*batch), {}, [pattern])


def test_a_branch_that_is_a_sequence_of_modules_is_scaled_as_a_whole() -> None:
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 3)).double()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.mlp(x)

    model, x = Adding(), torch.randn(2, 3, dtype=torch.float64)
    branch = model.mlp(x)
    apply_scales(model, observe(model, lambda: model(x), {}, ["mlp"]).sites)
    set_scales(model, residual_branch=0.25)
    torch.testing.assert_close(model(x), x + 0.25 * branch)


def test_a_branch_that_returns_no_tensor_is_refused() -> None:
    class Returning(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"out": x}

    model = nn.Sequential(Returning())
    with raises_config_error("branches", "0"):
        observe(model, lambda: model(torch.ones(1)), {}, ["0"])


X = torch.randn(2, 5, 12)


def heads(x: Tensor) -> Tensor:
    """[2, 3 heads, 5 positions, head size 4]."""
    return x.view(2, 5, 3, 4).transpose(1, 2)


def fused(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x))


def fused_with_a_scale(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), scale=0.25)


def by_hand(x: Tensor) -> Tensor:
    att = (heads(x) @ heads(x).transpose(-2, -1)) * 0.5
    att = att.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    return F.softmax(att, dim=-1) @ heads(x)


def by_bmm(x: Tensor) -> Tensor:
    q = heads(x).flatten(0, 1)
    return torch.bmm(torch.bmm(q, q.transpose(1, 2)).softmax(-1), q)


def whole(x: Tensor) -> Tensor:
    return nn.MultiheadAttention(12, 3, batch_first=True)(x, x, x)[0]  # type: ignore[no-any-return]


def none(x: Tensor) -> Tensor:
    weight = nn.Parameter(torch.randn(12, 5))
    return torch.softmax(F.linear(x, torch.randn(7, 12)), -1) @ torch.ones(7, 12) @ weight


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (fused, None),
        (fused_with_a_scale, SeenAttention(4, 0.25, 5)),
        (by_hand, SeenAttention(4, None, 5)),
        (by_bmm, SeenAttention(4, None, 5)),
        (whole, SeenAttention(4, 0.5, 5)),
        (none, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_seen(call: object, expected: SeenAttention | None, device: str) -> None:
    assert callable(call)
    with torch.device(device), OperationWatch({}, {}) as watch:
        call(X.to(device))
    assert watch.unscaled == ({expected} if expected else set())
    assert [site.geometry["seq_len"] for site in watch.sites] == [5] * (call is fused)
