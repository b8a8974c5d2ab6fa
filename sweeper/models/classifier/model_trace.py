"""Build a model of given sizes, and trace one forward pass of it, without memory if possible.

A forward pass that works nowhere (see `places.py`) is not traced; the reason is kept, as roles
may be given by hand.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sweeper.errors import BadInput
from sweeper.models.classifier.default_inputs import default_inputs
from sweeper.models.classifier.dispatch import UseTracer, tensors_in
from sweeper.models.classifier.layers import pattern_of
from sweeper.models.classifier.numbers import Factor, NumberMode, Numbers
from sweeper.models.classifier.places import (
    ATTEMPTS,
    Place,
    RealPlace,
    TooLarge,
    described,
    move_inputs,
    move_model,
)
from sweeper.models.classifier.state import ActivationProduct, TraceState
from sweeper.models.classifier.uses import Use

Sizes = Mapping[str, Any]
Inputs = Any
"""What the model is called with: a tensor, a tuple or dict of them, or a function of the sizes."""


@dataclass(frozen=True, kw_only=True)
class ModelTrace:
    """Parameters of a model of some size, and what its forward pass uses them for.

    `shapes`, `tied` (other names of the same parameter) and `frozen` are by parameter; `uses` is
    None where no forward pass was traced, for the reason `failure`; `too_large` tells that smaller
    models can be traced. `products` counts the inner
    products with other activations that a parameter's output takes part in. `way` says how the
    pass was traced, if not in the usual way.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, tuple[str, ...]]
    frozen: frozenset[str] = frozenset()
    uses: Mapping[str, list[Use]] | None = None
    activation_products: tuple[ActivationProduct, ...] = ()
    products: Mapping[str, int] = field(default_factory=dict)
    contracted_again: frozenset[str] = frozenset()
    factors: tuple[Factor, ...] = ()
    failure: str = ""
    too_large: bool = False
    way: str = ""


class _Failed(Exception):
    """Why an attempt did not work; `shapes` are known if the model could be built."""

    def __init__(self, why: str, shapes: ModelTrace | None) -> None:
        super().__init__(why)
        self.shapes = shapes


T = TypeVar("T")


@dataclass(kw_only=True)
class Tracer:
    """Builds and traces a model at several sizes, each in the first way that works.

    `build` takes the sizes as named arguments; `inputs` is what the model is called with.
    """

    build: Callable[..., nn.Module]
    inputs: Inputs = None
    _first: int = 0
    """What did not work at one size is not tried at the next."""

    def shapes(self, sizes: Sizes) -> ModelTrace:
        """Names and shapes alone, without a forward pass; BadInput if no way works."""
        failures = []
        for kind in dict.fromkeys(kind for kind, _ in ATTEMPTS):
            try:
                return _shapes(self._built(sizes, kind(), Numbers()))
            except _Failed as failed:
                failures.append(failed)
        raise BadInput(_untraced(ModelTrace(shapes={}, tied={}), failures).failure)

    def trace(self, sizes: Sizes) -> ModelTrace:
        """How the parameters are used; BadInput if the model cannot be built in any way."""
        # Tracing needs it, and with torch 2.6 its import fails halfway under a mode of ours.
        import torch._dynamo  # noqa: F401

        failures: list[_Failed] = []
        for at in range(self._first, len(ATTEMPTS)):
            kind, evaluate = ATTEMPTS[at]
            try:
                traced = self._attempt(sizes, kind(), evaluate=evaluate)
            except _Failed as failed:
                failures.append(failed)
            else:
                self._first = at
                return traced
        known = next((failed.shapes for failed in failures if failed.shapes is not None), None)
        return _untraced(known or self.shapes(sizes), failures)

    def watch(self, sizes: Sizes, watcher: Callable[[nn.Module, Callable[[], object]], T]) -> T:
        """What `watcher` returns of a model and a call that runs it; BadInput if nothing runs."""
        failure: Exception | None = None
        for kind, evaluate in ATTEMPTS[self._first :]:
            place = kind()
            try:
                model = self._built(sizes, place, Numbers()).train(not evaluate)
                with place.entered(), _eager():
                    args, kwargs = self._arguments(model, sizes, place)
                    return watcher(model, lambda m=model, a=args, k=kwargs: m(*a, **k))  # type: ignore[misc]
            except BadInput:
                raise
            except Exception as error:
                failure = error
        raise BadInput(f"the forward pass does not run: {failure}") from failure

    def _attempt(self, sizes: Sizes, place: Place, *, evaluate: bool) -> ModelTrace:
        """One pass; BadInput of the inputs themselves is the failure that is told."""
        numbers = Numbers()
        model = self._built(sizes, place, numbers)
        known = _shapes(model)
        if evaluate:
            model.eval()
        with place.entered():
            try:
                args, kwargs = self._arguments(model, sizes, place)
            except BadInput as error:
                return replace(known, failure=str(error))
            try:
                state = _run(model, args, kwargs, numbers)
            except Exception as error:
                call = described(kwargs or args)
                why = f"the forward pass cannot be traced at {_text(sizes)}, called with {call}"
                raise _Failed(f"{why}: {_reason(error, place)}", known) from error
        return _traced(known, state, place, evaluate=evaluate)

    def _built(self, sizes: Sizes, place: Place, numbers: Numbers) -> nn.Module:
        """The model, every tensor of it at `place`."""
        try:
            with place.entered(), NumberMode(numbers):
                model = self.build(**sizes)
        except TooLarge as error:
            raise _Failed(str(error), None) from error
        except BadInput:
            raise
        except Exception as error:
            why = f"the model cannot be built at {_text(sizes)}: {_reason(error, place)}"
            raise _Failed(why, None) from error
        if not isinstance(model, nn.Module):
            raise BadInput(f"build must return an nn.Module, not {type(model).__name__}")
        with place.entered():
            move_model(model, place, numbers)
        return model

    def _arguments(
        self, model: nn.Module, sizes: Sizes, place: Place
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named arguments of the forward pass, their tensors at `place`."""
        given = self.inputs(sizes) if callable(self.inputs) else self.inputs
        given = default_inputs(model) if given is None else given
        given = move_inputs(given, place)
        if isinstance(given, Mapping):
            return (), dict(given)
        return (tuple(given) if isinstance(given, tuple | list) else (given,)), {}


def _parameters(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Parameters by their first name, and the other names of each.

    The prefix that `torch.compile` gives to names is left out.
    """
    first_names: dict[int, str] = {}
    parameters: dict[str, Tensor] = {}
    tied: dict[str, tuple[str, ...]] = {}
    for full_name, tensor in model.named_parameters(remove_duplicate=False):
        name = full_name.replace("_orig_mod.", "")
        first = first_names.setdefault(id(tensor), name)
        if first == name:
            parameters[first] = tensor
        else:
            tied[first] = (*tied.get(first, ()), name)
    return parameters, tied


def _shapes(model: nn.Module) -> ModelTrace:
    parameters, tied = _parameters(model)
    return ModelTrace(
        shapes={name: tuple(tensor.shape) for name, tensor in parameters.items()},
        tied=tied,
        frozen=frozenset(name for name, t in parameters.items() if not t.requires_grad),
    )


def _run(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: Numbers
) -> TraceState:
    """Call the model, every operation traced."""
    parameters, _ = _parameters(model)
    state = TraceState(parameters.items(), tensors_in((args, kwargs)), numbers)
    with (
        _eager(),
        _modules_told(model, state),
        UseTracer(state),
        NumberMode(numbers, lambda: state.module),
    ):
        model(*args, **kwargs)
    return state


@contextmanager
def _modules_told(model: nn.Module, state: TraceState) -> Iterator[None]:
    """Tell `state` which module runs."""
    hooks = []
    for full_name, module in model.named_modules():
        name = full_name.replace("_orig_mod.", "").removesuffix("_orig_mod")

        def enter(module: nn.Module, args: Any, name: str = name) -> None:
            state.modules.append((name, module))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            state.modules.pop()

        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _eager() -> AbstractContextManager[Any]:
    """Run compiled modules as they are written: the tracer cannot look into compiled code."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _traced(known: ModelTrace, state: TraceState, place: Place, *, evaluate: bool) -> ModelTrace:
    uses = state.uses
    if isinstance(place, RealPlace):
        uses = {name: found or _of_sibling(name, state) for name, found in uses.items()}
    return replace(
        known,
        uses=uses,
        activation_products=tuple(state.activation_products),
        products=state.products,
        contracted_again=frozenset(state.contracted_again),
        factors=tuple(state.numbers.factors),
        way=f"{place.name}, in evaluation mode" if evaluate else "",
    )


def _of_sibling(name: str, state: TraceState) -> list[Use]:
    """The uses of a parameter like it: no input of the pass chose this expert, but another."""
    alike = (
        found
        for other, found in state.uses.items()
        if found and state.shapes[other] == state.shapes[name]
        if pattern_of(other) == pattern_of(name)
    )
    return next(alike, [])


def _untraced(known: ModelTrace, failures: list[_Failed]) -> ModelTrace:
    """Shapes alone, and why: the last attempt tells most, unless it was not made."""
    large = [str(failed) for failed in failures if isinstance(failed.__cause__, TooLarge)]
    others = [str(failed) for failed in failures if not isinstance(failed.__cause__, TooLarge)]
    return replace(known, failure="; ".join([*others[-1:], *large]), too_large=bool(large))


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items()) or "its size"


def _reason(error: Exception, place: Place) -> str:
    """Where a model's own code failed, and why, in a line."""
    # The user's frame is what helps: the last one outside of torch and of the modules here.
    skipped = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(skipped)]
    line = f"{outside[-1].filename}:{outside[-1].lineno}: " if outside else ""
    first_line = (str(error).strip().splitlines() or [""])[0]
    return f"{line}{type(error).__name__}: {first_line} ({place.name})"
