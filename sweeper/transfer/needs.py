"""What init, learning rate and eps cannot absorb, in words for the model's author."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose

from sweeper.scaling.spec import ParamSpec, ScaledOp, with_layer

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
