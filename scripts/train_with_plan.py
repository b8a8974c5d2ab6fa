"""Train a model that sweeper did not write, with a sweeper plan, on one process or under FSDP2.

    python scripts/train_with_plan.py                                  # one process, seconds
    python scripts/train_with_plan.py --model gpt-neox                 # a model of transformers'
    torchrun --nproc-per-node 2 scripts/train_with_plan.py --fsdp      # the same losses, sharded
    python scripts/train_with_plan.py --plan my-plan.json --text book.txt

All that sweeper adds to the training loop is in `main`: what is between the two lines of dashes,
and the check of the schedule.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import sweeper

VOCABULARY, HEAD_SIZE = 256, 16
BASE = {"width": 32, "depth": 2}
HPS = {"eta": 2**-6, "eta_emb": 4.0, "sigma_init": 1.0}
HPS |= {"alpha_emb": 1.0, "alpha_attn": 1.0, "alpha_output": 2.0}
"""What a search at BASE would find; values, not logarithms."""


class Layer(nn.Module):
    """An ordinary pre-norm layer with biases."""

    def __init__(self, width: int, branch: float) -> None:
        """Heads of a fixed size, so that their scale is the same at every width.

        `branch` multiplies what each residual branch adds: 1 at the base's depth.
        """
        super().__init__()
        self.branch = branch
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.v, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, width] -> the same shape."""
        h, shape = self.norm1(x), (*x.shape[:2], -1, HEAD_SIZE)
        q, k, v = (f(h).view(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        # What the plan's `needs` ask for: muP's alpha_attn / d in place of d^-1/2.
        scale = HPS["alpha_attn"] / HEAD_SIZE
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        x = x + self.branch * self.out(h.transpose(1, 2).reshape(x.shape))
        return x + self.branch * self.down(F.gelu(self.up(self.norm2(x))))


class Plain(nn.Module):
    """A byte-level decoder as anyone would write it."""

    def __init__(self, width: int, depth: int, classes: int, seq_len: int) -> None:
        """Torch's own initialization; the plan replaces it."""
        super().__init__()
        # What the plan's `needs` ask for where the target is deeper than the base.
        branch = (BASE["depth"] / depth) ** 0.5
        self.tokens, self.positions = nn.Embedding(classes, width), nn.Embedding(seq_len, width)
        self.layers = nn.ModuleList(Layer(width, branch) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, seq] -> logits [batch, seq, classes]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class GPTNeoX(nn.Module):
    """transformers' GPT-NeoX, from a config: nothing is downloaded."""

    def __init__(self, width: int, depth: int, classes: int, seq_len: int) -> None:
        """As published, but for its size."""
        super().__init__()
        from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

        self.lm = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=classes,
                hidden_size=width,
                num_hidden_layers=depth,
                num_attention_heads=width // HEAD_SIZE,
                intermediate_size=4 * width,
                max_position_embeddings=seq_len,
                use_cache=False,
            )
        )
        for layer in self.layers:  # as the plan's `needs` ask: see `Layer`
            layer.attention.scaling = HPS["alpha_attn"] / HEAD_SIZE

    @property
    def layers(self) -> nn.ModuleList:
        """What FSDP shards one by one."""
        found: nn.ModuleList = self.lm.gpt_neox.layers
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, seq] -> logits [batch, seq, classes]."""
        logits: Tensor = self.lm(input_ids=tokens).logits
        return logits


MODELS: dict[str, Any] = {"plain": Plain, "gpt-neox": GPTNeoX}


def own_plan(name: str, target: dict[str, int], seq_len: int) -> sweeper.TransferPlan:
    """The plan that `sweeper transfer` would write for this model, at HPS."""

    def build(width: int, depth: int) -> nn.Module:
        model: nn.Module = MODELS[name](width, depth, VOCABULARY, seq_len)
        return model

    tokens = torch.zeros(2, seq_len, dtype=torch.long)
    return sweeper.plan_for(build, BASE, target, "mup", HPS, inputs=tokens)


def corpus(text: Path | None) -> Tensor:
    """Bytes [n]: the file's, or this one's own."""
    data = (text or Path(__file__)).read_bytes()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def batch(data: Tensor, step: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """This process's part of the step's batch: inputs and targets [part, seq]."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(data) - args.seq_len, (args.batch_size,), generator=generator)
    if args.fsdp:
        starts = starts.chunk(dist.get_world_size())[dist.get_rank()]
    windows = data[starts[:, None] + torch.arange(args.seq_len + 1)]
    return windows[:, :-1], windows[:, 1:]


def shard(model: Any) -> None:
    """FSDP2: every layer, then the rest."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def mean(loss: Tensor, args: argparse.Namespace) -> float:
    """The loss of the whole batch."""
    shown = loss.detach().clone()
    if args.fsdp:
        dist.all_reduce(shown)
        shown /= dist.get_world_size()
    return float(shown)


def main(args: argparse.Namespace) -> None:
    """Train and print the losses."""
    if args.fsdp:
        dist.init_process_group("gloo")
    say = print if not args.fsdp or dist.get_rank() == 0 else lambda *_: None
    target = {"width": args.width, "depth": args.depth}
    if args.plan:
        plan = sweeper.TransferPlan.load(args.plan)
    else:
        plan = own_plan(args.model, target, args.seq_len)
    model = MODELS[args.model](args.width, args.depth, VOCABULARY, args.seq_len)
    if args.fsdp:
        shard(model)
    # ---------------------------------------------------------------------
    plan.init_(model, seed=args.seed)
    optimizer = torch.optim.AdamW(plan.param_groups(model))
    # ---------------------------------------------------------------------
    say(plan)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=args.steps // 10)
    data = corpus(args.text)
    for step in range(args.steps):
        x, y = batch(data, step, args)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        plan.check(optimizer, model)  # cheap, and finds a schedule that breaks the plan's ratios
        shown = mean(loss, args)
        if (step + 1) % max(1, args.steps // 4) == 0 or step == 0:
            say(f"step {step + 1:3d}  loss {shown:.4f}")
    if args.fsdp:
        # Without it gloo's threads, which still hold tensors, now and then abort the exit.
        dist.barrier()
        dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="plain")
    parser.add_argument("--plan", type=Path, help="a plan.json (default: made here)")
    parser.add_argument("--text", type=Path, help="a file to train on (default: this script)")
    parser.add_argument("--fsdp", action="store_true", help="under torchrun: FSDP2 on gloo")
    for name, value in (("width", 128), ("depth", 2), ("steps", 60), ("batch-size", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seq-len", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    args = parser.parse_args()
    if args.fsdp and "RANK" not in os.environ:
        parser.error("--fsdp needs torchrun: torchrun --nproc-per-node 2 scripts/...")
    return args


if __name__ == "__main__":
    main(arguments())
