"""What a plain model does that a parameterization scales: seen in one forward pass, and scaled.

Models made of the blocks of `scaled.py` have such operations as modules. In any other model
attention, the loss, tied readouts and residual branches are calls of torch's own functions,
wherever the author wrote them. `observe` finds them. Where a call can be scaled without a change of
the model's code it is an `OpSite`; of attention written in other ways the size of the heads is
seen; of other operations, that a module seems to have one. `apply_scales` gives the modules that
make these calls scale buffers, and has the calls multiplied by them. No parameter changes its name,
and no line of the model changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sweeper.classifier.running import FunctionWatch, first_tensor, uncompiled
from sweeper.errors import ConfigError
from sweeper.models.scaled import ScaledModule
from sweeper.scaling.spec import ScaledOp, layer_of, with_layer

FUSED = F.scaled_dot_product_attention
WHOLE = F.multi_head_attention_forward
WHOLE_SIZES = ("embed_dim_to_check", "num_heads")
PRODUCTS: tuple[object, ...] = (
    torch.matmul,
    torch.bmm,
    torch.baddbmm,
    Tensor.matmul,
    Tensor.__matmul__,
    Tensor.bmm,
    Tensor.baddbmm,
)
SOFTMAXES: tuple[object, ...] = (F.softmax, torch.softmax, Tensor.softmax)
ADDITIONS: tuple[object, ...] = (
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
    *(Tensor.add_, Tensor.__iadd__),
)
TABLES = (nn.Embedding, nn.EmbeddingBag)
"""Their outputs are added to make the residual stream: words and positions."""
SCALE_TOLERANCE = 1e-6
"""A scale given to attention counts as head size^-1/2 within this relative distance."""
UNSCALED = {
    "attention": "attention in {} keeps the factor on q k^T of the model's own code. That is right "
    "where heads have one size at all widths; where they grow, divide by their size, not by its "
    "root. F.scaled_dot_product_attention without a scale would get the parameterization's factor",
    "residual": "{} seems to be a residual branch; the factors on branches are applied to "
    "those that are named alone: model.branches=[{}]",
    "gated_silu": "{} has a SiLU whose factors in the parameterization are not applied",
}


@dataclass(frozen=True, kw_only=True)
class OpSite:
    """A module that calls an operation itself: `module` is its name, `kind` a `ScaledOp`'s.

    `geometry` is the operation's; `parameter` the tied parameter that a readout multiplies with.
    """

    module: str
    kind: str
    geometry: Mapping[str, Any]
    parameter: str = ""


@dataclass(frozen=True)
class SeenAttention:
    """Attention with heads of `head_size`; `scale` is the factor of q k^T if it could be seen.

    `seq_len` is the number of positions that were attended to, 0 where that was not seen.
    """

    head_size: int
    scale: float | None = None
    seq_len: int = 0


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one forward pass showed.

    `attentions` are those that are no site's, in a model that declares none itself. `hints` are
    names of modules, with `*` for their layer, by the kind of operation that they seem to have.
    """

    sites: tuple[OpSite, ...] = ()
    attentions: frozenset[SeenAttention] = frozenset()
    hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def observe(
    model: nn.Module,
    run: Callable[[], object],
    tied: Mapping[str, Mapping[str, Any]],
    branches: Sequence[str],
    base_branches: int = 0,
) -> Observation:
    """What `run`, one forward pass of `model`, does; the sites are in the order of the calls.

    `tied` has the geometry of embeddings that are also the readout, by name, and `branches` are
    patterns of the names of modules that are residual branches, of which the base model has
    `base_branches` (0: as many). What a model's own `ScaledModule`s
    do is theirs. An attention with a scale of its own, other than head size^-1/2, keeps it.
    ConfigError for a branch that is never called, or whose output is no tensor.
    """
    blocks = [module.scale_op("") for module in model.modules() if isinstance(module, ScaledModule)]
    declared = {op.kind for op in blocks if op is not None}
    parameters = [(uncompiled(name), p) for name, p in model.named_parameters()]
    watch = OperationWatch({id(p): name for name, p in parameters if name in tied}, tied)
    with watch.watching(model):
        run()
    # What a model's own blocks do is scaled by them: a site would scale it twice.
    sites = [site for site in watch.sites if site.kind not in declared]
    if "residual" not in declared:
        names = branch_names(model, branches)
        _check_branches(names, watch.outputs)
        counts = {"branches": len(names), "base_branches": base_branches or len(names)}
        sites += [
            OpSite(module=name, kind="residual", geometry={"branch": index, **counts})
            for index, name in enumerate(names, 1)
        ]
    return Observation(
        sites=tuple(sites),
        attentions=frozenset() if "attention" in declared else frozenset(watch.unscaled),
        hints={kind: tuple(names) for kind, names in watch.hints.items()},
    )


def check_branch_patterns(model: nn.Module, patterns: Sequence[str]) -> None:
    """ConfigError for a pattern all of whose modules lie within a branch of another pattern."""
    names = branch_names(model, patterns)
    for pattern in patterns:
        if any(fnmatchcase(name, pattern) for name in names):
            continue
        for name, _ in model.named_modules():
            outer = next((branch for branch in names if name.startswith(f"{branch}.")), None)
            if outer and fnmatchcase(name, pattern):
                allowed = f"a branch beside the others: {name} lies within {outer}"
                raise ConfigError("branches", pattern, allowed)


def branch_names(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Names of the modules that match, in the model's order; the outermost of those that nest."""
    names: list[str] = []
    # `named_modules` gives a module before those within it: the outermost comes first.
    for name in (uncompiled(name) for name, _ in model.named_modules()):
        within = any(name.startswith(f"{outer}.") for outer in names)
        # The whole model, whose name is "", is no branch of itself.
        if name and not within and any(fnmatchcase(name, pattern) for pattern in patterns):
            names.append(name)
    return names


def _check_branches(names: Sequence[str], outputs: Mapping[str, str]) -> None:
    for name in names:
        allowed = "a module whose output is the tensor that is added to the residual stream"
        if name not in outputs:
            inside = [called for called in outputs if called.startswith(f"{name}.")]
            outermost = sorted(inside, key=lambda called: called.count("."))[:3]
            hint = f", such as {', '.join(outermost)}" if inside else ""
            raise ConfigError("branches", name, f"the model never calls it; {allowed}{hint}")
        if outputs[name] != "Tensor":
            raise ConfigError("branches", name, f"it returns a {outputs[name]}; {allowed}")


class OperationWatch(FunctionWatch):
    """Notes the operations of one model, by the modules that call them.

    `sites` are calls that can be scaled: of attention with the usual scale, of cross entropy, of
    readouts with the tied `weights`, names by identity. `unscaled` are the other attentions: with
    other scales, of `nn.MultiheadAttention`, and matrix products of two activations whose result,
    of that shape, is the next that a softmax is taken of. `hints` has "attention" of any kind,
    "gated_silu" where SiLU is called, and "residual" for modules of layers whose output is added to
    a tensor of the same shape.
    """

    def __init__(self, weights: Mapping[int, str], tied: Mapping[str, Any]) -> None:
        super().__init__()
        self.weights, self.tied = weights, tied
        self.sites: list[OpSite] = []
        self.unscaled: set[SeenAttention] = set()
        self.hints: dict[str, dict[str, None]] = {}
        self.outputs: dict[str, str] = {}
        """The type of what each module returned that was called, by its name."""
        self._made: dict[int, tuple[str, Tensor]] = {}
        self._product: tuple[tuple[int, ...], int] | None = None

    def note(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """See whether the call is an operation that a parameterization scales, or a part of one."""
        self._note_attention(func, args, kwargs, result)
        if func is F.linear and (name := self.weights.get(id(weight_argument(args, kwargs)))):
            self._add_site("tied_readout", self.tied[name], name)
        elif operation := scalable_operation(func, args, kwargs):
            self._add_site(*operation)
        elif func is F.silu:
            self._hint("gated_silu", self.running.name)
        elif func in ADDITIONS and len(args) > 1:
            self._note_sum(args[0], args[1])

    def returned(
        self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """Remember which module made a tensor."""
        first = first_tensor(output)
        # A tuple that begins with a tensor counts as that tensor.
        self.outputs[name] = type(output).__name__ if first is None else "Tensor"
        if first is not None and not isinstance(module, TABLES):
            # With the tensor, whose id would soon be another's if it were freed.
            self._made[id(first)] = (name, first)

    def _note_attention(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if func is FUSED:
            arguments = attention_arguments(args, kwargs)
            self._hint("attention", self.running.name)
            if scalable_operation(func, args, kwargs) is None:
                # A scale that is no number is not known.
                scale = arguments["scale"]
                number = float(scale) if isinstance(scale, int | float) else None
                head_size, length = arguments["query"].shape[-1], arguments["key"].shape[-2]
                self.unscaled.add(SeenAttention(head_size, number, length))
        elif func is WHOLE:
            # What `nn.MultiheadAttention` calls, sequence first: query, key, value, width, heads.
            names = ("query", "key", "value", *WHOLE_SIZES)
            by_name = {**dict(zip(names, args, strict=False)), **kwargs}
            width, heads = (by_name[name] for name in WHOLE_SIZES)
            size, length = width // heads, by_name["key"].shape[0]
            self._hint("attention", self.running.name)
            self.unscaled.add(SeenAttention(size, size**-0.5, length))
        # q k^T is any product of two activations until a softmax of the same shape follows it.
        elif func in PRODUCTS:
            tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)][-2:]
            weights = any(isinstance(x, nn.Parameter) for x in tensors)
            batched = isinstance(result, Tensor) and result.dim() > 2
            if batched and len(tensors) == 2 and not weights:
                # The sum of q k^T is over the last dimension of q, the size of a head.
                self._product = (tuple(result.shape), tensors[0].shape[-1])
        elif func in SOFTMAXES and isinstance(result, Tensor):
            if self._product is not None and self._product[0][-2:] == tuple(result.shape[-2:]):
                self._hint("attention", self.running.name)
                self.unscaled.add(SeenAttention(self._product[1], None, result.shape[-1]))
            self._product = None

    def _add_site(self, kind: str, geometry: Mapping[str, Any], parameter: str = "") -> None:
        module = self.running.name
        site = OpSite(module=module, kind=kind, geometry=geometry, parameter=parameter)
        # Calls of one module that are alike (a loop over heads) share one scale.
        if site not in self.sites:
            self.sites.append(site)

    def _note_sum(self, *terms: object) -> None:
        both = [x for x in terms if isinstance(x, Tensor) and not isinstance(x, nn.Parameter)]
        if len(both) < 2 or both[0].shape != both[1].shape:
            return
        makers = [name for x in both if (name := self._made.get(id(x), ("",))[0])]
        # What a block gets, the stream, was made outside of the module that adds to it.
        within = f"{self.running.name}." if self.running.name else ""
        branches = [name for name in makers if name.startswith(within)]
        if branches and layer_of(branches[-1]) is not None:
            self._hint("residual", branches[-1])

    def _hint(self, kind: str, name: str) -> None:
        self.hints.setdefault(kind, {})[with_layer(name, "*")] = None


def scalable_operation(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """Kind and geometry of a call of attention at its usual scale, or of the loss; or None."""
    if func is FUSED:
        arguments = attention_arguments(args, kwargs)
        head_size, length = arguments["query"].shape[-1], arguments["key"].shape[-2]
        # A mask hides what is in it: of a decoder it is the causal one.
        causal = bool(arguments.get("is_causal")) or arguments.get("attn_mask") is not None
        geometry = {"head_size": head_size, "seq_len": length, "causal": causal}
        scale = arguments.get("scale")
        return ("attention", geometry) if scale is None or _is_usual(scale, head_size) else None
    if func is F.cross_entropy:
        logits = args[0] if args else kwargs["input"]
        return "loss", {"classes": logits.shape[1 if logits.dim() > 1 else 0]}
    return None


def attention_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of torch's fused attention by name."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def weight_argument(args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """The weight that a call of `F.linear` multiplies with."""
    return args[1] if len(args) > 1 else kwargs.get("weight")


def _is_usual(scale: float | None, head_size: int) -> bool:
    # Within rounding: authors write 1 / math.sqrt(d), d ** -0.5, or a float32 of either.
    usual = head_size**-0.5
    return scale is not None and abs(scale - usual) <= SCALE_TOLERANCE * usual


def unscaled_notes(kinds: Iterable[str], hints: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """For every kind of operation that is not scaled and that `hints` has modules of, a note."""
    for kind in kinds:
        if names := hints.get(kind):
            patterns = ",".join(f'"{name}"' for name in names)
            yield UNSCALED[kind].format(", ".join(name or "the model" for name in names), patterns)


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
