"""A training script as anybody writes it, of PyTorch alone: the next byte of Python's own library.

With --plan, two lines take initialization, learning rates, eps and decay from a plan of sweeper's.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu

CONTEXT = 16


class Net(nn.Module):
    """Bytes [batch, CONTEXT] to the logits of the next one, [batch, 256]."""

    def __init__(self, width: int, depth: int = 3):
        super().__init__()
        self.embedding = nn.Embedding(256, 32)
        self.enter = nn.Linear(CONTEXT * 32, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits."""
        hidden = relu(self.enter(self.embedding(tokens).flatten(1)))
        for layer in self.layers:
            hidden = relu(layer(hidden))
        return self.head(hidden)


def text() -> torch.Tensor:
    """The bytes of the library's modules."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def main() -> None:
    """Train, and print the loss of every step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plan")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = Net(args.width)
    if args.plan:
        import sweeper

        plan = sweeper.TransferPlan.load(args.plan)
        plan.init_(model)
        optimizer = torch.optim.AdamW(plan.param_groups(model))
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data, offsets = text().long(), torch.arange(CONTEXT + 1)
    for step in range(args.steps):
        rows = data[torch.randint(len(data) - CONTEXT, (256, 1)) + offsets]
        loss = cross_entropy(model(rows[:, :-1]), rows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
