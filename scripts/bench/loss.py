"""The chunked loss against the plain one, by number of classes: seconds a step, and memory.

Head product, loss and gradients of K stacked trials, side by side in one run; the ratio says from
how many classes on chunks are the faster (`cross_entropy.MIN_CHUNKED_CLASSES`).

    python scripts/bench/loss.py --classes 1024,4096,16384,32000 --trials 1,4 --tokens 2048
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call

from sweeper.models import loss
from sweeper.models.scaled import CrossEntropy, Linear


class Head(nn.Module):
    """A head and its loss."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = Linear(width, classes, unit=True, readout=True)
        self.loss = CrossEntropy(classes, unit=True)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        return loss.head_loss(self.head, self.loss, x, targets)


def step(trials: int, tokens: int, width: int, classes: int, device: str) -> Callable[[], None]:
    """One forward and backward pass of `trials` heads."""
    with torch.device(device):
        model = Head(width, classes)
        weights = {
            name: torch.randn(trials, *value.shape).requires_grad_()
            for name, value in model.named_parameters()
        }
        x = torch.randn(trials, tokens, width).requires_grad_()
        targets = torch.randint(classes, (trials, tokens))
    buffers = {k: v.expand(trials, *v.shape) for k, v in model.named_buffers()}

    def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], *inputs: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device != "cpu"):
            return functional_call(model, {**weights, **buffers}, inputs)  # type: ignore[no-any-return]

    def run() -> None:
        losses = torch.vmap(loss)(weights, buffers, x, targets)
        torch.autograd.grad(losses.sum(), [*weights.values(), x])
        if device != "cpu":
            torch.cuda.synchronize()

    return run


def seconds(run: Callable[[], None], repeats: int) -> float:
    """Median seconds of a step."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--classes", default="1024,4096,16384,32000")
    parser.add_argument("--trials", default="1,4")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = Table("classes", "trials", "plain ms", "chunked ms", "plain / chunked")
    rows = []
    for classes in map(int, options.classes.split(",")):
        for trials in map(int, options.trials.split(",")):
            found = {}
            for name, least in (("plain", classes + 1), ("chunked", 1)):
                loss.MIN_CHUNKED_CLASSES = least
                run = step(trials, options.tokens, options.width, classes, options.device)
                found[name] = seconds(run, options.repeats)
            ratio = found["plain"] / found["chunked"]
            rows.append({"classes": classes, "trials": trials, "ratio": ratio, **found})
            times = (f"{1000 * found[name]:.2f}" for name in ("plain", "chunked"))
            table.add_row(str(classes), str(trials), *times, f"{ratio:.2f}")
    Console().print(table)
    if options.out:
        options.out.write_text(
            json.dumps({"device": options.device, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
