"""Scale the operations of a plain model: attention, loss, tied readout, residual branches.

Models made of the blocks of `scaled.py` have such operations as modules. In any other model they
are calls of torch's own functions, at the sites that `observe.py` finds. `apply_scales` gives the
modules that make these calls scale buffers, and has the calls multiplied by them. No parameter
changes its name, and no line of the model changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sweeper.classifier.observe import (
    OpSite,
    attention_arguments,
    scalable_operation,
    weight_argument,
)
from sweeper.classifier.running import uncompiled
from sweeper.models.scaled import ScaledModule
from sweeper.scaling.spec import ScaledOp


class PlainScale(ScaledModule):
    """The scale buffers of one operation of a plain model."""

    logit: Tensor
    output: Tensor
    branch: Tensor
    BUFFERS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "attention": ("logit", "output"),
        "loss": ("logit",),
        "residual": ("branch",),
        "tied_readout": ("output",),
    }

    def __init__(self, site: OpSite, parameter: Callable[[], object] = lambda: None) -> None:
        """Buffers as the operation's kind has them, all 1; `parameter` gives the tied one."""
        # Before `super().__init__`, which makes a buffer of each of `scales`; neither is a module.
        self.site, self.parameter = site, parameter
        self.scales = self.BUFFERS[site.kind]
        super().__init__()

    def forward(self, x: Any) -> Any:
        """`x`: a module that calls its members one after the other, as Sequential, calls this."""
        return x

    def scale_op(self, name: str) -> ScaledOp:
        """The operation, by the name of the module that calls it."""
        return ScaledOp(name=name, kind=self.site.kind, geometry=self.site.geometry)


def apply_scales(model: nn.Module, sites: Sequence[OpSite]) -> None:
    """Give the modules of `sites` their scale buffers, and multiply their calls by them."""
    modules = {uncompiled(name): module for name, module in model.named_modules()}
    claim = _Claim()
    by_module: dict[str, list[OpSite]] = {}
    for site in sites:
        by_module.setdefault(site.module, []).append(site)
    for name, here in by_module.items():
        module, calls = modules[name], list[PlainScale]()
        for site in here:
            scale = PlainScale(site, _parameter_of(model, site))
            free_name = f"scaled_{site.kind}"
            # A plain model may have a member of that name.
            while hasattr(module, free_name):
                free_name += "_"
            module.add_module(free_name, scale)
            if site.kind == "residual":
                # Bound now: a closure over the loop's `scale` would see the last one.
                module.register_forward_hook(
                    lambda _module, _args, out, scale=scale: _scaled_branch(out, scale)
                )
            else:
                calls.append(scale)
        if calls:
            # Of every module by itself, not once around the model: what activation checkpointing
            # runs again in the backward pass is scaled again too.
            module.forward = _under(_Scaling(calls, claim), module.forward)


def _under(mode: _Scaling, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def scaled(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return forward(*args, **kwargs)

    return scaled


def _parameter_of(model: nn.Module, site: OpSite) -> Callable[[], object]:
    """What gives the tied parameter as it is at the time: training puts others in its place."""
    if not site.parameter:
        return lambda: None
    owner, _, name = site.parameter.rpartition(".")
    module = next(m for full, m in model.named_modules() if uncompiled(full) == owner)
    return lambda: getattr(module, name)


def _scaled_branch(out: Any, scale: PlainScale) -> Any:
    if isinstance(out, tuple):
        return (out[0] * scale.branch, *out[1:])
    return out * scale.branch


@dataclass
class _Claim:
    """Whether a call is being scaled (`taken`): of modules within each other the innermost does."""

    taken: bool = False


class _Scaling(TorchFunctionMode):
    def __init__(self, scales: Sequence[PlainScale], claim: _Claim) -> None:
        super().__init__()
        self.scales, self.claim = scales, claim

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        scale = None if self.claim.taken else self._scale(func, args, kwargs)
        if scale is None:
            return func(*args, **kwargs)
        self.claim.taken = True
        try:
            return _SCALED[scale.site.kind](scale, args, kwargs)
        finally:
            self.claim.taken = False

    def _scale(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PlainScale | None:
        # By identity: a tied head and another of the same shape are told apart by nothing else.
        if func is F.linear:
            weight = weight_argument(args, kwargs)
            tied = (s for s in self.scales if s.site.kind == "tied_readout")
            return next((s for s in tied if s.parameter() is weight), None)
        if not (operation := scalable_operation(func, args, kwargs)):
            return None
        # A module may attend twice, to itself and to an encoder: the call most like what was seen
        # counts.
        kind, geometry = operation
        best, most = None, -1
        for scale in (s for s in self.scales if s.site.kind == kind):
            if (alike := _likeness(scale.site.geometry, geometry)) > most:
                best, most = scale, alike
        return best


def _likeness(seen: Mapping[str, Any], geometry: Mapping[str, Any]) -> int:
    """How much of an operation's geometry a call has.

    Powers of two let an attention's head size decide before its length, and that before the mask.
    """
    weights = (4, 2, 1)
    equal = [seen[key] == value for key, value in geometry.items()]
    return sum(weight for weight, same in zip(weights, equal, strict=False) if same)


def _linear(scale: PlainScale, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    return F.linear(*args, **kwargs) * scale.output


def _cross_entropy(scale: PlainScale, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    logits = args[0] if args else kwargs.pop("input")
    return F.cross_entropy(logits * scale.logit, *args[1:], **kwargs)


def _attention(scale: PlainScale, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    arguments = attention_arguments(args, kwargs)
    # On the query: the factor is a tensor, another for each trial, and `scale` takes a number.
    query = arguments.pop("query") * scale.logit
    return F.scaled_dot_product_attention(query, **{**arguments, "scale": 1.0}) * scale.output


_SCALED = {"attention": _attention, "loss": _cross_entropy, "tied_readout": _linear}
