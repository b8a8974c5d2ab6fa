"""Operations of a plain model that get scales: attention, loss, tied readout, branches.

Models made of the blocks of `scaled.py` have such operations as modules. In any other model they
are calls of torch's own functions, wherever its author wrote them. `observe` runs the forward pass
once and finds the modules that make such calls. `apply_scales` gives these modules scale buffers,
and has their calls multiplied by them. No parameter changes its name, and no line of the model
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sweeper.errors import ConfigError
from sweeper.models.scaled import ScaledModule
from sweeper.scaling.spec import ScaledOp

SCALE_TOLERANCE = 1e-6
"""A scale given to attention counts as head size^-1/2 within this relative distance."""


@dataclass(frozen=True, kw_only=True)
class OpSite:
    """A module that calls an operation itself: `module` is its name, `kind` a `ScaledOp`'s.

    `geometry` is the operation's; `parameter` the tied parameter that a readout multiplies with.
    """

    module: str
    kind: str
    geometry: Mapping[str, Any]
    parameter: str = ""


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
        self.site, self.parameter = site, parameter
        self.scales = self.BUFFERS[site.kind]
        super().__init__()

    def forward(self, x: Any) -> Any:
        """`x`: a module that calls its members one after the other, as Sequential, calls this."""
        return x

    def scale_op(self, name: str) -> ScaledOp:
        """The operation, by the name of the module that calls it."""
        return ScaledOp(name=name, kind=self.site.kind, geometry=self.site.geometry)


def observe(
    model: nn.Module,
    run: Callable[[], object],
    tied: Mapping[str, Mapping[str, Any]],
    branches: Sequence[str],
    base_branches: int = 0,
) -> list[OpSite]:
    """The operations that `run`, one forward pass of `model`, calls, in the order of the calls.

    `tied` has the geometry of embeddings that are also the readout, by name, and `branches` are
    patterns of the names of modules that are residual branches, of which the base model has
    `base_branches` (0: as many). What a model's own `ScaledModule`s
    do is theirs. An attention with a scale of its own, other than head size^-1/2, keeps it.
    ConfigError for a branch that is never called, or whose output is no tensor.
    """
    blocks = [module.scale_op("") for module in model.modules() if isinstance(module, ScaledModule)]
    own = {op.kind for op in blocks if op is not None}
    weights = {id(p): name for name, p in model.named_parameters() if name in tied}
    observer = _Observer(weights, tied)
    if tied or branches or not own >= {"attention", "loss"}:
        with _module_stack(model, observer), observer:
            run()
    sites = [site for site in observer.sites if site.kind not in own]
    if "residual" in own:
        return sites
    names = branch_names(model, branches)
    _check_branches(names, observer.outputs)
    return sites + _branch_sites(names, base_branches)


def check_branch_patterns(model: nn.Module, patterns: Sequence[str]) -> None:
    """ConfigError for a pattern all of whose modules lie within a branch of another pattern."""
    names = branch_names(model, patterns)
    for pattern in patterns:
        if any(fnmatchcase(name, pattern) for name in names):
            continue
        for name, _ in model.named_modules():
            outer = next((one for one in names if name.startswith(f"{one}.")), None)
            if outer and fnmatchcase(name, pattern):
                allowed = f"a branch beside the others: {name} lies within {outer}"
                raise ConfigError("model.branches", pattern, allowed)


def branch_names(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Names of the modules that match, in the model's order; the outermost of those that nest."""
    names: list[str] = []
    for name, _ in model.named_modules():
        within = any(name.startswith(f"{outer}.") for outer in names)
        # The whole model, whose name is "", is no branch of itself.
        if name and not within and any(fnmatchcase(name, pattern) for pattern in patterns):
            names.append(name)
    return names


def _check_branches(names: Sequence[str], outputs: Mapping[str, str]) -> None:
    """ConfigError for a branch that is not among the `outputs`, or whose output is no tensor."""
    for name in names:
        allowed = "a module whose output is the tensor that is added to the residual stream"
        if name not in outputs:
            inside = [called for called in outputs if called.startswith(f"{name}.")]
            outermost = sorted(inside, key=lambda called: called.count("."))[:3]
            hint = f", such as {', '.join(outermost)}" if inside else ""
            raise ConfigError("model.branches", name, f"the model never calls it; {allowed}{hint}")
        if outputs[name] != "Tensor":
            raise ConfigError("model.branches", name, f"it returns a {outputs[name]}; {allowed}")


def _branch_sites(names: Sequence[str], base_branches: int) -> list[OpSite]:
    counts = {"branches": len(names), "base_branches": base_branches or len(names)}
    return [
        OpSite(module=name, kind="residual", geometry={"branch": index, **counts})
        for index, name in enumerate(names, 1)
    ]


@contextmanager
def _module_stack(model: nn.Module, observer: _Observer) -> Iterator[None]:
    """Tell `observer` which modules run, and what kind of thing they return."""
    hooks = []
    for name, module in model.named_modules():
        # Bound now: a closure over the loop's name would see the last one.
        def enter(_m: nn.Module, _args: Any, name: str = name) -> None:
            observer.stack.append(name)

        def leave(_m: nn.Module, _args: Any, out: Any) -> None:
            observer.outputs[observer.stack.pop()] = _output_type(out)

        hooks += [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _output_type(out: Any) -> str:
    """The type of an output; "Tensor" also of a tuple that begins with one."""
    first = out[0] if isinstance(out, tuple) and out else out
    return "Tensor" if isinstance(first, Tensor) else type(out).__name__


class _Observer(TorchFunctionMode):
    """Records the calls of attention, cross entropy and tied readouts, by the running module."""

    def __init__(self, weights: Mapping[int, str], tied: Mapping[str, Any]) -> None:
        super().__init__()
        self.weights, self.tied = weights, tied
        self.stack: list[str] = []
        self.outputs: dict[str, str] = {}
        """By the names of the modules that were called, what they returned."""
        self.sites: list[OpSite] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record, and run as it is."""
        kwargs = kwargs or {}
        if func is F.linear and (name := self.weights.get(id(_weight(args, kwargs)))):
            self._add("tied_readout", self.tied[name], name)
        elif seen := _operation(func, args, kwargs):
            self._add(*seen)
        return func(*args, **kwargs)

    def _add(self, kind: str, geometry: Mapping[str, Any], parameter: str = "") -> None:
        module = self.stack[-1] if self.stack else ""
        site = OpSite(module=module, kind=kind, geometry=geometry, parameter=parameter)
        if site not in self.sites:
            self.sites.append(site)


def _operation(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """The kind and the geometry of a call of attention or of the loss; None of any other."""
    if func is F.scaled_dot_product_attention:
        given = _named(args, kwargs)
        head_size, length = given["query"].shape[-1], given["key"].shape[-2]
        # A mask hides what is in it: of a decoder it is the causal one.
        causal = bool(given.get("is_causal")) or given.get("attn_mask") is not None
        geometry = {"head_size": head_size, "seq_len": length, "causal": causal}
        return ("attention", geometry) if _is_usual(given.get("scale"), head_size) else None
    if func is F.cross_entropy:
        logits = args[0] if args else kwargs["input"]
        return "loss", {"classes": logits.shape[1 if logits.dim() > 1 else 0]}
    return None


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of attention by name."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _is_usual(scale: float | None, head_size: int) -> bool:
    usual = head_size**-0.5
    return scale is None or abs(scale - usual) <= SCALE_TOLERANCE * usual


def _weight(args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    return args[1] if len(args) > 1 else kwargs.get("weight")


def apply_scales(model: nn.Module, sites: Sequence[OpSite]) -> None:
    """Give the modules of `sites` their scale buffers, and multiply their calls by them."""
    modules, claim = dict(model.named_modules()), _Claim()
    by_module: dict[str, list[OpSite]] = {}
    for site in sites:
        by_module.setdefault(site.module, []).append(site)
    for name, here in by_module.items():
        _scale_module(model, modules[name], here, claim)


def _scale_module(
    model: nn.Module, module: nn.Module, sites: Sequence[OpSite], claim: _Claim
) -> None:
    calls: list[PlainScale] = []
    for site in sites:
        scale = PlainScale(site, _parameter_of(model, site))
        module.add_module(_free_name(module, f"scaled_{site.kind}"), scale)
        if site.kind == "residual":
            # Bound now, as in `_module_stack`.
            module.register_forward_hook(lambda _m, _args, out, s=scale: _scaled_branch(out, s))
        else:
            calls.append(scale)
    if calls:
        # Of every module by itself, not once around the model: what activation checkpointing runs
        # again in the backward pass is scaled again too.
        module.forward = _under(_Scaling(calls, claim), module.forward)


def _free_name(module: nn.Module, name: str) -> str:
    """`name`, with underscores behind it until the module has nothing of that name."""
    while hasattr(module, name):
        name += "_"
    return name


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
    module = model.get_submodule(owner)
    return lambda: getattr(module, name)


def _scaled_branch(out: Any, scale: PlainScale) -> Any:
    """The branch's output, the first of several, times its factor."""
    if isinstance(out, tuple):
        return (out[0] * scale.branch, *out[1:])
    return out * scale.branch


@dataclass
class _Claim:
    """Of modules within each other, the innermost scales a call: `taken` while it does."""

    taken: bool = False


class _Scaling(TorchFunctionMode):
    """Multiplies the calls that one module makes by its scales."""

    def __init__(self, scales: Sequence[PlainScale], claim: _Claim) -> None:
        super().__init__()
        self.scales, self.claim = scales, claim

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, scaled where it is an operation of the module's."""
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
        """The scale of this call; of several operations of its kind that of the most alike."""
        if func is F.linear:
            weight = _weight(args, kwargs)
            tied = (s for s in self.scales if s.site.kind == "tied_readout")
            return next((s for s in tied if s.parameter() is weight), None)
        if not (seen := _operation(func, args, kwargs)):
            return None
        kind, geometry = seen
        best, most = None, -1
        for scale in (s for s in self.scales if s.site.kind == kind):
            if (alike := _likeness(scale.site.geometry, geometry)) > most:
                best, most = scale, alike
        return best


def _likeness(seen: Mapping[str, Any], geometry: Mapping[str, Any]) -> int:
    """How much of a geometry was seen; the first of it, an attention's head size, weighs most."""
    weights = (4, 2, 1)
    equal = [seen[key] == value for key, value in geometry.items()]
    return sum(weight for weight, same in zip(weights, equal, strict=False) if same)


def _linear(scale: PlainScale, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """The logits of a tied readout, times the parameterization's factor."""
    return F.linear(*args, **kwargs) * scale.output


def _cross_entropy(scale: PlainScale, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """The loss of the logits times the parameterization's factor."""
    logits = args[0] if args else kwargs.pop("input")
    return F.cross_entropy(logits * scale.logit, *args[1:], **kwargs)


def _attention(scale: PlainScale, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """Attention with the parameterization's factor on q k^T in the place of head size^-1/2."""
    given = _named(args, kwargs)
    query = given.pop("query") * scale.logit
    return F.scaled_dot_product_attention(query, **{**given, "scale": 1.0}) * scale.output


_SCALED = {"attention": _attention, "loss": _cross_entropy, "tied_readout": _linear}
