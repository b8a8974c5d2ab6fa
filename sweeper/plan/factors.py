"""The factors of a plan's forward pass, one by one: attention, residual branches, loss, tied heads.

`needs` says in words what differs from a plain model. Here every factor is a record with its
value, also where it is the usual one, for what writes the plan into another trainer's words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING, Any

from sweeper.scaling.spec import Parameterization, ParamSpec, Role, ScaledOp, with_layer
from sweeper.trial import PlainHps

if TYPE_CHECKING:
    from sweeper.classifier.attention import SeenAttention

# What init, learning rate and eps cannot absorb, in words for the model's author.


DECAY_NEED = (
    "weight decay: the plan's is the share of a weight that a step removes; param_groups hold it "
    "over lr for decoupled decay (torch.optim.AdamW, SGD without momentum); the L2 decay of "
    "torch.optim.Adam is something else"
)
EPS_NEED = (
    "eps: absorbing a multiplier divides eps by it, so groups differ in eps: the optimizer must "
    "take eps from its groups (torch.optim.AdamW does), or do without one (atan2)"
)
UNIT_SCALED_EPS_NEED = (
    "eps: the plan's eps was chosen for unit-scaled gradients; those of a plain model are smaller: "
    "take an optimizer without eps (atan2) or an eps far below the root mean square of any gradient"
)

DEPTH_NEED = (
    "depth: no size of the model is its depth, so the learning rates of residual branches lack the "
    "parameterization's 1/sqrt(depth): name the depth among the sizes"
)


def needs(
    scaled_ops: Sequence[ScaledOp],
    operations: Mapping[str, Mapping[str, float]],
    multipliers: Mapping[str, tuple[float, float]],
    *,
    unseen: Sequence[str] = (),
    unit_scaled: bool,
    decay: bool,
) -> list[str]:
    """Every factor that a plain model must apply itself, layers that are alike in one line.

    `multipliers` are those of every parameter, forward and backward. `unseen` are lines on
    operations that are not among `scaled_ops`.
    """
    factors = [need for op in scaled_ops for need in _op_needs(op, operations[op.name])]
    for name, (forward, backward) in multipliers.items():
        if not isclose(forward, backward):
            factors.append((name, "multiply the gradient to its input by {}", backward / forward))
    lines = [*_merge_layers(factors), *unseen]
    if unit_scaled:
        lines.append(UNIT_SCALED_EPS_NEED)
    elif any(forward != 1 for forward, _ in multipliers.values()):
        lines.append(EPS_NEED)
    return [*lines, DECAY_NEED] if decay else lines


def tied_weight(specs: Sequence[ParamSpec], op: ScaledOp) -> ParamSpec | None:
    """The parameter that the tied readout `op` reads: by its own name, or by its module's."""
    for spec in specs:
        if op.geometry.get("parameter") == spec.name:
            return spec
        names = (spec.name, *spec.tied)
        owners = (name.rpartition(".")[0] for name in names)
        if author_name(op) in (*names, *owners):
            return spec
    return None


def author_name(op: ScaledOp) -> str:
    """The operation's name in the author's own model: scales that were put into it are no part."""
    owner, _, last = op.name.rpartition(".")
    return owner if last.rstrip("_") == f"scaled_{op.kind}" and owner else op.name


FACTOR_NEEDS = {
    ("attention", "logit"): "multiply q k^T by {} where head size^-1/2 is usual",
    ("attention", "output"): "multiply what attention makes of the values, before its output "
    "projection, by {}",
    ("gated_silu", "alpha"): "multiply the sigmoid's argument by {}",
    ("residual", "branch"): "multiply the branch's output by {}",
    ("residual", "skip"): "multiply the skipped stream by {}",
    ("loss", "logit"): "multiply the logits by {}",
    ("tied_readout", "output"): "multiply the logits by {}: the head is tied to the embedding",
}
"""What applying a factor means, by the operation's kind and the factor's name."""

Need = tuple[str, str, float]
"""The name of an operation or parameter, what to do with a gap for the value, and the value."""


def _op_needs(op: ScaledOp, factors: Mapping[str, float]) -> Iterator[Need]:
    """Every factor of an operation that is not the usual one."""
    for key, value in factors.items():
        usual = 1.0
        if (op.kind, key) == ("attention", "logit"):
            usual = float(op.geometry["head_size"]) ** -0.5
        if not isclose(value, usual):
            yield author_name(op), _text(op, key), value


def _text(op: ScaledOp, key: str) -> str:
    """What to do with a factor; of a tied readout with the name of its weight."""
    text = FACTOR_NEEDS.get((op.kind, key), f"multiply its {key} by {{}}")
    if not (parameter := op.geometry.get("parameter")):
        return text
    weight = with_layer(parameter, "*")
    if op.geometry["lookup"]:
        return f"{text} {weight}"
    return (
        f"multiply the product with {weight} that sums over the width by {{}}: it is used both ways"
    )


def _merge_layers(needs: Iterable[Need]) -> list[str]:
    """`name: what to do`, layers as one line with `*` for their number."""
    groups: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for name, text, value in needs:
        groups.setdefault((with_layer(name, "*"), text), []).append((name, value))
    lines = []
    for (pattern, text), members in groups.items():
        names, values = {name for name, _ in members}, [value for _, value in members]
        words, ends = f"{min(values):.6g}", [f"{end(values):.4g}" for end in (min, max)]
        by = "layer" if len(names) > 1 else "call"
        if ends[0] != ends[1]:
            words = f"{' to '.join(ends)} (by {by}: see `operations`)"
        name = pattern if len(names) > 1 else members[0][0]
        lines.append(f"{name}: {text.format(words)}")
    return lines


# A parameterization's factors for the operations of a plain model, which cannot be seen one by one.


ATTENTION_NAME = re.compile(r"(?:^|[._])att", re.IGNORECASE)
"""In the name of a parameter: blocks.0.attn.qkv, self_attention.out."""
USUAL_HEAD = 64
"""A head size to read the rule of attention off, beside its double."""
USUAL_LENGTH = 128
MAX_BRANCHES = 12
"""Factors of branches that are listed one by one; of more, the first and the last."""


def may_attend(specs: Sequence[ParamSpec], attentions: Collection[SeenAttention]) -> bool:
    """Whether attention ran, or the name of a parameter looks like attention's."""
    return bool(attentions) or any(ATTENTION_NAME.search(spec.name) for spec in specs)


def unseen_needs(
    parameterization: Parameterization,
    hps: PlainHps,
    specs: Sequence[ParamSpec],
    depths: tuple[int, int],
    attentions: Collection[SeenAttention] = (),
    seen: Collection[str] = (),
) -> list[str]:
    """What the author of a plain model must do by hand, with numbers; nothing where all is usual.

    Operations of the kinds `seen` are left out: they are known one by one. `attentions` are those
    that were seen while the model ran; without any, the rule is given as a formula where a name
    looks like attention's. The number of
    branches is that of the deepest parameter on one; where there is none, as where layers are
    shared, that of `depths`, the target's and the base's.
    """
    classes = next((spec.fan_out for spec in specs if spec.role is Role.READOUT), 1)
    told = may_attend(specs, attentions) and "attention" not in seen
    lines = list(_attention(parameterization, hps, attentions)) if told else []
    branch = next((spec for spec in specs if spec.residual), None)
    if branch is not None and "residual" not in seen:
        lines += _branches(parameterization, hps, branch.depth, branch.base_depth)
    elif "residual" not in seen and depths[0] != depths[1]:
        lines += _branches(
            parameterization, hps, *depths, where=", if the model has any (shared layers)"
        )
    gate = parameterization_factors(parameterization, hps, "gated_silu")
    words = {
        "alpha": "multiply the sigmoid's argument by {}",
        "output": "multiply its output by {}",
    }
    if done := _phrases(words, gate):
        lines.append(f"gated SiLU, where the model has one: {done}")
    words = {"logit": "multiply the logits by {}"}
    done = _phrases(words, parameterization_factors(parameterization, hps, "loss", classes=classes))
    if done and "loss" not in seen:
        lines.append(f"loss: {done}")
    return lines


def parameterization_factors(
    parameterization: Parameterization, hps: PlainHps, kind: str, **geometry: object
) -> dict[str, float]:
    """The parameterization's factors of an operation; none where it has no rule for the kind."""
    try:
        return parameterization.scale_op(ScaledOp(name=kind, kind=kind, geometry=geometry), hps)
    except ValueError:
        return {}


def _phrases(words: dict[str, str], factors: dict[str, float]) -> str:
    """What to do with every factor that is not 1."""
    told = [
        words.get(key, f"multiply its {key} by {{}}").format(f"{value:.6g}")
        for key, value in factors.items()
        if not isclose(value, 1.0)
    ]
    return " and ".join(told)


def _attention(
    parameterization: Parameterization, hps: PlainHps, attentions: Collection[SeenAttention]
) -> Iterator[str]:
    """Of q k^T: a number where the heads have one size, else a formula; and of the output."""

    def factors(head_size: int, length: int = USUAL_LENGTH) -> dict[str, float]:
        geometry = {"head_size": head_size, "seq_len": length, "causal": True}
        return parameterization_factors(parameterization, hps, "attention", **geometry)

    if not (found := factors(USUAL_HEAD)):
        return
    rule = _rule(factors(USUAL_HEAD)["logit"], factors(2 * USUAL_HEAD)["logit"])
    sizes = sorted({seen.head_size for seen in attentions})
    logits = {size: factors(size)["logit"] for size in sizes}
    usual = all(isclose(value, size**-0.5) for size, value in logits.items())
    own = [seen.scale and isclose(seen.scale, logits[seen.head_size]) for seen in attentions]
    if (usual and sizes) or (own and all(own)) or (not sizes and rule == "1/sqrt(d)"):
        pass
    elif len(sizes) == 1:
        (size,) = sizes
        by = f"multiply q k^T by {logits[size]:.3g}"
        yield f"attention: {rule} instead of 1/sqrt(d): at head size {size} {by}"
    else:
        where = "attention" if sizes else "attention, as names tell"
        yield f"{where}: multiply q k^T by {rule} instead of 1/sqrt(d), d being the size of a head"
    if "output" in found:
        yield from _attention_output(parameterization, hps, attentions)


def _rule(logit: float, doubled: float) -> str:
    """The law behind the factors of q k^T at `USUAL_HEAD` and its double."""
    for words, power in (("1/d", 1.0), ("1/sqrt(d)", 0.5)):
        if isclose(logit / doubled, 2**power, rel_tol=1e-6):
            alpha = logit * USUAL_HEAD**power
            return words if isclose(alpha, 1.0) else words.replace("1", f"{alpha:.6g}", 1)
    return f"the parameterization's factor, {logit:.3g} at d = {USUAL_HEAD}"


def _attention_output(
    parameterization: Parameterization, hps: PlainHps, attentions: Collection[SeenAttention]
) -> Iterator[str]:
    """The factor on attention's output, which depends on the sequence's length."""
    seen = {(one.head_size, one.seq_len) for one in attentions if one.seq_len}
    size, length = next(iter(seen), (USUAL_HEAD, USUAL_LENGTH))
    geometry = {"head_size": size, "seq_len": length, "causal": True}
    value = parameterization_factors(parameterization, hps, "attention", **geometry)["output"]
    heads = f"head size {size}, {length} positions and a causal mask"
    others = "" if len(seen) == 1 else "; the parameterization's scale_op gives it for others"
    if not isclose(value, 1.0):
        yield f"attention: multiply its output by {value:.4g}, which is for {heads}{others}"


def _branches(
    parameterization: Parameterization, hps: PlainHps, depth: int, base_depth: int, where: str = ""
) -> Iterator[str]:
    """Of residual branches, two a layer: their outputs' factors, and the skipped stream's."""
    count = 2 * depth
    geometry = {"branches": count, "base_branches": 2 * base_depth}
    found = [
        parameterization_factors(parameterization, hps, "residual", branch=branch, **geometry)
        for branch in range(1, count + 1)
    ]
    words = {"branch": "each branch's output", "skip": "the skipped stream"}
    told = []
    for key, what in words.items():
        values = [factors[key] for factors in found if key in factors]
        if any(not isclose(value, 1.0) for value in values):
            told.append(f"multiply {what} by {_listed(values)}")
    if told:
        yield f"residual branches{where}: {' and '.join(told)}"


def _listed(values: Sequence[float]) -> str:
    """One number where all are equal, else those of attention's and FFN's branches in turn."""
    if all(isclose(value, values[0]) for value in values):
        return f"{values[0]:.6g}"
    numbers = [f"{value:.4g}" for value in values]
    if len(numbers) > MAX_BRANCHES:
        numbers = [*numbers[:4], "...", *numbers[-2:]]
    return f"{', '.join(numbers)} (attention's and FFN's in turn, of {len(values)})"


@dataclass(frozen=True, kw_only=True)
class PlannedFactor:
    """A factor of one operation: `value` by the plan, where the model by itself has `usual`.

    `kind` and `factor` are those of a `ScaledOp`: an attention's "logit" multiplies q k^T and is
    absolute, its `usual` being head size^-1/2. `head_size` is an attention's, else 0. `branch` is
    the number of a residual branch, odd for attention's, else 0. `where` names the operation, or
    says that it was not seen.
    """

    kind: str
    factor: str
    where: str
    value: float
    usual: float = 1.0
    head_size: int = 0
    branch: int = 0


def planned_factors(
    parameterization: Parameterization,
    hps: PlainHps,
    specs: Sequence[ParamSpec],
    scaled_ops: Sequence[ScaledOp],
    depths: tuple[int, int],
    *,
    plain: bool,
    attentions: Collection[SeenAttention] = (),
) -> tuple[PlannedFactor, ...]:
    """Every factor of the operations `scaled_ops`, and of those that a `plain` model may have too.

    `depths` are the target's and the base's. `attentions` are those that ran, where the model's
    own are not among `scaled_ops`. A kind of which nothing was seen is given as the
    parameterization has it, attention only where a parameter's name looks like it.
    """
    found = [
        one for op in scaled_ops for one in _of_operation(op, parameterization.scale_op(op, hps))
    ]
    if plain:
        seen = {op.kind for op in scaled_ops}
        if "attention" not in seen and may_attend(specs, attentions):
            found += _attentions(parameterization, hps, attentions)
        if "residual" not in seen:
            found += _factors_branches(parameterization, hps, specs, depths)
        if "gated_silu" not in seen:
            found += _unseen(parameterization, hps, "gated_silu")
        if "loss" not in seen:
            classes = next((spec.fan_out for spec in specs if spec.role is Role.READOUT), 1)
            found += _unseen(parameterization, hps, "loss", classes=classes)
    return tuple(found)


def _of_operation(op: ScaledOp, factors: Mapping[str, float]) -> Iterator[PlannedFactor]:
    """Of an operation that was seen. A scale of the model's own multiplies that of attention."""
    size, own = op.geometry.get("head_size", 0), op.geometry.get("own", 1.0)
    for key, value in factors.items():
        logit = (op.kind, key) == ("attention", "logit")
        yield PlannedFactor(
            kind=op.kind,
            factor=key,
            where=author_name(op),
            value=value * own if logit else value,
            usual=float(size) ** -0.5 if logit else 1.0,
            head_size=size,
            branch=op.geometry.get("branch", 0),
        )


def _attentions(
    parameterization: Parameterization, hps: PlainHps, attentions: Collection[SeenAttention]
) -> Iterator[PlannedFactor]:
    """Of attention that was only watched; without any, of heads of a usual size."""
    sizes = {seen.head_size: seen for seen in attentions}
    for size in sorted(sizes) or [USUAL_HEAD]:
        seen = sizes.get(size)
        length = (seen and seen.seq_len) or USUAL_LENGTH
        where = f"attention of heads of {size}" if seen else f"attention, none seen; at {size}"
        geometry: dict[str, Any] = {"head_size": size, "seq_len": length, "causal": True}
        for key, value in parameterization_factors(
            parameterization, hps, "attention", **geometry
        ).items():
            usual = ((seen and seen.scale) or size**-0.5) if key == "logit" else 1.0
            yield PlannedFactor(
                kind="attention",
                factor=key,
                where=where,
                value=value,
                usual=usual,
                head_size=size,
            )


def _factors_branches(
    parameterization: Parameterization,
    hps: PlainHps,
    specs: Sequence[ParamSpec],
    depths: tuple[int, int],
) -> Iterator[PlannedFactor]:
    """Of residual branches, two a layer; where none was seen, of as many as the depths say."""
    on_branch = next((spec for spec in specs if spec.residual), None)
    depth, base_depth = (on_branch.depth, on_branch.base_depth) if on_branch else depths
    geometry = {"branches": 2 * depth, "base_branches": 2 * base_depth}
    for branch in range(1, 2 * depth + 1):
        for key, value in parameterization_factors(
            parameterization, hps, "residual", branch=branch, **geometry
        ).items():
            where = "residual branches" if on_branch else "residual branches, none seen"
            yield PlannedFactor(
                kind="residual", factor=key, where=where, value=value, branch=branch
            )


def _unseen(
    parameterization: Parameterization, hps: PlainHps, kind: str, **geometry: object
) -> Iterator[PlannedFactor]:
    for key, value in parameterization_factors(parameterization, hps, kind, **geometry).items():
        where = f"{kind.replace('_', ' ')}, where the model has one"
        yield PlannedFactor(kind=kind, factor=key, where=where, value=value)
