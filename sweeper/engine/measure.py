"""How far training moves every module's output: the measurement behind a coordinate check.

`measure_modules` trains on one batch and compares outputs on it, by hooks on modules (`recording`).
What no call of a module shows is seen where a function is called: products with parameters that a
model uses by itself, and what the loss gets (`ProductWatch`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from sweeper.classifier.running import FunctionWatch, hooked
from sweeper.data.corpus import Batch, Corpus
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.program import Stacked, quiet_attention
from sweeper.errors import BadInput
from sweeper.launch.job import UNCONTROLLED, Control
from sweeper.scaling.spec import LOGITS, ParamSpec, Role
from sweeper.trial import Trial


@dataclass(frozen=True, kw_only=True)
class ModuleMeasurement:
    """One module's output on a fixed batch: its RMS at first, and that of its change by each step.

    `direct_changes` are those that the module's parameters make of its initial input, empty if it
    has none. `role` is that of the largest of them, None if it has none. `entries` counts the
    output's entries: those of logits, say, are as many at every width. There are none where a
    parameter moves that no output shows: see `not_seen`.
    """

    name: str
    role: Role | None
    entries: int
    rms: float
    changes: tuple[float, ...]
    direct_changes: tuple[float, ...]


def not_seen(name: str, role: Role | None) -> ModuleMeasurement:
    """The row of a trained parameter whose outputs cannot be told."""
    return ModuleMeasurement(
        name=name, role=role, entries=0, rms=0.0, changes=(), direct_changes=()
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

    A parameter whose module is never called is measured where a product is made with it, under
    its own name. What the loss gets is measured as `LOGITS`; parameters that the model holds
    outside of modules, and those that no other row shows, make its direct change. Weights do not
    decay: decay moves them in proportion to what they are, at any width and with any rate.
    """
    # On one batch, seen again at every step: what changes in an output is then the weights' work.
    repeated: Any = RepeatedBatch(corpus)
    run = BatchedRun(BatchedTrials(trials=(trial,), corpus=repeated), device)
    no_decay = [torch.zeros_like(value) for value in run.update_hps.weight_decay]
    run.update_hps = replace(run.update_hps, weight_decay=no_decay)
    start = {name: value.detach().clone() for name, value in run.params.items()}
    steps: list[tuple[dict[str, float], dict[str, float]]] = []
    with quiet_attention():
        try:
            before, _ = _evaluate(run, start)
            for _ in range(run.prepared.train.steps):
                control.leave_if_asked()
                run.step()
                steps.append(_measure_step(run, start, before))
        finally:
            run.program.release()
    # Of a module's parameters the one of most dimensions comes last, and stays.
    specs = sorted(run.prepared.specs, key=lambda spec: len(spec.shape))
    roles = {_owner(spec.name) or LOGITS: spec.role for spec in specs}
    roles |= {spec.name: spec.role for spec in specs}
    measured = [
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
    moved = [
        spec
        for spec in run.prepared.trained_specs
        if not torch.equal(start[spec.name], run.params[spec.name])
    ]
    hidden = _not_seen(moved, [row.name for row in measured if row.direct_changes])
    return measured + [not_seen(spec.name, spec.role) for spec in hidden]


def _measure_step(
    run: BatchedRun, start: Stacked, before: Outputs
) -> tuple[dict[str, float], dict[str, float]]:
    # With all weights of now; then with those of the start, and beside them what every module makes
    # of its inputs at the start with its weights of now.
    after, _ = _evaluate(run, run.params)
    first, moved = _evaluate(run, start, {k: v[0] for k, v in run.params.items()})
    changes = {name: _rms_change(x, before[name]) for name, x in after.items()}
    direct = {name: _rms_change(x, first[name]) for name, x in moved.items()}
    # What the logits' row shows: parameters outside of modules, and those without a row.
    outside = [name for name in start if "." not in name or not is_measured(name, direct)]
    if outside and LOGITS in before:
        mixed = {**start, **{name: run.params[name] for name in outside}}
        logits = _evaluate(run, mixed)[0][LOGITS]
        direct[LOGITS] = _rms_change(logits, before[LOGITS])
    return changes, direct


def _not_seen(specs: Sequence[ParamSpec], direct: Sequence[str]) -> list[ParamSpec]:
    """Parameters that a parameterization scales and no row shows.

    In the logits' row a readout hides that hidden weights do not move, and they may shrink on the
    way there: it shows embeddings and vectors alone.
    """
    covered = {Role.FIXED}
    if LOGITS in direct:
        covered |= {Role.EMBEDDING, Role.VECTOR}
    return [
        spec for spec in specs if spec.role not in covered and not is_measured(spec.name, direct)
    ]


def rms(tensors: Sequence[Tensor]) -> float:
    """Root mean square over all entries of all tensors, summed in float64."""
    # float64: in float32 a sum over millions of small squares stops growing.
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
    run: BatchedRun, params: Stacked, weights: Mapping[str, Tensor] = MappingProxyType({})
) -> tuple[Outputs, Outputs]:
    """Outputs on the run's batch with `params`; those of modules that have `weights` instead."""
    outputs: Outputs = {}
    with_weights: Outputs = {}
    x, y = run.feed.batch(0)
    recorder = recording(run.program.model, params.keys(), weights, outputs, with_weights)
    with recorder, run.precision():
        run.program.evaluate(params, run.buffers, x, y)
    return outputs, with_weights


@contextmanager
def recording(
    model: nn.Module,
    trained: Collection[str],
    weights: Mapping[str, Tensor],
    outputs: Outputs,
    with_weights: Outputs,
) -> Iterator[None]:
    """Put modules' outputs, and the logits, into `outputs` while `model` runs.

    Products with `trained` parameters whose own module is not called are there by the parameters'
    names. Into `with_weights` go the outputs that the same inputs lead to with the parameters of
    `weights`, of what has any: a module's matrices, as a bias would hide that they do not move, or
    its vectors where it has nothing else.
    """
    # Hooks run within the call with other weights, too; that call is no part of the model's.
    repeating = False
    called: set[str] = set()
    # A parametrization makes a weight: what it returns is no activation.
    within = (name.split(".") for name, _ in model.named_modules())
    named = [
        (name, module)
        for parts, (name, module) in zip(within, model.named_modules(), strict=True)
        if name and "parametrizations" not in parts
    ]
    replacing = {name: _weights_of(name, module, weights, trained) for name, module in named}

    def leave(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal repeating
        if repeating:
            return
        _add_call(outputs, name, output)
        if replacing[name]:
            repeating = True
            try:
                repeated = functional_call(module, dict(replacing[name]), args, kwargs)
                _add_call(with_weights, name, repeated)
            finally:
                repeating = False

    def parameters() -> dict[str, Tensor]:
        return {name: value for name, value in model.named_parameters() if name in trained}

    def note(name: str, output: Tensor, with_value: Callable[[Tensor], Tensor] | None) -> None:
        # A weight whose module is called is measured by that module's hook. The logits, which come
        # without `with_value`, are no module's: they are always noted.
        if with_value and _owner(name) in called:
            return
        _add_call(outputs, name, output)
        if with_value and name in weights:
            _add_call(with_weights, name, with_value(weights[name]))

    try:
        with (
            hooked(named, enter=lambda name, _: called.add(name), leave=leave),
            ProductWatch(note, parameters, lambda: repeating),
        ):
            yield
    finally:
        # A module may be called after its weight was used without it.
        for name in [name for name in outputs if name in trained and _owner(name) in called]:
            del outputs[name]
            with_weights.pop(name, None)


def _weights_of(
    name: str, module: nn.Module, weights: Mapping[str, Tensor], trained: Collection[str]
) -> dict[str, Tensor]:
    """A module's matrices in `weights`, else what is least like a vector; see `recording`."""
    values = {
        key: weights[f"{name}.{key}"]
        for key, _ in module.named_parameters()
        if _owner(key) == "" and f"{name}.{key}" in weights
    }
    values = {key: v for key, v in values.items() if f"{name}.{key}" in trained} or values
    # A gain of [1, width] counts where there is no true matrix, a vector where there is neither.
    ranks = {key: (is_matrix(value.shape), value.dim() > 1) for key, value in values.items()}
    return {key: value for key, value in values.items() if ranks[key] == max(ranks.values())}


def _owner(parameter: str) -> str:
    """The name of the module that holds a parameter, itself or as one of its parametrizations."""
    holder, parametrized, _ = f".{parameter}".partition(".parametrizations.")
    return (holder if parametrized else holder.rpartition(".")[0]).removeprefix(".")


def is_matrix(shape: Sequence[int]) -> bool:
    """Whether a parameter of this shape is more than a vector, such as a gain of [1, width]."""
    return sum(size > 1 for size in shape) > 1


def is_measured(parameter: str, direct: Iterable[str]) -> bool:
    """Whether a parameter belongs to one of the rows that have a direct change."""
    return any(row == parameter or row.partition("[")[0] == _owner(parameter) for row in direct)


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


class RepeatedBatch:
    """A corpus of one batch for each seed, the first of `corpus`; the rest is that corpus's."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._corpus, name)

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """The batch of step 0, whatever `step`."""
        return self._corpus.batch(seed, 0, batch_size, seq_len)


CONVOLUTIONS = {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)}
PRODUCTS = CONVOLUTIONS | {
    *("linear", "bilinear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "embedding"),
    "multi_head_attention_forward",
}
"""Names of functions whose output tells what a matrix among their arguments does."""
Note = Callable[[str, Tensor, Callable[[Tensor], Tensor] | None], None]
"""Gets a name, an output, and what another value of the parameter of that name would make of it."""


class ProductWatch(FunctionWatch):
    """Tells what the loss gets, as `LOGITS`, and the products with `parameters`, by their names.

    `parameters` gives them as they are while the model runs. A product may be with a view of one,
    such as its transpose. Nothing is noted while `paused`.
    """

    def __init__(
        self, tell: Note, parameters: Callable[[], Mapping[str, Tensor]], paused: Callable[[], bool]
    ) -> None:
        super().__init__()
        self.tell, self.parameters, self.paused = tell, parameters, paused
        self._by_storage: dict[int, list[tuple[str, Tensor]]] = {}
        self._function: dict[str, str] = {}
        self._log_softmax: dict[int, tuple[Tensor, Tensor]] = {}

    def note(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """See whether the call is the loss or a product."""
        name = getattr(func, "__name__", "")
        if self.paused():
            return
        # The logits are what cross_entropy gets, or log_softmax before nll_loss.
        if func in (F.cross_entropy, F.nll_loss) or name == "log_softmax":
            x = args[0] if args else kwargs["input"]
            if func is F.cross_entropy:
                self.tell(LOGITS, x, None)
            elif func is not F.nll_loss:
                self._log_softmax[_storage(result)] = result, x
            elif softmax := self._log_softmax.get(_storage(x)):
                self.tell(LOGITS, softmax[1], None)
        elif name in PRODUCTS or name == "add":
            self._note_product(func, name, args, kwargs, result)

    def _note_product(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        output = result[0] if isinstance(result, tuple) else result
        factors = list(self._parameters_in((args, kwargs)))
        if len(factors) > 1 and name != "multi_head_attention_forward":  # a product of weights
            return
        for key, parameter, view in factors:
            if name == "add" and output.numel() <= view.numel():  # a sum of weights
                continue
            # A table that is also the readout is measured where it is used first.
            if self._function.setdefault(key, name) != name:
                continue

            def with_value(value: Tensor, old: Tensor = parameter) -> Tensor:
                def replaced(leaf: Any) -> Any:
                    return _like(leaf, old, value) if _is_view(leaf, old) else leaf

                again = func(*tree_map(replaced, args), **tree_map(replaced, kwargs))
                return again[0] if isinstance(again, tuple) else again  # type: ignore[no-any-return]

            self.tell(key, output, with_value)

    def _parameters_in(self, values: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
        if not self._by_storage:
            for name, parameter in self.parameters().items():
                if parameter.dim() > 1:
                    self._by_storage.setdefault(_storage(parameter), []).append((name, parameter))
        for leaf in tree_leaves(values):
            if isinstance(leaf, Tensor):
                for name, parameter in self._by_storage.get(_storage(leaf), ()):
                    if _is_view(leaf, parameter):
                        yield name, parameter, leaf


def _storage(x: Tensor) -> int:
    """The address of the memory that views of a tensor share; 0 where there is none."""
    try:
        return x.untyped_storage().data_ptr()
    except RuntimeError:  # within vmap, or sparse
        return 0


def _is_view(x: Any, parameter: Tensor) -> bool:
    if not isinstance(x, Tensor) or not (address := _storage(x)) or address != _storage(parameter):
        return False
    return 0 <= x.storage_offset() - parameter.storage_offset() < parameter.numel()


def _like(view: Tensor, parameter: Tensor, value: Tensor) -> Tensor:
    offset = view.storage_offset() - parameter.storage_offset()
    # Laid out in memory as the parameter is.
    laid_out = parameter.detach().clone().copy_(value)
    return laid_out.as_strided(view.shape, view.stride(), offset)
