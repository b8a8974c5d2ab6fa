"""How far training moves every module's output: the measurement behind a coordinate check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from sweeper.control import UNCONTROLLED, Control
from sweeper.data.corpus import Batch, Corpus
from sweeper.errors import BadInput
from sweeper.scaling.spec import Role
from sweeper.training.pack import Pack, PackRun
from sweeper.training.precision import quiet_attention
from sweeper.trial import Trial


@dataclass(frozen=True, kw_only=True)
class ModuleMeasurement:
    """One module's output on a fixed batch: its RMS at first, and that of its change by each step.

    `direct_changes` are the parts of `changes` that the module's parameters make, empty if it
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
    number (a loss) left out. A module's parameters W make RMS(f(W_t, z_t) - f(W_0, z_t)) of it,
    z_t being the module's input: what changed upstream of the module is in both terms. Modules
    are in the order in which they last returned, and are evaluated in evaluation mode.
    """
    run = PackRun(Pack(trials=(trial,), corpus=RepeatedBatch(corpus)), device)
    start = {name: value.detach()[0].clone() for name, value in run.params.items()}
    steps: list[tuple[dict[str, float], dict[str, float]]] = []
    with quiet_attention():
        try:
            before, _ = _evaluate(run, start)
            for _ in range(run.prepared.train.steps):
                control.leave_if_asked()
                run.step()
                after, without_updates = _evaluate(run, start)
                changes = {name: _rms_change(x, before[name]) for name, x in after.items()}
                by_parameters = {k: _rms_change(after[k], x) for k, x in without_updates.items()}
                steps.append((changes, by_parameters))
        finally:
            run.program.release()
    # Of a module's parameters the one of most dimensions comes last, and stays.
    specs = sorted(run.prepared.specs, key=lambda spec: len(spec.shape))
    roles = {spec.name.rpartition(".")[0]: spec.role for spec in specs}
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


def _evaluate(run: PackRun, start: Mapping[str, Tensor]) -> tuple[Outputs, Outputs]:
    """Outputs on the run's batch; and those of the modules if each kept its `start` weights."""
    outputs: Outputs = {}
    without_updates: Outputs = {}
    x, y = run.feed.batch(0)
    with recording(run.program.model, start, outputs, without_updates), run.precision():
        run.program.evaluate(run.params, run.buffers, x, y)
    return outputs, without_updates


@contextmanager
def recording(
    model: nn.Module, start: Mapping[str, Tensor], outputs: Outputs, without_updates: Outputs
) -> Iterator[None]:
    """Put modules' outputs into `outputs` while `model` runs.

    Into `without_updates` go the outputs that the same inputs lead to with the parameters of
    `start`, of the modules that have any.
    """
    # Hooks run within the call with `start` weights, too; that call is no part of the model's.
    repeating = False

    def make_hook(name: str, start_params: Mapping[str, Tensor]) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            nonlocal repeating
            if repeating:
                return
            _add_call(outputs, name, output)
            if start_params:
                repeating = True
                try:
                    repeated = functional_call(module, dict(start_params), args, kwargs)
                    _add_call(without_updates, name, repeated)
                finally:
                    repeating = False

        return hook

    handles = []
    for name, module in model.named_modules():
        start_params = {
            key: start[f"{name}.{key}"]
            for key, _ in module.named_parameters(recurse=False)
            if f"{name}.{key}" in start
        }
        if name:
            hook = make_hook(name, start_params)
            handles.append(module.register_forward_hook(hook, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
