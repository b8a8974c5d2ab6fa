"""What init, learning rate and eps cannot absorb, in words for the model's author."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose

from sweeper.scaling.spec import ScaledOp, with_layer

DECAY_NEED = (
    "weight decay: the plan's is independent of the learning rate; param_groups hold decay / lr "
    "for decoupled decay (torch.optim.AdamW, SGD without momentum); the L2 decay of "
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
UNSEEN_OPERATIONS_NEED = (
    "operations: this model has none that sweeper can see; where it has attention, residual "
    "branches or an output scale, give them the parameterization's factors yourself"
)


def needs(
    scaled_ops: Sequence[ScaledOp],
    operations: Mapping[str, Mapping[str, float]],
    multipliers: Mapping[str, tuple[float, float]],
    *,
    unit_scaled: bool,
    decay: bool,
) -> list[str]:
    """Every factor that a plain model must apply itself, layers that are alike in one line.

    `multipliers` are those of every parameter, forward and backward.
    """
    factors = [need for op in scaled_ops for need in _op_needs(op, operations[op.name])]
    for name, (forward, backward) in multipliers.items():
        if not isclose(forward, backward):
            factors.append((name, "multiply the gradient to its input by {}", backward / forward))
    lines = _merge_layers(factors)
    lines += [] if scaled_ops else [UNSEEN_OPERATIONS_NEED]
    if unit_scaled:
        lines.append(UNIT_SCALED_EPS_NEED)
    elif any(forward != 1 for forward, _ in multipliers.values()):
        lines.append(EPS_NEED)
    return [*lines, DECAY_NEED] if decay else lines


FACTOR_NEEDS = {
    ("attention", "logit"): "multiply q k^T by {} where head size^-1/2 is usual",
    ("gated_silu", "alpha"): "multiply the sigmoid's argument by {}",
    ("residual", "branch"): "multiply the branch's output by {}",
    ("residual", "skip"): "multiply the skipped stream by {}",
    ("loss", "logit"): "multiply the logits by {}",
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
            yield op.name, FACTOR_NEEDS.get((op.kind, key), f"multiply its {key} by {{}}"), value


def _merge_layers(needs: Iterable[Need]) -> list[str]:
    """`name: what to do`, layers as one line with `*` for their number."""
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for name, text, value in needs:
        groups.setdefault((with_layer(name, "*"), text), {})[name] = value
    lines = []
    for (pattern, text), members in groups.items():
        low, high = min(members.values()), max(members.values())
        words, ends = f"{low:.6g}", [f"{low:.4g}", f"{high:.4g}"]
        if ends[0] != ends[1]:
            words = f"{' to '.join(ends)} (by layer: see `operations`)"
        name = pattern if len(members) > 1 else next(iter(members))
        lines.append(f"{name}: {text.format(words)}")
    return lines
