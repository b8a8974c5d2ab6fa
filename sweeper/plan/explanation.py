"""What every parameter of a model is given, and why: exponents, numbers at both sizes.

Nothing is computed here: numbers are those of the plan (`plan.plan_of`), which has them from
`scaling/prescription.py`, and exponents are read off them. Roles and notes are the classifier's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from typing import TYPE_CHECKING, Any

from sweeper.plan.factors import tied_weight
from sweeper.plan.plan import PlannedParameter, TransferPlan
from sweeper.scaling.spec import ParamSpec, Role, ScaledOp
from sweeper.trial import PlainHps

if TYPE_CHECKING:
    from sweeper.engine.prepare import PreparedSpec

ROLE_REASONS = {
    Role.EMBEDDING: "only its output grows with the width",
    Role.HIDDEN: "sums over an input that grows, into an output that grows",
    Role.READOUT: "sums over an input that grows, into an output that does not",
    Role.DOWN: "sums over an input that grows, into an output that does not, within the body",
    Role.UP: "sums over an input that does not grow, into an output that does, within the body",
    Role.VECTOR: "acts entry by entry and sums over nothing",
    Role.FIXED: "none of its dimensions grows with the width: its rate stays",
}
"""A role in words (Everett et al., section 2)."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A planned parameter with its exponents of width, as the parameterization applies them.

    With m the ratio of the widths: multiplier m^-a, init std m^-b, learning rate m^-c. They are
    read off the prescriptions at two widths, the depth held at the target's.
    """

    parameter: PlannedParameter
    a: float
    b: float
    c: float
    why: str

    def to_json(self) -> dict[str, Any]:
        """One flat record: the target's numbers, and the base's under "base"."""
        parameter = asdict(self.parameter)
        parameter.pop("lr_exponent")  # it is c
        parameter.pop("matrix")  # of groups for an optimizer, which are made of a plan
        target = parameter.pop("target")
        target.pop("backward_multiplier")
        base = parameter.pop("base")
        base.pop("backward_multiplier")
        exponents = {"a": self.a, "b": self.b, "c": self.c}
        return {**parameter, **exponents, **target, "base": base, "why": self.why}


def explain(
    plan: TransferPlan, narrow: PreparedSpec, wide: PreparedSpec, hps: PlainHps
) -> list[Explained]:
    """Every parameter, with exponents between `narrow` and `wide`, both of the plan's depth."""
    width_ratio = wide.spec.width / narrow.spec.width
    before, after = narrow.prescriptions(hps), wide.prescriptions(hps)
    notes = {spec.name: spec.note for spec in narrow.specs}
    rows = []
    for parameter in plan.parameters:
        old, new = before[parameter.name], after[parameter.name]
        pairs = ((old.multiplier, new.multiplier), (old.init_std, new.init_std), (old.lr, new.lr))
        # new = old m^-a; adding 0 makes a 0 of the -0 that the minus sign leaves.
        a, b, c = (round(-log(n / o) / log(width_ratio), 6) + 0.0 for o, n in pairs)
        reasons = [ROLE_REASONS[Role(parameter.role)], notes[parameter.name]]
        why = "; ".join(reason for reason in reasons if reason)
        rows.append(Explained(parameter=parameter, a=a, b=b, c=c, why=why))
    return rows


def tied_readouts(
    specs: Sequence[ParamSpec],
    scaled_ops: Iterable[ScaledOp],
    operations: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """A sentence for every readout that is an embedding's matrix, with its factor."""
    lines = []
    for op in scaled_ops:
        if op.kind != "tied_readout":
            continue
        spec, fans = tied_weight(specs, op), (op.geometry["fan_in"], op.geometry["base_fan_in"])
        line = f"tied readout {op.name}: its weight is {spec.name if spec else 'an embedding'}"
        line += f"; it sums over {fans[0]} entries, {fans[1]} at the base"
        for value in operations.get(op.name, {}).values():
            line += f"; its logits are multiplied by {value:.6g}"
        # The plan's factor is over the model's own, which stays in its code: both are named.
        if (built_in := op.geometry["built_in"]) != 1:
            line += f", beside the model's own factor, {built_in:.6g} of the base's"
        lines.append(line)
    return lines
