"""Runs that measure more than their loss: `MEASUREMENTS`, by a trial's `measurement`.

Operand scales: the RMS of what enters a model's matrix products, and how much of it FP8 could not
hold. As Figure 3 of the u-muP paper: input, weight and gradient of the output of every product.
Beside them coordinates (`measure.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sweeper.classifier.running import hooked
from sweeper.data.corpus import Corpus
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.kernels import measure_kernels
from sweeper.engine.measure import measure_modules
from sweeper.engine.program import quiet_attention, random_seed
from sweeper.launch.job import UNCONTROLLED, Control
from sweeper.models.fp8 import DTYPES, Format, rounded
from sweeper.models.scaled import Attention, Linear
from sweeper.records import to_json
from sweeper.trial import Trial

FORMATS: tuple[Format, ...] = ("e4m3", "e5m2")
RANGES: dict[str, tuple[float, float]] = {
    name: (limits.smallest_normal * limits.eps, limits.max)
    for name in FORMATS
    for limits in [torch.finfo(DTYPES[name])]
}
"""The smallest (subnormal) and the largest positive number of each format."""


@dataclass(frozen=True, kw_only=True)
class OutOfRange:
    """Fractions of all entries that a format would make zero, and that exceed its largest."""

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
    e4m3: OutOfRange
    e5m2: OutOfRange


class OperandSums:
    """Sums over all tensors of one operand: its entries, their squares, those out of range."""

    def __init__(self) -> None:
        self.count, self.squares = 0, 0.0
        self.underflows = dict.fromkeys(FORMATS, 0)
        self.overflows = dict.fromkeys(FORMATS, 0)

    def add(self, x: Tensor) -> None:
        """Count the entries of `x`, of any shape."""
        x = x.detach().float()
        self.count += x.numel()
        # In float64: the squares of float32 entries may leave that type's range.
        self.squares += float(x.double().square().sum())
        for name in FORMATS:
            to_zero = (rounded(x, name) == 0) & (x != 0)
            self.underflows[name] += int(to_zero.sum())
            self.overflows[name] += int((x.abs() > RANGES[name][1]).sum())

    def out_of_range(self, name: Format) -> OutOfRange:
        """Fractions of the entries that the format does not hold."""
        return OutOfRange(
            underflow=self.underflows[name] / self.count, overflow=self.overflows[name] / self.count
        )


def operand_scales(
    trial: Trial, corpus: Corpus, device: str = "cpu", control: Control = UNCONTROLLED
) -> list[OperandScale]:
    """Operands at initialization and at the end of the trial's training, each on its own batch.

    Measured are the products of `Linear`, `nn.Linear` and `Attention`; what a model multiplies
    elsewhere is not. An operand's entries that are 0 are no underflow.
    """
    run = BatchedRun(BatchedTrials(trials=(trial,), corpus=corpus), device)
    with quiet_attention():
        try:
            at_start = _operands(run)
            while run.step_index < run.prepared.train.steps:
                control.leave_if_asked()
                run.step()
            return at_start + _operands(run)
        finally:
            run.program.release()


def _operands(run: BatchedRun) -> list[OperandScale]:
    sums: OperandTable = {}
    x, y = run.feed.batch(run.step_index)
    seed = random_seed(run.seeds[0], run.step_index)
    # Not mapped: a hook within a map would get the map's stand-ins for tensors, without values.
    with recording(run.program.model, sums), run.precision():
        seeding: Callable[[int], None] = lambda _: run.program.seed(seed)  # noqa: E731
        run.program.gradients("alone", run.params, run.buffers, x, y, seeding)
    return [
        OperandScale(
            product=product,
            operand=operand,
            step=run.step_index,
            rms=(entry.squares / entry.count) ** 0.5,
            e4m3=entry.out_of_range("e4m3"),
            e5m2=entry.out_of_range("e5m2"),
        )
        for (product, operand), entry in sums.items()
        if entry.count
    ]


OperandTable = dict[tuple[str, str], OperandSums]
"""Sums by product and operand."""


@contextmanager
def recording(model: nn.Module, sums: OperandTable) -> Iterator[None]:
    """Add the operands to `sums` while `model` runs forward and backward."""

    def add(product: str, operand: str, value: Tensor) -> None:
        sums.setdefault((product, operand), OperandSums()).add(value)

    def linear(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        add(name, "input", args[0] if args else next(iter(kwargs.values())))
        add(name, "weight", module.get_parameter("weight"))
        # Here, so that it comes after its input and weight: backward passes run in reverse.
        sums.setdefault((name, "gradient"), OperandSums())
        _on_gradient(output, lambda gradient: add(name, "gradient", gradient))

    # The fused kernel keeps neither its logits nor its weights: they are computed again, and
    # their gradients from the output's by the derivative of the softmax.
    def attention(name: str, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        q, k, v = (x.detach() for x in args)
        weights = _softmax(module, q, k)
        for product, inputs, factors in (("logits", q * module.logit, k), ("values", weights, v)):
            add(f"{name}.{product}", "input", inputs)
            add(f"{name}.{product}", "weight", factors)

        # With w = softmax(z), o = w v and G = dL/do: dL/dw = G v^T, and by the derivative of the
        # softmax dL/dz_i = w_i (dL/dw_i - sum_j w_j dL/dw_j).
        def add_gradients(gradient: Tensor) -> None:
            add(f"{name}.values", "gradient", gradient)
            to_weights = gradient @ v.mT
            inner = (to_weights * weights).sum(-1, keepdim=True)
            add(f"{name}.logits", "gradient", weights * (to_weights - inner))

        _on_gradient(output, add_gradients)

    named = list(model.named_modules())
    products = [(name, m) for name, m in named if isinstance(m, Linear | nn.Linear)]
    attentions = [(name, m) for name, m in named if isinstance(m, Attention)]
    with hooked(products, leave=linear), hooked(attentions, leave=attention):
        yield


def _on_gradient(output: Tensor, receive: Callable[[Tensor], None]) -> None:
    if output.requires_grad:
        output.register_hook(receive)  # type: ignore[no-untyped-call]


def _softmax(module: Attention, q: Tensor, k: Tensor) -> Tensor:
    """What attention weighs values with, [batch, heads, seq, seq]."""
    logits = (q * module.logit) @ k.mT
    if module.geometry["causal"]:
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(later, -torch.inf)
    return logits.softmax(-1)


# Results hold JSON alone (`trial.Result`), since a job may run in another process. Each function is
# looked up when it is called, and not here: tests put others in their place.
MEASUREMENTS: Mapping[str, Callable[[Trial, Corpus, str, Control], Any]] = {
    "coordinates": lambda *args: to_json(measure_modules(*args)),
    "scales": lambda *args: to_json(operand_scales(*args)),
    "kernels": lambda *args: to_json(measure_kernels(*args)),
}
"""What can be measured: outputs and their changes, operands of products, kernels."""
