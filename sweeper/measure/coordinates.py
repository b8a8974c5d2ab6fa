"""How far training moves every module's output: the measurement behind a coordinate check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from sweeper.data.corpus import Batch, Corpus
from sweeper.errors import BadInput
from sweeper.scaling.spec import Role
from sweeper.training.pack import Pack, PackRun, quiet_attention
from sweeper.trial import Trial


@dataclass(frozen=True, kw_only=True)
class ModuleMeasurement:
    """One module's output on a fixed batch: its RMS at first, and that of its change by each step.

    `direct_changes` are the part of the change that the module's parameters make themselves, empty
    if it has none; `role` is that of the largest parameter, None likewise. `entries` counts the
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


def measure_modules(trial: Trial, corpus: Corpus, device: str = "cpu") -> list[ModuleMeasurement]:
    """Train `trial` on one batch, its first, and re-evaluate that batch after every step.

    The change by step t is RMS(x_t - x_0) over all entries of the module's output, what is one
    number (a loss) left out. The direct change is RMS(f(W_t, z_t) - f(W_0, z_t)), with W the
    module's own parameters and z_t its input at that time. Modules are in the order in which
    they last returned, and are evaluated in evaluation mode.
    """
    run = PackRun(Pack(trials=(trial,), corpus=Repeated(corpus)), device)
    start = {name: value.detach()[0].clone() for name, value in run.params.items()}
    with quiet_attention():
        try:
            before, _ = _evaluated(run, start)
            seen = [_differences(before, run, start) for _ in range(run.prepared.train.steps)]
        finally:
            run.program.release()
    roles = _roles(run)
    return [
        ModuleMeasurement(
            name=name,
            role=roles.get(name),
            entries=sum(x.numel() for x in tensors),
            rms=rms(tensors),
            changes=tuple(changes[name] for changes, _ in seen),
            direct_changes=tuple(direct[name] for _, direct in seen if name in direct),
        )
        for name, tensors in before.items()
    ]


def _roles(run: PackRun) -> dict[str, Role]:
    """The role of every module's largest parameter, by the module's name."""
    specs = sorted(run.prepared.specs, key=lambda spec: len(spec.shape))
    return {spec.name.rpartition(".")[0]: spec.role for spec in specs}


def rms(tensors: Sequence[Tensor]) -> float:
    """Root mean square over all entries of all tensors, summed in float64."""
    total = sum(float(x.double().square().sum()) for x in tensors)
    return float((total / sum(x.numel() for x in tensors)) ** 0.5)


Outputs = dict[str, list[Tensor]]
"""Tensors of each call by a module's name, the module that returned last at the end."""


def _differences(
    before: Outputs, run: PackRun, start: Mapping[str, Tensor]
) -> tuple[dict[str, float], dict[str, float]]:
    """After one more step: RMS by name of all changes, and of the direct ones."""
    run.step()
    after, restarted = _evaluated(run, start)
    return (
        {name: _change(tensors, before[name]) for name, tensors in after.items()},
        {name: _change(after[name], tensors) for name, tensors in restarted.items()},
    )


def _change(after: Sequence[Tensor], before: Sequence[Tensor]) -> float:
    """RMS of the difference; BadInput where a module was not called the same way again."""
    if [x.shape for x in after] != [x0.shape for x0 in before]:
        raise BadInput(
            "a module's outputs are not as many or as large each time that the same batch is "
            "evaluated: the check needs a forward pass that does the same at every step"
        )
    return rms([x.double() - x0.double() for x, x0 in zip(after, before, strict=True)])


def _evaluated(run: PackRun, start: Mapping[str, Tensor]) -> tuple[Outputs, Outputs]:
    """Outputs on the run's batch with its weights as they are now, and restarted at `start`."""
    found: Outputs = {}
    restarted: Outputs = {}
    x, y = run.feed.batch(0)
    with listening(run.program.model, start, found, restarted), run.precision():
        run.program.evaluate(run.params, run.buffers, x, y)
    return found, restarted


@contextmanager
def listening(
    model: nn.Module, start: Mapping[str, Tensor], found: Outputs, restarted: Outputs
) -> Iterator[None]:
    """Put modules' outputs into `found` while `model` runs.

    Into `restarted` go the outputs that their inputs would have led to with `start`'s parameters.
    """
    again = False

    def hook(name: str, old: Mapping[str, Tensor]) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            nonlocal again
            if again:
                return
            _add(found, name, output)
            if old:
                again = True
                try:
                    _add(restarted, name, functional_call(module, dict(old), args, kwargs))
                finally:
                    again = False

        return keep

    handles = []
    for name, module in model.named_modules():
        old = {
            key: start[f"{name}.{key}"]
            for key, _ in module.named_parameters(recurse=False)
            if f"{name}.{key}" in start
        }
        if name:
            handles.append(module.register_forward_hook(hook(name, old), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _add(found: Outputs, name: str, output: Any) -> None:
    """Keep a call's tensors; a module that is called again moves to the end."""
    for key, value in tensors_in(name, output):
        found[key] = [*found.pop(key, []), value.detach().clone()]


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
class Repeated:
    """A corpus of one batch for each seed, the first of `corpus`."""

    corpus: Corpus

    @property
    def classes(self) -> int:
        """Those of the corpus."""
        return self.corpus.classes

    def identity(self) -> dict[str, Any]:
        """That of the corpus."""
        return self.corpus.identity()

    def check(self, batch_size: int, seq_len: int) -> None:
        """BadInput as the corpus."""
        self.corpus.check(batch_size, seq_len)

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """The batch of step 0, whatever `step`."""
        return self.corpus.batch(seed, 0, batch_size, seq_len)

    def heldout(self, batch_size: int, seq_len: int, batches: int) -> Iterator[Batch]:
        """Those of the corpus."""
        return self.corpus.heldout(batch_size, seq_len, batches)
