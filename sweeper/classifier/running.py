"""What a model does while it runs: which module is called, and which functions it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Enter = Callable[[str, nn.Module], None]
Leave = Callable[[str, nn.Module, Sequence[Any], Mapping[str, Any], Any], None]
"""Gets a module's name, the module, its positional and named arguments, and its output."""


def uncompiled(name: str) -> str:
    """`name` without the prefix that `torch.compile` gives to the names within a model."""
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod")


@contextmanager
def hooked(
    modules: Iterable[tuple[str, nn.Module]], enter: Enter | None = None, leave: Leave | None = None
) -> Iterator[None]:
    """While entered, every call of the named `modules` is told to `enter` and `leave`."""
    hooks = []
    for name, module in modules:
        # Names are bound as defaults: a closure over the loop's name would see the last one.
        if enter is not None:
            hooks.append(
                module.register_forward_pre_hook(lambda called, _, name=name: enter(name, called))
            )
        if leave is not None:
            hooks.append(
                module.register_forward_hook(
                    lambda called, args, kwargs, out, name=name: leave(
                        name, called, args, kwargs, out
                    ),
                    with_kwargs=True,
                )
            )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class RunningModules:
    """The modules of a model that run now, each within the one before."""

    def __init__(self) -> None:
        self._stack: list[tuple[str, nn.Module]] = []

    @property
    def name(self) -> str:
        """The name of the innermost; "" for the whole model."""
        return self._stack[-1][0] if self._stack else ""

    @property
    def module(self) -> nn.Module:
        """The innermost; one without parameters where none runs."""
        return self._stack[-1][1] if self._stack else nn.Module()

    @contextmanager
    def of(self, model: nn.Module, leave: Leave | None = None) -> Iterator[None]:
        """While entered, this knows the modules of `model`, and tells `leave` what they return."""

        def pop(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            # First, so that `leave` sees the caller as what runs.
            self._stack.pop()
            if leave is not None:
                leave(name, module, args, kwargs, output)

        named = [(uncompiled(name), module) for name, module in model.named_modules()]
        with hooked(named, lambda name, module: self._stack.append((name, module)), pop):
            yield


class FunctionWatch(TorchFunctionMode):
    """While entered, has `note` see every call of a function of torch, which runs as it is.

    What a function calls itself is part of it, and is not seen: torch leaves the mode meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.running = RunningModules()

    def note(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """See a call of `func` and what it returned."""
        raise NotImplementedError

    def returned(
        self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """See what a module returned."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        result = func(*args, **named)
        self.note(func, args, named, result)
        return result

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """While entered, calls of `model` are seen, with the module that makes them."""
        with self.running.of(model, self.returned), self:
            yield


def first_tensor(output: Any) -> Tensor | None:
    """The output of a module if it is a tensor, or the first of several; else None."""
    first = output[0] if isinstance(output, tuple) and output else output
    return first if isinstance(first, Tensor) else None
