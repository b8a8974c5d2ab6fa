"""RMS of what enters a model's matrix products, and how much of it FP8 could not hold.

As Figure 3 of the u-muP paper: input, weight and gradient of the output of every product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.data.corpus import Corpus
from sweeper.models.fp8 import DTYPES, Format, rounded
from sweeper.models.scaled import Attention, Linear
from sweeper.training.pack import Pack, PackRun, quiet_attention
from sweeper.training.program import random_seed
from sweeper.trial import Trial

FORMATS: tuple[Format, ...] = ("e4m3", "e5m2")


def _range(name: Format) -> tuple[float, float]:
    about = torch.finfo(DTYPES[name])
    return about.smallest_normal * about.eps, about.max


RANGES: dict[str, tuple[float, float]] = {name: _range(name) for name in FORMATS}
"""The smallest (subnormal) and the largest positive number of each format."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Shares of all entries that a format would make zero, and that lie beyond its largest."""

    underflow: float
    overflow: float


@dataclass(frozen=True, kw_only=True)
class OperandScale:
    """One operand of a product: "input", "weight" or "gradient", of a module at a step.

    Of attention's products "logits" is q k^T (input q, weight k) and "values" is that of the
    softmax (input) and v (weight).
    """

    product: str
    operand: str
    step: int
    rms: float
    e4m3: Share
    e5m2: Share

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> OperandScale:
        """From its fields as JSON; one of `files.RECORD_ERRORS` when they are others."""
        shares: dict[str, Share] = {
            name: Share(**{key: float(value) for key, value in record[name].items()})
            for name in FORMATS
        }
        numbers = {"step": int(record["step"]), "rms": float(record["rms"])}
        return cls(**{**record, **numbers, **shares})


class Tally:
    """Sums over all tensors of one operand."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.count, self.squares = 0, 0.0
        self.small, self.large = dict.fromkeys(FORMATS, 0), dict.fromkeys(FORMATS, 0)

    def add(self, x: Tensor) -> None:
        """Count the entries of `x`, of any shape."""
        x = x.detach().float()
        self.count += x.numel()
        self.squares += float(x.double().square().sum())
        for name in FORMATS:
            zero = (rounded(x, name) == 0) & (x != 0)
            self.small[name] += int(zero.sum())
            self.large[name] += int((x.abs() > RANGES[name][1]).sum())

    def share(self, name: Format) -> Share:
        """Out of the format's range."""
        return Share(
            underflow=self.small[name] / self.count, overflow=self.large[name] / self.count
        )


def scales(trial: Trial, corpus: Corpus, device: str = "cpu") -> list[OperandScale]:
    """Operands at initialization and at the end of the trial's training, each on its own batch.

    Seen are the products of `Linear`, `nn.Linear` and `Attention`; what a model multiplies
    elsewhere is not. An operand's entries that are 0 are no underflow.
    """
    run = PackRun(Pack(trials=(trial,), corpus=corpus), device)
    with quiet_attention():
        try:
            found = _seen(run)
            while run.step_index < run.prepared.train.steps:
                run.step()
            return found + _seen(run)
        finally:
            run.program.release()


def _seen(run: PackRun) -> list[OperandScale]:
    """All operands in one forward and backward pass on the batch that comes next."""
    tallies: dict[tuple[str, str], Tally] = {}
    x, y = run.feed.batch(run.step_index)
    seed = random_seed(run.seeds[0], run.step_index)
    with watching(run.program.model, tallies), run.precision():
        run.program.gradients("alone", run.params, run.buffers, x, y, lambda: [seed])
    return [
        OperandScale(
            product=product,
            operand=operand,
            step=run.step_index,
            rms=(tally.squares / tally.count) ** 0.5,
            e4m3=tally.share("e4m3"),
            e5m2=tally.share("e5m2"),
        )
        for (product, operand), tally in tallies.items()
        if tally.count
    ]


@contextmanager
def watching(model: nn.Module, tallies: dict[tuple[str, str], Tally]) -> Iterator[None]:
    """Tally the operands by (product, operand) while `model` runs forward and backward."""

    def add(product: str, operand: str, value: Tensor) -> None:
        tallies.setdefault((product, operand), Tally()).add(value)

    def linear(name: str) -> Any:
        def seen(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            add(name, "input", args[0] if args else next(iter(kwargs.values())))
            add(name, "weight", module.get_parameter("weight"))
            tallies.setdefault((name, "gradient"), Tally())
            _on_gradient(output, lambda gradient: add(name, "gradient", gradient))

        return seen

    def attention(name: str) -> Any:
        def seen(module: Attention, args: Any, kwargs: Any, output: Tensor) -> None:
            q, k, v = (x.detach() for x in args)
            weights = _softmax(module, q, k)
            for product, left, right in (
                ("logits", q * module.logit, k),
                ("values", weights, v),
            ):
                add(f"{name}.{product}", "input", left)
                add(f"{name}.{product}", "weight", right)

            def gradients(gradient: Tensor) -> None:
                add(f"{name}.values", "gradient", gradient)
                to_weights = gradient @ v.mT
                inner = (to_weights * weights).sum(-1, keepdim=True)
                add(f"{name}.logits", "gradient", weights * (to_weights - inner))

            _on_gradient(output, gradients)

        return seen

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, Linear | nn.Linear):
            handles.append(module.register_forward_hook(linear(name), with_kwargs=True))
        elif isinstance(module, Attention):
            handles.append(module.register_forward_hook(attention(name), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _on_gradient(output: Tensor, tell: Callable[[Tensor], None]) -> None:
    """Have `tell` called with the gradient of `output` once it is known."""
    if output.requires_grad:
        output.register_hook(tell)  # type: ignore[no-untyped-call]


def _softmax(module: Attention, q: Tensor, k: Tensor) -> Tensor:
    """What attention weighs values with, [batch, heads, seq, seq]."""
    logits = (q * module.logit) @ k.mT
    if module.geometry["causal"]:
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(later, -torch.inf)
    return logits.softmax(-1)
