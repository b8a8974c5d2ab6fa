"""Architectures as their papers have them, in torch alone; a batch gives the loss.

`width` is the size that grows. Sizes of heads, of states, of Fourier features and of the ranks of
latent attention are held, as the models' authors hold them between sizes.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HEAD, CLASSES = 16, 32


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    q, k, v = (x.unflatten(-1, (-1, HEAD)).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2).flatten(2)


class Dit(nn.Module):
    """Peebles and Xie, arXiv:2212.09748: a diffusion transformer with adaLN-zero."""

    def __init__(self, width: int, frequencies: int = 16) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.patch = nn.Conv2d(3, width, 2, stride=2)
        self.time = nn.Sequential(
            nn.Linear(2 * frequencies, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.label = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(DitBlock(width) for _ in range(2))
        self.modulate = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, 12)
        for module in (self.modulate, self.out):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(self, image: Tensor, t: Tensor, label: Tensor, noise: Tensor) -> Tensor:
        scale = torch.exp(-math.log(10000) * torch.arange(self.frequencies) / self.frequencies)
        angle = t[:, None] * scale.to(t)
        c = self.time(torch.cat([angle.cos(), angle.sin()], 1)) + self.label(label)
        x = self.patch(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, c)
        shift, gain = self.modulate(F.silu(c))[:, None].chunk(2, -1)
        x = self.out(F.layer_norm(x, x.shape[-1:]) * (1 + gain) + shift)
        return F.mse_loss(x, noise)


class DitBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.modulate = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulate.weight)
        nn.init.zeros_(self.modulate.bias)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        m = self.modulate(F.silu(c))[:, None].chunk(6, -1)
        h = F.layer_norm(x, x.shape[-1:]) * (1 + m[1]) + m[0]
        x = x + m[2] * self.proj(attend(*self.qkv(h).chunk(3, -1)))
        h = F.layer_norm(x, x.shape[-1:]) * (1 + m[4]) + m[3]
        return x + m[5] * self.down(F.gelu(self.up(h)))


class UNet(nn.Module):
    """Ho et al., arXiv:2006.11239: a denoising U-Net with attention at its lowest resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inp = nn.Conv2d(3, width, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.first = ResBlock(width, width, width)
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.second = ResBlock(width, 2 * width, width)
        self.norm, self.qkv = nn.GroupNorm(8, 2 * width), nn.Conv2d(2 * width, 6 * width, 1)
        self.proj = nn.Conv2d(2 * width, 2 * width, 1)
        self.grow = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.third = ResBlock(2 * width, width, width)
        self.last, self.out = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        angle = t[:, None] * torch.exp(-torch.arange(8)).to(t)
        c = self.time(torch.cat([angle.cos(), angle.sin()], 1))
        skip = self.first(self.inp(image), c)
        x = self.second(self.shrink(skip), c)
        rows = self.qkv(self.norm(x)).flatten(2).transpose(1, 2)
        a = attend(*rows.chunk(3, -1)).transpose(1, 2).reshape(x.shape)
        x = self.grow(x + self.proj(a))
        x = self.third(torch.cat([x, skip], 1), c)
        return F.mse_loss(self.out(F.silu(self.last(x))), noise)


class ResBlock(nn.Module):
    def __init__(self, into: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, into), nn.Conv2d(into, out, 3, padding=1)
        self.shift = nn.Linear(time, out)
        self.norm2, self.conv2 = nn.GroupNorm(8, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(into, out, 1)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.shift(F.silu(c))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Lm(nn.Module):
    """A language model of two blocks."""

    def __init__(self, width: int, block: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, width)
        self.blocks = nn.ModuleList(block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


class RwkvBlock(nn.Module):
    """Peng et al., arXiv:2305.13048: RWKV-4's time mixing and channel mixing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.ParameterDict({k: nn.Parameter(torch.rand(width)) for k in "rkvcd"})
        self.decay = nn.Parameter(torch.linspace(-5, 3, width))
        self.bonus = nn.Parameter(torch.full((width,), math.log(0.3)))
        make = {"bias": False}
        self.receive, self.key = nn.Linear(width, width, **make), nn.Linear(width, width, **make)
        self.value, self.output = nn.Linear(width, width, **make), nn.Linear(width, width, **make)
        self.up, self.down = (
            nn.Linear(width, 4 * width, **make),
            nn.Linear(4 * width, width, **make),
        )
        self.gate = nn.Linear(width, width, **make)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        mixed = {k: torch.lerp(self.before(h), h, self.mix[k]) for k in "rkv"}
        r, k, v = self.receive(mixed["r"]), self.key(mixed["k"]), self.value(mixed["v"])
        x = x + self.output(torch.sigmoid(r) * self.wkv(k, v))
        h = self.norm2(x)
        up = self.up(torch.lerp(self.before(h), h, self.mix["c"]))
        gate = torch.sigmoid(self.gate(torch.lerp(self.before(h), h, self.mix["d"])))
        return x + gate * self.down(torch.relu(up).square())

    def before(self, h: Tensor) -> Tensor:
        return F.pad(h, (0, 0, 1, -1))

    def wkv(self, k: Tensor, v: Tensor) -> Tensor:
        over, under = torch.zeros_like(v[:, 0]), torch.zeros_like(v[:, 0])
        keep, outputs = torch.exp(-torch.exp(self.decay)), []
        for t in range(k.shape[1]):
            now, new = torch.exp(self.bonus + k[:, t]), torch.exp(k[:, t])
            outputs.append((over + now * v[:, t]) / (under + now))
            over, under = keep * over + new * v[:, t], keep * under + new
        return torch.stack(outputs, 1)


class Mamba2Block(nn.Module):
    """Dao and Gu, arXiv:2405.21060: one projection for gate, values, B, C and steps of heads."""

    def __init__(self, width: int, state: int = 8) -> None:
        super().__init__()
        self.inner, self.state = 2 * width, state
        heads = self.inner // HEAD
        self.norm = nn.RMSNorm(width)
        self.in_proj = nn.Linear(width, 2 * self.inner + 2 * state + heads, bias=False)
        channels = self.inner + 2 * state
        self.conv = nn.Conv1d(channels, channels, 4, groups=channels, padding=3)
        self.dt_bias = nn.Parameter(torch.linspace(-4, -1, heads))
        self.a_log = nn.Parameter(torch.log(torch.linspace(1, 8, heads)))
        self.skip = nn.Parameter(torch.ones(heads))
        self.gated, self.out_proj = nn.RMSNorm(self.inner), nn.Linear(self.inner, width, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        sizes = [self.inner, self.inner + 2 * self.state]
        z, xbc, dt = self.in_proj(self.norm(u)).tensor_split([sizes[0], sum(sizes)], -1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., : u.shape[1]]).transpose(1, 2)
        x, b, c = xbc.split([self.inner, self.state, self.state], -1)
        x = x.unflatten(-1, (-1, HEAD))
        dt = F.softplus(dt + self.dt_bias)
        keep = torch.exp(-dt * torch.exp(self.a_log))
        h, outputs = torch.zeros_like(x[:, 0, ..., None] * b[:, 0, None, None]), []
        for t in range(u.shape[1]):
            new = dt[:, t, :, None, None] * x[:, t, ..., None] * b[:, t, None, None]
            h = keep[:, t, :, None, None] * h + new
            outputs.append((h * c[:, t, None, None]).sum(-1) + self.skip[:, None] * x[:, t])
        y = torch.stack(outputs, 1).flatten(2)
        return u + self.out_proj(self.gated(y * F.silu(z)))


class MlaBlock(nn.Module):
    """DeepSeek-V2, arXiv:2405.04434: queries, keys and values through latents of a fixed rank."""

    def __init__(self, width: int, q_rank: int = 24, kv_rank: int = 16, rope: int = 8) -> None:
        super().__init__()
        heads = width // HEAD
        self.kv_rank, self.rope, self.heads = kv_rank, rope, heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_a, self.q_norm = nn.Linear(width, q_rank, bias=False), nn.RMSNorm(q_rank)
        self.q_b = nn.Linear(q_rank, heads * (HEAD + rope), bias=False)
        self.kv_a = nn.Linear(width, kv_rank + rope, bias=False)
        self.kv_norm = nn.RMSNorm(kv_rank)
        self.kv_b = nn.Linear(kv_rank, heads * 2 * HEAD, bias=False)
        self.o = nn.Linear(heads * HEAD, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q = self.q_b(self.q_norm(self.q_a(h))).unflatten(-1, (self.heads, -1))
        latent, rotary = self.kv_a(h).split([self.kv_rank, self.rope], -1)
        k, v = self.kv_b(self.kv_norm(latent)).unflatten(-1, (self.heads, -1)).chunk(2, -1)
        k = torch.cat([k, rotary[:, :, None].expand(-1, -1, self.heads, -1)], -1)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(o.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Gin(nn.Module):
    """Xu et al., arXiv:1810.00826, with edge features (arXiv:1905.12265): a graph network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.node, self.edge = nn.Linear(7, width), nn.Linear(3, width)
        self.eps = nn.Parameter(torch.zeros(2))
        self.first = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(2))
        self.second = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.out = nn.Linear(width, 4)

    def forward(
        self, nodes: Tensor, edges: Tensor, ends: Tensor, graph: Tensor, y: Tensor
    ) -> Tensor:
        h, e = self.node(nodes), self.edge(edges)
        for i, (first, second, norm) in enumerate(
            zip(self.first, self.second, self.norms, strict=True)
        ):
            messages = torch.relu(h[ends[0]] + e)
            gathered = torch.zeros_like(h).index_add(0, ends[1], messages)
            h = h + second(torch.relu(first(norm((1 + self.eps[i]) * h + gathered))))
        pooled = torch.zeros(len(y), h.shape[1], device=h.device).index_add(0, graph, h)
        return F.cross_entropy(self.out(pooled / 5), y)


class Perceiver(nn.Module):
    """Jaegle et al., arXiv:2103.03206: latents that look at an array, and at each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, width))
        self.look_norm, self.q = nn.LayerNorm(width), nn.Linear(width, width)
        self.kv = nn.Linear(5, 2 * width)
        self.look_out = nn.Linear(width, width)
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.out = nn.Linear(width, 10)

    def forward(self, array: Tensor, y: Tensor) -> Tensor:
        z = self.latents.expand(len(array), -1, -1)
        z = z + self.look_out(attend(self.q(self.look_norm(z)), *self.kv(array).chunk(2, -1)))
        z = z + self.proj(attend(*self.qkv(self.norm(z)).chunk(3, -1)))
        z = z + self.down(F.gelu(self.up(F.layer_norm(z, z.shape[-1:]))))
        return F.cross_entropy(self.out(z.mean(1)), y)


class Clip(nn.Module):
    """Radford et al., arXiv:2103.00020: two towers, compared in a space of a fixed size."""

    def __init__(self, width: int, joint: int = 12) -> None:
        super().__init__()
        self.patch, self.word = nn.Conv2d(3, width, 4, stride=4), nn.Embedding(CLASSES, width)
        self.cls, self.place = nn.Parameter(torch.randn(width)), nn.Embedding(5, width)
        self.image, self.text = ClipBlock(width), ClipBlock(width, causal=True)
        self.image_proj = nn.Linear(width, joint, bias=False)
        self.text_proj = nn.Linear(width, joint, bias=False)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), 1, -1), x], 1)
        x = self.image_proj(self.image(x)[:, 0])
        t = self.text_proj(self.text(self.word(text) + self.place.weight)[:, -1])
        x, t = F.normalize(x, dim=1), F.normalize(t, dim=1)
        logits = self.temperature.exp() * x @ t.T
        y = torch.arange(len(image), device=logits.device)
        return (F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y)) / 2


class ClipBlock(nn.Module):
    def __init__(self, width: int, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(attend(q, k, v, causal=self.causal))
        h = self.up(self.norm2(x))
        return x + self.down(h * torch.sigmoid(1.702 * h))


class Pinn(nn.Module):
    """Raissi et al., arXiv:1711.10561, on Fourier features (arXiv:2012.10047): u'' = -f."""

    features: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.linspace(-3, 3, 8)[None])
        self.inp, self.mid = nn.Linear(16, width), nn.Linear(width, width)
        self.end, self.out = nn.Linear(width, width), nn.Linear(width, 1)

    def solution(self, x: Tensor) -> Tensor:
        angle = x @ self.features
        h = torch.tanh(self.inp(torch.cat([angle.cos(), angle.sin()], 1)))
        out: Tensor = self.out(torch.tanh(self.end(torch.tanh(self.mid(h)))))
        return out

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            u = self.solution(x)
            [du] = torch.autograd.grad(u.sum(), x, create_graph=True)
            [ddu] = torch.autograd.grad(du.sum(), x, create_graph=True)
        return F.mse_loss(ddu, -f) + u[:2].square().mean()


class LoraDit(Dit):
    """LoRA (arXiv:2106.09685) on a diffusion transformer: all else is frozen."""

    def __init__(self, width: int, rank: int = 4) -> None:
        super().__init__(width)
        self.requires_grad_(False)
        for block in self.blocks:
            block.qkv = Lora(block.qkv, rank)  # type: ignore[assignment]
            block.up = Lora(block.up, rank)  # type: ignore[assignment]


class Lora(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + 2.0 * self.lora_b(self.lora_a(x))
        return out


def rwkv(width: int) -> Lm:
    return Lm(width, RwkvBlock)


def mamba2(width: int) -> Lm:
    return Lm(width, Mamba2Block)


def mla(width: int) -> Lm:
    return Lm(width, MlaBlock)


def batch(name: str) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    def whole(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=draw)

    match name:
        case "dit" | "lora on dit":
            return (
                normal(4, 3, 8, 8),
                torch.rand(4, generator=draw),
                whole(10, 4),
                normal(4, 16, 12),
            )
        case "unet":
            return normal(2, 3, 8, 8), torch.rand(2, generator=draw), normal(2, 3, 8, 8)
        case "gin":
            ends = torch.stack([whole(20, 40), whole(20, 40)])
            graph = torch.arange(20) // 5
            return normal(20, 7), normal(40, 3), ends, graph, whole(4, 4)
        case "perceiver":
            return normal(4, 20, 5), whole(10, 4)
        case "clip":
            return normal(4, 3, 8, 8), whole(CLASSES, 4, 5)
        case "pinn":
            return normal(16, 1), normal(16, 1)
    tokens = whole(CLASSES, 4, 17)
    return tokens[:, :-1], tokens[:, 1:]


FAMILIES = {
    "dit": Dit,
    "unet": UNet,
    "rwkv": rwkv,
    "mamba2": mamba2,
    "mla": mla,
    "gin": Gin,
    "perceiver": Perceiver,
    "clip": Clip,
    "pinn": Pinn,
    "lora on dit": LoraDit,
}
