"""Uses of a parameter: what an operation sums over, what it feeds, and which uses count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod


class UseKind(StrEnum):
    """What an operation does with a parameter."""

    CONTRACTION = "contraction"
    """Summed over, as in a matrix product."""
    LOOKUP = "lookup"
    """Rows are picked by their numbers."""
    MUL = "mul"
    """Multiplied element by element."""
    ADD = "add"
    """Added element by element."""
    INSERT = "insert"
    """Set among the activations, as by cat."""
    STATISTIC = "statistic"
    """Reduced to a sum, a mean or a norm of its own."""
    UNKNOWN = "unknown"
    """Not understood; `Use.op` says why."""


ELEMENTWISE = (UseKind.MUL, UseKind.ADD, UseKind.INSERT)

UseSignature = tuple[UseKind, tuple[int, ...]]
"""Kind of a use, and the dimensions of the parameter that it sums over."""


@dataclass(kw_only=True)
class Use:
    """One use of a parameter by the operation `op`.

    `in_extents`, `out_extents` and `group_extents` give the entries, by dimension of the
    parameter, that are summed over (or looked up), that feed outputs, and that choose one of
    several independent weights. `fan_out_factor` counts further outputs that an input feeds.
    `input_id` identifies the other operand's storage, and `depends_on_input` tells that this
    operand depends on the model's inputs. `shifted` and `transformed` are the layout's.
    `summed` and `used_unsummed` tell what later operations do with an element-wise product.
    `module` is the module that holds the parameter and ran the operation, if one did. `factor` is
    the product of the numbers that the model multiplies the other operand and the result by.
    """

    kind: UseKind
    op: str
    in_extents: dict[int, int] = field(default_factory=dict)
    out_extents: dict[int, int] = field(default_factory=dict)
    group_extents: dict[int, int] = field(default_factory=dict)
    fan_in: int = 1
    fan_out_factor: int = 1
    input_id: int = 0
    depends_on_input: bool = True
    shifted: bool = False
    transformed: bool = False
    summed: bool = False
    used_unsummed: bool = False
    module: str = ""
    factor: float = 1.0

    @property
    def fan_out(self) -> int:
        """Entries that one input feeds, through this use alone."""
        return prod(self.out_extents.values()) * self.fan_out_factor

    @property
    def signature(self) -> UseSignature:
        """Uses with the same signature are alike; a product that is summed is a contraction."""
        kind = UseKind.CONTRACTION if self.summed else self.kind
        return kind, tuple(sorted(self.in_extents))

    def fans(self, width_dims: Sequence[int]) -> tuple[int, int]:
        """Fan-in and fan-out; a table that is added feeds its dimensions that grow."""
        if self.signature[0] in ELEMENTWISE:
            spans = self.out_extents
            wide = [n for dim, n in spans.items() if dim in width_dims] or [*spans.values()][-1:]
            return 1, prod(wide)
        return self.fan_in, self.fan_out


class Undecided(Exception):
    """Why a parameter has no role; the caller names the parameter."""


def decisive_uses(uses: Sequence[Use], shape: Sequence[int]) -> dict[UseSignature, Use]:
    """The uses that count, one for each signature; Undecided if one is not understood.

    A use by the model's inputs outweighs one by constants (the norm of a spectral norm), and
    any use outweighs a mere statistic of the parameter.
    """
    for use in uses:
        if use.kind is UseKind.UNKNOWN:
            raise Undecided(f"it goes through {use.op}")
        if use.summed and use.used_unsummed:
            raise Undecided("its element-wise product is both summed and used as it is")
    counted = [use for use in uses if use.kind is not UseKind.STATISTIC]
    if uses and not counted:
        raise Undecided(f"only a statistic of it is used ({uses[0].op})")
    by_input = [use for use in counted if use.depends_on_input]
    alike: dict[UseSignature, list[Use]] = {}
    for use in by_input or counted:
        alike.setdefault(use.signature, []).append(use)
    return {signature: _merged(same, shape) for signature, same in alike.items()}


def _merged(uses: Sequence[Use], shape: Sequence[int]) -> Use:
    """One use for several alike: the one of largest fans, with all outputs that an input feeds.

    Slices of a fused projection (q, k and v in one weight) are separate uses of one parameter.
    Those that meet the same input count together: the input feeds all their outputs.
    """
    largest = max(uses, key=lambda use: (use.fan_in, use.fan_out))
    outs_by_input: dict[int, dict[int, int]] = {}
    for use in uses:
        total = outs_by_input.setdefault(use.input_id, {})
        for dim, n in use.out_extents.items():
            # A slice that is used twice must not count twice: no more than the whole dimension,
            # less what the use sums over or what its groups take of it.
            taken = prod(spans.get(dim, 1) for spans in (use.in_extents, use.group_extents))
            total[dim] = min(max(shape[dim] // taken, n), total.get(dim, 0) + n)
    outs = max(outs_by_input.values(), key=lambda spans: prod(spans.values()))
    return replace(largest, out_extents=outs)
