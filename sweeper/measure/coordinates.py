"""How far training moves every module's output: the measurement behind a coordinate check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from sweeper.control import UNCONTROLLED, Control
from sweeper.data.corpus import Batch, Corpus
from sweeper.errors import BadInput
from sweeper.scaling.spec import LOGITS, Role
from sweeper.training.pack import Pack, PackRun
from sweeper.training.precision import quiet_attention
from sweeper.training.program import Stacked
from sweeper.trial import Trial


@dataclass(frozen=True, kw_only=True)
class ModuleMeasurement:
    """One module's output on a fixed batch: its RMS at first, and that of its change by each step.

    `direct_changes` are those that the module's parameters make of its initial input, empty if it
    has none. `role` is that of the largest of them, None if it has none. `entries` counts the
    output's entries: those of logits, say, are as many at every width.
    """

    name: str
    role: Role | None
    entries: int
    rms: float
    changes: tuple[float, ...]
    direct_changes: tuple[float, ...]

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ModuleMeasurement:
        """From its fields as JSON."""
        role = record["role"]
        return cls(
            name=record["name"],
            role=None if role is None else Role(role),
            entries=record["entries"],
            rms=float(record["rms"]),
            changes=tuple(map(float, record["changes"])),
            direct_changes=tuple(map(float, record["direct_changes"])),
        )


def measure_modules(
    trial: Trial, corpus: Corpus, device: str = "cpu", control: Control = UNCONTROLLED
) -> list[ModuleMeasurement]:
    """Train `trial` on one batch, its first, and re-evaluate that batch after every step.

    The change by step t is RMS(x_t - x_0) over all entries of the module's output, what is one
    number (a loss) left out. A module's parameters W make RMS(f(W_t, z_0) - f(W_0, z_0)) of it,
    z_0 being the module's input at initialization: its input of step t depends on all other
    modules, and after large steps on the width, as initial logits shrink with the width. Modules
    are in the order in which they last returned, and are evaluated in evaluation mode.

    What the loss gets is measured as `LOGITS`, last; parameters that the model holds outside of
    modules make its direct change. Weights do not decay: decay moves them in proportion to what
    they are, at any width and with any rate.
    """
    run = PackRun(Pack(trials=(trial,), corpus=RepeatedBatch(corpus)), device)
    no_decay = [torch.zeros_like(value) for value in run.update_hps.weight_decay]
    run.update_hps = replace(run.update_hps, weight_decay=no_decay)
    start = {name: value.detach().clone() for name, value in run.params.items()}
    outside = [name for name in start if "." not in name]
    steps: list[tuple[dict[str, float], dict[str, float]]] = []
    with quiet_attention():
        try:
            before, _ = _evaluate(run, start)
            for _ in range(run.prepared.train.steps):
                control.leave_if_asked()
                run.step()
                after, _ = _evaluate(run, run.params)
                first, moved = _evaluate(run, start, {k: v[0] for k, v in run.params.items()})
                changes = {name: _rms_change(x, before[name]) for name, x in after.items()}
                direct = {name: _rms_change(x, first[name]) for name, x in moved.items()}
                if outside and LOGITS in before:
                    mixed = {**start, **{name: run.params[name] for name in outside}}
                    logits = _evaluate(run, mixed)[0][LOGITS]
                    direct[LOGITS] = _rms_change(logits, before[LOGITS])
                steps.append((changes, direct))
        finally:
            run.program.release()
    # Of a module's parameters the one of most dimensions comes last, and stays.
    specs = sorted(run.prepared.specs, key=lambda spec: len(spec.shape))
    roles = {spec.name.rpartition(".")[0] or LOGITS: spec.role for spec in specs}
    return [
        ModuleMeasurement(
            name=name,
            role=roles.get(name),
            entries=sum(x.numel() for x in tensors),
            rms=rms(tensors),
            changes=tuple(changes[name] for changes, _ in steps),
            direct_changes=tuple(part[name] for _, part in steps if name in part),
        )
        for name, tensors in before.items()
    ]


def rms(tensors: Sequence[Tensor]) -> float:
    """Root mean square over all entries of all tensors, summed in float64."""
    total = sum(float(x.double().square().sum()) for x in tensors)
    return float((total / sum(x.numel() for x in tensors)) ** 0.5)


Outputs = dict[str, list[Tensor]]
"""Tensors of each call by a module's name, the module that returned last at the end."""


def _rms_change(after: Sequence[Tensor], before: Sequence[Tensor]) -> float:
    """RMS of the difference; BadInput where a module was not called the same way again."""
    if [x.shape for x in after] != [x0.shape for x0 in before]:
        raise BadInput(
            "a module's outputs are not as many or as large each time that the same batch is "
            "evaluated: the check needs a forward pass that does the same at every step"
        )
    return rms([x.double() - x0.double() for x, x0 in zip(after, before, strict=True)])


def _evaluate(
    run: PackRun, params: Stacked, weights: Mapping[str, Tensor] = MappingProxyType({})
) -> tuple[Outputs, Outputs]:
    """Outputs on the run's batch with `params`; those of modules that have `weights` instead."""
    outputs: Outputs = {}
    with_weights: Outputs = {}
    x, y = run.feed.batch(0)
    recorder = recording(run.program.model, weights, outputs, with_weights)
    with recorder, run.precision():
        run.program.evaluate(params, run.buffers, x, y)
    return outputs, with_weights


@contextmanager
def recording(
    model: nn.Module, weights: Mapping[str, Tensor], outputs: Outputs, with_weights: Outputs
) -> Iterator[None]:
    """Put modules' outputs, and the logits, into `outputs` while `model` runs.

    Into `with_weights` go the outputs that the same inputs lead to with the parameters of
    `weights`, of the modules that have any.
    """
    # Hooks run within the call with other weights, too; that call is no part of the model's.
    repeating = False

    def make_hook(name: str, own: Mapping[str, Tensor]) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            nonlocal repeating
            if repeating:
                return
            _add_call(outputs, name, output)
            if own:
                repeating = True
                try:
                    repeated = functional_call(module, dict(own), args, kwargs)
                    _add_call(with_weights, name, repeated)
                finally:
                    repeating = False

        return hook

    handles = []
    for name, module in model.named_modules():
        own = {
            key: weights[f"{name}.{key}"]
            for key, _ in module.named_parameters(recurse=False)
            if f"{name}.{key}" in weights
        }
        if name:
            handles.append(module.register_forward_hook(make_hook(name, own), with_kwargs=True))
    try:
        with _LossInputs(outputs, lambda: repeating):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _LossInputs(TorchFunctionMode):
    """Adds what `cross_entropy` is called with to the outputs, as `LOGITS`."""

    def __init__(self, outputs: Outputs, ignored: Callable[[], bool]) -> None:
        super().__init__()
        self.outputs, self.ignored = outputs, ignored

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, and note its input where it is the loss."""
        if func is F.cross_entropy and not self.ignored():
            _add_call(self.outputs, LOGITS, args[0] if args else kwargs["input"])
        return func(*args, **(kwargs or {}))


def _add_call(outputs: Outputs, name: str, output: Any) -> None:
    """Add a call's tensors; a module that is called again moves to the end."""
    for key, value in tensors_in(name, output):
        # A copy: a later module may write into the tensor.
        outputs[key] = [*outputs.pop(key, []), value.detach().clone()]


def tensors_in(name: str, output: Any) -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors of a module's output that are more than one number, by name."""
    match output:
        case Tensor():
            if output.is_floating_point() and output.dim():
                yield name, output
        case Mapping():
            for key, value in output.items():
                yield from tensors_in(f"{name}[{key}]", value)
        case list() | tuple():
            for index, value in enumerate(output):
                yield from tensors_in(f"{name}[{index}]", value)


@dataclass(frozen=True)
class RepeatedBatch:
    """A corpus of one batch for each seed, the first of `corpus`."""

    corpus: Corpus

    @property
    def classes(self) -> int:
        """As the corpus."""
        return self.corpus.classes

    def identity(self) -> dict[str, Any]:
        """As the corpus."""
        return self.corpus.identity()

    def check(self, batch_size: int, seq_len: int) -> None:
        """BadInput as the corpus."""
        self.corpus.check(batch_size, seq_len)

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """The batch of step 0, whatever `step`."""
        return self.corpus.batch(seed, 0, batch_size, seq_len)

    def heldout(self, batch_size: int, seq_len: int, batches: int) -> Iterator[Batch]:
        """As the corpus."""
        return self.corpus.heldout(batch_size, seq_len, batches)
