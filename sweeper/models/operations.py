"""Operations of a plain model that a scheme scales: attention, loss, tied readout, branches.

Models made of the blocks of `scaled.py` have such operations as modules. In any other model they
are calls of torch's own functions, wherever its author wrote them. `observe` runs the forward pass
once and finds the modules that make such calls. `apply_scales` gives these modules scale buffers,
and has their calls multiplied by them. No parameter changes its name, and no line of the model
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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

    def __init__(self, site: OpSite) -> None:
        """Buffers as the operation's kind has them, all 1."""
        self.site = site
        self.scales = self.BUFFERS[site.kind]
        super().__init__()

    def scale_op(self, name: str) -> ScaledOp:
        """The operation, by the name of the module that calls it."""
        return ScaledOp(name=name, kind=self.site.kind, geometry=self.site.geometry)


def observe(
    model: nn.Module,
    run: Callable[[], object],
    tied: Mapping[str, Mapping[str, Any]],
    branches: Sequence[str],
) -> list[OpSite]:
    """The operations that `run`, one forward pass of `model`, calls, in the order of the calls.

    `tied` has the geometry of embeddings that are also the readout, by name, and `branches` are
    patterns of the names of modules that are residual branches. What a model's own `ScaledModule`s
    do is theirs. An attention with a scale of its own, other than head size^-1/2, keeps it.
    """
    blocks = [module.scale_op("") for module in model.modules() if isinstance(module, ScaledModule)]
    own = {op.kind for op in blocks if op is not None}
    weights = {id(p): name for name, p in model.named_parameters() if name in tied}
    observer = _Observer(weights, tied)
    if tied or not own >= {"attention", "loss"}:
        with _module_stack(model, observer.stack), observer, suppress(Exception):
            run()  # what was seen before it failed counts
    sites = [site for site in observer.sites.values() if site.kind not in own]
    return sites + ([] if "residual" in own else _branch_sites(model, branches))


def _branch_sites(model: nn.Module, patterns: Sequence[str]) -> list[OpSite]:
    """A site for every module whose name matches, numbered in the model's order.

    Of modules within each other the outermost is the branch.
    """
    names: list[str] = []
    for name, _ in model.named_modules():
        within = any(name.startswith(f"{outer}.") for outer in names)
        if not within and any(fnmatchcase(name, pattern) for pattern in patterns):
            names.append(name)
    return [
        OpSite(
            module=name,
            kind="residual",
            geometry={"branch": index, "branches": len(names), "base_branches": len(names)},
        )
        for index, name in enumerate(names, 1)
    ]


@contextmanager
def _module_stack(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the names of the modules that are running in `stack`, the innermost last."""
    hooks = []
    for name, module in model.named_modules():
        # Bound now: a closure over the loop's name would see the last one.
        def enter(_m: nn.Module, _args: Any, name: str = name) -> None:
            stack.append(name)

        def leave(_m: nn.Module, _args: Any, _out: Any) -> None:
            stack.pop()

        hooks += [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Observer(TorchFunctionMode):
    """Records the calls of attention, cross entropy and tied readouts, by the running module."""

    def __init__(self, weights: Mapping[int, str], tied: Mapping[str, Any]) -> None:
        super().__init__()
        self.weights, self.tied = weights, tied
        self.stack: list[str] = []
        self.sites: dict[tuple[str, str], OpSite] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record, and run as it is."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self._attention(*args, **kwargs)
        elif func is F.cross_entropy:
            logits = args[0] if args else kwargs["input"]
            self._add("loss", {"classes": logits.shape[1 if logits.dim() > 1 else 0]})
        elif func is F.linear and (name := self.weights.get(id(_weight(args, kwargs)))):
            self._add("tied_readout", self.tied[name], name)
        return func(*args, **kwargs)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> None:
        head_size = query.shape[-1]
        if not _is_usual(scale, head_size):
            return
        # A mask hides what is in it: of a decoder it is the causal one.
        causal = bool(is_causal) or attn_mask is not None
        geometry = {"head_size": head_size, "seq_len": key.shape[-2], "causal": causal}
        self._add("attention", geometry)

    def _add(self, kind: str, geometry: Mapping[str, Any], parameter: str = "") -> None:
        module = self.stack[-1] if self.stack else ""
        site = OpSite(module=module, kind=kind, geometry=geometry, parameter=parameter)
        self.sites.setdefault((module, kind), site)


def _is_usual(scale: float | None, head_size: int) -> bool:
    usual = head_size**-0.5
    return scale is None or abs(scale - usual) <= SCALE_TOLERANCE * usual


def _weight(args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    return args[1] if len(args) > 1 else kwargs.get("weight")


def apply_scales(model: nn.Module, sites: Sequence[OpSite]) -> None:
    """Give the modules of `sites` their scale buffers, and multiply their calls by them."""
    modules = dict(model.named_modules())
    by_module: dict[str, list[OpSite]] = {}
    for site in sites:
        by_module.setdefault(site.module, []).append(site)
    for name, here in by_module.items():
        _scale_module(model, modules[name], here)


def _scale_module(model: nn.Module, module: nn.Module, sites: Sequence[OpSite]) -> None:
    scales: dict[str, PlainScale] = {}
    for site in sites:
        scales[site.kind] = scale = PlainScale(site)
        module.add_module(_free_name(module, f"scaled_{site.kind}"), scale)
    if branch := scales.pop("residual", None):
        module.register_forward_hook(lambda _m, _args, out: _scaled_branch(out, branch))
    if scales:
        mode = _Scaling(scales, _parameter_of(model, scales.get("tied_readout")))
        # Of every module by itself, not once around the model: what activation checkpointing runs
        # again in the backward pass is scaled again too.
        module.forward = _under(mode, module.forward)


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


def _parameter_of(model: nn.Module, scale: PlainScale | None) -> Callable[[], object]:
    """What gives the tied parameter as it is at the time: training puts others in its place."""
    if scale is None:
        return lambda: None
    owner, _, name = scale.site.parameter.rpartition(".")
    module = model.get_submodule(owner)
    return lambda: getattr(module, name)


def _scaled_branch(out: Any, scale: PlainScale) -> Any:
    """The branch's output, the first of several, times its factor."""
    if isinstance(out, tuple):
        return (out[0] * scale.branch, *out[1:])
    return out * scale.branch


class _Scaling(TorchFunctionMode):
    """Multiplies the calls that one module makes by its scales."""

    def __init__(self, scales: Mapping[str, PlainScale], parameter: Callable[[], object]) -> None:
        super().__init__()
        self.scales, self.parameter = scales, parameter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, scaled where it is an operation of the module's."""
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention and "attention" in self.scales:
            return _attention(self.scales["attention"], args, kwargs)
        if func is F.cross_entropy and "loss" in self.scales:
            logits = args[0] if args else kwargs.pop("input")
            return func(logits * self.scales["loss"].logit, *args[1:], **kwargs)
        if func is F.linear and "tied_readout" in self.scales:
            out = func(*args, **kwargs)
            is_tied = _weight(args, kwargs) is self.parameter()
            return out * self.scales["tied_readout"].output if is_tied else out
        return func(*args, **kwargs)


def _attention(scale: PlainScale, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """Attention with the scheme's factor on q k^T in the place of head size^-1/2."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not _is_usual(given.get("scale"), given["query"].shape[-1]):
        return F.scaled_dot_product_attention(**given)
    query = given.pop("query") * scale.logit
    return F.scaled_dot_product_attention(query, **{**given, "scale": 1.0}) * scale.output
