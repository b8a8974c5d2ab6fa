"""The factors of a plan's forward pass, and what they leave to the author of a plain model.

Init, learning rate and eps absorb the factor of a weight. Those of operations (attention, residual
branches, activations, the loss, tied heads) nothing absorbs. `ask` asks the parameterization
for them, once an operation. Where a plain model hides its operations, it asks for stand-ins of
usual sizes. What it answers becomes `PlannedFactor`s, which exporters read, and the sentences of
`needs`, which people read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from typing import TYPE_CHECKING

from sweeper.records import WRITTEN_IF_SET, Positive
from sweeper.scaling.spec import Parameterization, ParamSpec, Role, ScaledOp, with_layer
from sweeper.trial import PlainHps

if TYPE_CHECKING:
    from sweeper.classifier.operations import SeenAttention
    from sweeper.engine.architecture import Architecture

ATTENTION_NAME = re.compile(r"(?:^|[._])att", re.IGNORECASE)
"""In the name of a parameter: blocks.0.attn.qkv, self_attention.out."""
USUAL_HEAD = 64
"""A head size to read the rule of attention off, beside its double."""
USUAL_LENGTH = 128
MAX_BRANCHES = 12
"""Factors of branches that are listed one by one; of more, the first and the last."""

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
STAND_INS = {"gated_silu": "gated SiLU, where the model has one", "loss": "loss"}
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
TO_BE_SEEN = (
    "it was not seen: x = F.scaled_dot_product_attention(q, k, v) in a forward pass that runs "
    "tells the numbers"
)
"""The line of a model's code that would make its attention known."""
DEPTH_NEED = (
    "depth: no size of the model is its depth, so the learning rates of residual branches lack the "
    "parameterization's 1/sqrt(depth): name the depth among the sizes"
)


@dataclass(frozen=True, kw_only=True)
class PlannedFactor:
    """A factor of one operation: `value` by the plan, where the model by itself has `usual`.

    `kind` and `factor` are those of a `ScaledOp`: an attention's "logit" multiplies q k^T and is
    absolute, its `usual` being head size^-1/2. `head_size` is an attention's, else 0. `branch` is
    the number of a residual branch, odd for attention's, else 0. `where` names the operation, or
    says that it was not seen. `own` is what the study's own model has beside `value`, of a tied
    readout: who builds another model gives both. None: not recorded.
    """

    kind: str
    factor: str
    where: str
    value: Positive
    usual: Positive = 1.0
    head_size: int = 0
    branch: int = 0
    own: float | None = field(default=None, metadata=WRITTEN_IF_SET)


@dataclass(frozen=True, kw_only=True)
class OpFactors:
    """An operation and the parameterization's `factors` of it; `where` names it for people.

    One that is not `seen` stands in for those that the model may have. Of attention that ran, and
    that nothing can scale, `attention` says what was seen; `rule` is the law of q k^T's factor.
    Of attention that did not, `unknown` are factors that depend on what was not seen.
    """

    op: ScaledOp
    factors: Mapping[str, float]
    where: str
    seen: bool = True
    attention: SeenAttention | None = None
    rule: str = ""
    unknown: tuple[str, ...] = ()

    def usual(self, factor: str) -> float:
        """The model's own: of q k^T head size^-1/2, or what was seen, and 1 of all else."""
        if not _is_logit(self.op, factor):
            return 1.0
        seen_scale = self.attention.scale if self.attention else None
        return seen_scale or float(self.op.geometry["head_size"]) ** -0.5

    def as_trained(self) -> OpFactors:
        """The model's own factors, where nothing scaled the operation in any trial."""
        return replace(self, factors={name: self.usual(name) for name in self.factors})


def _is_logit(op: ScaledOp, factor: str) -> bool:
    return (op.kind, factor) == ("attention", "logit")


def ask(
    parameterization: Parameterization, hps: PlainHps, model: Architecture, depths: tuple[int, int]
) -> list[OpFactors]:
    """The factors of all operations of `model`, and of those that it may have beside them.

    `depths` are the target's and the base's, which tell the number of residual branches where no
    parameter lies on one, as where layers are shared.
    """
    answers = [
        OpFactors(op=op, factors=parameterization.scale_op(op, hps), where=author_name(op))
        for op in (*model.scaled_ops, *model.unseen_ties)
    ]
    if model.complete:
        return answers
    seen = {answer.op.kind for answer in answers}

    def factors_of(kind: str, **geometry: object) -> tuple[ScaledOp, dict[str, float]]:
        op = ScaledOp(name=kind, kind=kind, geometry=geometry)
        try:
            return op, parameterization.scale_op(op, hps)
        except ValueError:  # the parameterization of someone's may have no rule for the kind
            return op, {}

    def attention(head_size: int, length: int = USUAL_LENGTH) -> tuple[ScaledOp, dict[str, float]]:
        return factors_of("attention", head_size=head_size, seq_len=length, causal=True)

    # Heads of a plain model may grow with its width: people are told the law in the head size.
    logits = [attention(size)[1].get("logit", 0.0) for size in (USUAL_HEAD, 2 * USUAL_HEAD)]
    rule = _rule(*logits) if all(logits) else ""
    ran = sorted(model.attentions, key=lambda a: (a.head_size, a.seq_len, a.scale or 0.0))
    for heads in ran:
        op, factors = attention(heads.head_size, heads.seq_len or USUAL_LENGTH)
        where = f"attention of heads of {heads.head_size}"
        answers.append(
            OpFactors(op=op, factors=factors, where=where, seen=False, attention=heads, rule=rule)
        )
    named = any(ATTENTION_NAME.search(spec.name) for spec in model.specs)
    if named and not ran and "attention" not in seen:
        # Of q k^T the law in the head size is known, read off a usual one. What depends on the
        # number of positions, or on a mask, too, is not: a number would be an invention.
        op, factors = attention(USUAL_HEAD)
        logit = {name: value for name, value in factors.items() if name == "logit"}
        unknown = tuple(n for n, v in factors.items() if n not in logit and not isclose(v, 1.0))
        where = f"attention, none seen; at {USUAL_HEAD}"
        answers.append(
            OpFactors(op=op, factors=logit, where=where, seen=False, rule=rule, unknown=unknown)
        )
    if "residual" not in seen:
        # Two a layer, and as many layers as the parameters on branches say.
        on_branch = next((spec for spec in model.specs if spec.residual), None)
        depth, base_depth = (on_branch.depth, on_branch.base_depth) if on_branch else depths
        where = "residual branches" if on_branch else "residual branches, none seen"
        counts = {"branches": 2 * depth, "base_branches": 2 * base_depth}
        for branch in range(1, 2 * depth + 1):
            op, factors = factors_of("residual", branch=branch, **counts)
            answers.append(OpFactors(op=op, factors=factors, where=where, seen=False))
    # A loss is told by its number of classes, which are the readout's outputs.
    classes = next((spec.fan_out for spec in model.specs if spec.role is Role.READOUT), 1)
    for kind, geometry in (("gated_silu", {}), ("loss", {"classes": classes})):
        if kind not in seen:
            op, factors = factors_of(kind, **geometry)
            where = f"{kind.replace('_', ' ')}, where the model has one"
            answers.append(OpFactors(op=op, factors=factors, where=where, seen=False))
    return answers


def _rule(logit: float, doubled: float) -> str:
    """The law behind the factors of q k^T at `USUAL_HEAD` and its double, d being the head size."""
    for law, power in (("1/d", 1.0), ("1/sqrt(d)", 0.5)):
        # logit = alpha d^-power: doubling d divides it by 2^power, whatever alpha is.
        if isclose(logit / doubled, 2**power, rel_tol=1e-6):
            alpha = logit * USUAL_HEAD**power
            return law if isclose(alpha, 1.0) else law.replace("1", f"{alpha:.6g}", 1)
    return f"the parameterization's factor, {logit:.3g} at d = {USUAL_HEAD}"


def author_name(op: ScaledOp) -> str:
    """The operation's name in the author's own model: scales that were put into it are no part."""
    owner, _, last = op.name.rpartition(".")
    if last.rstrip("_") != f"scaled_{op.kind}":
        return op.name
    return owner or "the model"


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


def planned_factors(answers: Iterable[OpFactors]) -> tuple[PlannedFactor, ...]:
    """Every factor as a record, also a usual one; a scale of the model's is in attention's."""
    return tuple(
        PlannedFactor(
            kind=answer.op.kind,
            factor=key,
            where=answer.where,
            # `built_in` is the model's scale over head_size^-1/2, which stays in its code.
            value=value
            * (answer.op.geometry.get("built_in", 1.0) if _is_logit(answer.op, key) else 1.0),
            usual=answer.usual(key),
            head_size=answer.op.geometry.get("head_size", 0),
            branch=answer.op.geometry.get("branch", 0),
            own=answer.op.geometry.get("own"),
        )
        for answer in answers
        for key, value in answer.factors.items()
    )


def needs(
    answers: Sequence[OpFactors],
    multipliers: Mapping[str, tuple[float, float]],
    *,
    unit_scaled: bool,
    depth_known: bool = True,
    eps: bool = True,
    decay: bool,
    cautions: Iterable[str] = (),
) -> list[str]:
    """Every factor that a plain model must apply itself, layers that are alike in one line.

    `multipliers` are those of every parameter, forward and backward. `cautions` on the model as a
    whole come last.
    """
    seen = [
        (answer.where, _advice(answer.op, key), value)
        for answer in answers
        if answer.seen
        for key, value in answer.factors.items()
        if not isclose(value, answer.usual(key))
    ]
    # Weights absorb a multiplier for both directions; what the backward pass has beside it is left.
    for name, (forward, backward) in multipliers.items():
        if not isclose(forward, backward):
            seen.append((name, "multiply the gradient to its input by {}", backward / forward))
    hidden: dict[str, list[OpFactors]] = {}
    for answer in answers:
        if not answer.seen:
            hidden.setdefault(answer.op.kind, []).append(answer)
    lines = [
        *_merge_layers(seen),
        *_attention_needs(hidden.get("attention", [])),
        *_branch_needs(hidden.get("residual", [])),
    ]
    for kind, name in STAND_INS.items():
        for answer in hidden.get(kind, ()):
            advice = [
                _advice(answer.op, key).format(f"{value:.6g}")
                for key, value in answer.factors.items()
                if not isclose(value, 1.0)
            ]
            if advice:
                lines.append(f"{name}: {' and '.join(advice)}")
    if unit_scaled and not depth_known:
        lines.append(DEPTH_NEED)
    if unit_scaled and eps:
        lines.append(UNIT_SCALED_EPS_NEED)
    elif eps and any(forward != 1 for forward, _ in multipliers.values()):
        lines.append(EPS_NEED)
    if decay:
        lines.append(DECAY_NEED)
    return [*lines, *(f"mind: {caution}" for caution in cautions)]


def is_edit(need: str) -> bool:
    """Whether a sentence of `needs` asks for a factor in the forward pass of a model."""
    return not need.startswith(("mind: ", "eps: ", "weight decay: ", "depth: "))


def edits_first(needs: Iterable[str]) -> list[str]:
    """Lines of code that only the model's author can write come before what else is to be told."""
    return sorted(needs, key=lambda need: not is_edit(need))


def _advice(op: ScaledOp, factor: str) -> str:
    text = FACTOR_NEEDS.get((op.kind, factor), f"multiply its {factor} by {{}}")
    if not (parameter := op.geometry.get("parameter")):
        return text
    weight = with_layer(parameter, "*")
    if op.geometry["lookup"]:
        return f"{text} {weight}"
    return (
        f"multiply the product with {weight} that sums over the width by {{}}: it is used both ways"
    )


def _merge_layers(needs: Iterable[tuple[str, str, float]]) -> list[str]:
    """`name: what to do` of (name, advice, value), layers as one line with `*` for their number."""
    groups: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for name, advice, value in needs:
        groups.setdefault((with_layer(name, "*"), advice), []).append((name, value))
    lines = []
    for (pattern, advice), members in groups.items():
        names, values = {name for name, _ in members}, [value for _, value in members]
        number, ends = f"{min(values):.6g}", [f"{end(values):.4g}" for end in (min, max)]
        by = "layer" if len(names) > 1 else "call"
        if ends[0] != ends[1]:
            number = f"{' to '.join(ends)} (by {by}: see `operations`)"
        name = pattern if len(names) > 1 else members[0][0]
        lines.append(f"{name}: {advice.format(number)}")
    return lines


def _attention_needs(hidden: Sequence[OpFactors]) -> Iterator[str]:
    if not hidden or not hidden[0].rule:
        return
    rule = hidden[0].rule
    ran = [answer for answer in hidden if answer.attention]
    # Right already: what the parameterization has in common with usual attention, or the model
    # with the parameterization.
    wrong = [
        answer
        for answer in ran
        if not isclose(answer.factors["logit"], answer.usual("logit"))
        and not isclose(answer.factors["logit"], answer.op.geometry["head_size"] ** -0.5)
    ]
    sizes = {answer.op.geometry["head_size"]: answer.factors["logit"] for answer in wrong}
    by_formula = f"multiply q k^T by {rule} instead of 1/sqrt(d), d being the size of a head"
    # All heads that ran are of one size: a number says more than a formula.
    if len(sizes) == 1:
        ((size, logit),) = sizes.items()
        by = f"multiply q k^T by {logit:.3g}"
        yield f"attention: {rule} instead of 1/sqrt(d): at head size {size} {by}"
    elif sizes:
        yield f"attention: {by_formula}"
    elif not ran:
        advice = [by_formula] * (rule != "1/sqrt(d)")
        advice += [
            f"its {name} has a factor, too, which is not known" for name in hidden[0].unknown
        ]
        if advice:
            yield "; ".join([f"attention, as names tell: {advice[0]}", *advice[1:], TO_BE_SEEN])
    # The factor on the output depends on the number of positions.
    measured = [answer for answer in ran if answer.attention and answer.attention.seq_len]
    first = (measured or hidden)[0]
    value = first.factors.get("output", 1.0)
    if not isclose(value, 1.0):
        size, length = first.op.geometry["head_size"], first.op.geometry["seq_len"]
        heads = f"head size {size}, {length} positions and a causal mask"
        others = "; the parameterization's scale_op gives it for others" * (len(measured) != 1)
        yield f"attention: multiply its output by {value:.4g}, which is for {heads}{others}"


def _branch_needs(hidden: Sequence[OpFactors]) -> Iterator[str]:
    if not hidden:
        return
    geometry, where = hidden[0].op.geometry, "residual branches"
    if hidden[0].where != where:
        if geometry["branches"] == geometry["base_branches"]:
            return
        where = f"{where}, if the model has any (shared layers)"
    advice = []
    for key, what in {"branch": "each branch's output", "skip": "the skipped stream"}.items():
        values = [answer.factors[key] for answer in hidden if key in answer.factors]
        if any(not isclose(value, 1.0) for value in values):
            advice.append(f"multiply {what} by {_listed(values)}")
    if advice:
        yield f"{where}: {' and '.join(advice)}"


def _listed(values: Sequence[float]) -> str:
    if all(isclose(value, values[0]) for value in values):
        return f"{values[0]:.6g}"
    numbers = [f"{value:.4g}" for value in values]
    if len(numbers) > MAX_BRANCHES:
        numbers = [*numbers[:4], "...", *numbers[-2:]]
    return f"{', '.join(numbers)} (attention's and FFN's in turn, of {len(values)})"
