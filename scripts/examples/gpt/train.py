"""The GPT of before.py after six edits: it trains by a plan of sweeper's."""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import sweeper

HEAD, CONTEXT, BASE = 16, 64, 32


class Block(nn.Module):
    """Attention and a feed-forward net, each behind a norm."""

    def __init__(self, width: int):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream [batch, time, width], with both branches added."""
        split = self.qkv(self.ln_1(x)).unflatten(-1, (3, -1, HEAD))
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / HEAD)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class GPT(nn.Module):
    """Bytes [batch, time] to logits, and with targets to their mean loss."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.wte.weight
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None):
        """The logits, and the loss."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x)) * (BASE / x.shape[-1])
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    """Train, and print the loss every ten steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plan", required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = GPT(args.width, args.depth)
    plan = sweeper.TransferPlan.load(args.plan)
    plan.init_(model, args.seed)
    optimizer = torch.optim.AdamW(plan.param_groups(model), betas=(0.9, 0.95))
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = bytearray(b"".join(file.read_bytes() for file in files))
    data, offsets = torch.frombuffer(text, dtype=torch.uint8), torch.arange(CONTEXT + 1)
    warmup = max(1, args.steps // 10)
    for step in range(args.steps):
        done = max(0, step - warmup) / (args.steps - warmup)
        factor = min((step + 1) / warmup, 0.55 + 0.45 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        rows = data[torch.randint(len(data) - CONTEXT, (16, 1)) + offsets].long()
        _, loss = model(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.2e}")


if __name__ == "__main__":
    main()
