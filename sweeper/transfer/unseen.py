"""A scheme's factors for the operations of a plain model, which cannot be seen one by one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from math import isclose
from typing import TYPE_CHECKING

from sweeper.scaling.spec import Parameterization, ParamSpec, Role, ScaledOp
from sweeper.trial import PlainHps

if TYPE_CHECKING:  # it brings torch
    from sweeper.models.attention_watch import SeenAttention

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
    scheme: Parameterization,
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
    lines = list(_attention(scheme, hps, attentions)) if told else []
    branch = next((spec for spec in specs if spec.residual), None)
    if branch is not None and "residual" not in seen:
        lines += _branches(scheme, hps, branch.depth, branch.base_depth)
    elif "residual" not in seen and depths[0] != depths[1]:
        lines += _branches(scheme, hps, *depths, where=", if the model has any (shared layers)")
    gate = scheme_factors(scheme, hps, "gated_silu")
    words = {
        "alpha": "multiply the sigmoid's argument by {}",
        "output": "multiply its output by {}",
    }
    if done := _phrases(words, gate):
        lines.append(f"gated SiLU, where the model has one: {done}")
    words = {"logit": "multiply the logits by {}"}
    done = _phrases(words, scheme_factors(scheme, hps, "loss", classes=classes))
    if done and "loss" not in seen:
        lines.append(f"loss: {done}")
    return lines


def scheme_factors(
    scheme: Parameterization, hps: PlainHps, kind: str, **geometry: object
) -> dict[str, float]:
    """The scheme's factors of an operation; none where it has no rule for the kind."""
    try:
        return scheme.scale_op(ScaledOp(name=kind, kind=kind, geometry=geometry), hps)
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
    scheme: Parameterization, hps: PlainHps, attentions: Collection[SeenAttention]
) -> Iterator[str]:
    """Of q k^T: a number where the heads have one size, else a formula; and of the output."""

    def factors(head_size: int, length: int = USUAL_LENGTH) -> dict[str, float]:
        geometry = {"head_size": head_size, "seq_len": length, "causal": True}
        return scheme_factors(scheme, hps, "attention", **geometry)

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
        yield from _attention_output(scheme, hps, attentions)


def _rule(logit: float, doubled: float) -> str:
    """The law behind the factors of q k^T at `USUAL_HEAD` and its double."""
    for words, power in (("1/d", 1.0), ("1/sqrt(d)", 0.5)):
        if isclose(logit / doubled, 2**power, rel_tol=1e-6):
            alpha = logit * USUAL_HEAD**power
            return words if isclose(alpha, 1.0) else words.replace("1", f"{alpha:.6g}", 1)
    return f"the scheme's factor, {logit:.3g} at d = {USUAL_HEAD}"


def _attention_output(
    scheme: Parameterization, hps: PlainHps, attentions: Collection[SeenAttention]
) -> Iterator[str]:
    """The factor on attention's output, which depends on the sequence's length."""
    seen = {(one.head_size, one.seq_len) for one in attentions if one.seq_len}
    size, length = next(iter(seen), (USUAL_HEAD, USUAL_LENGTH))
    geometry = {"head_size": size, "seq_len": length, "causal": True}
    value = scheme_factors(scheme, hps, "attention", **geometry)["output"]
    heads = f"head size {size}, {length} positions and a causal mask"
    others = "" if len(seen) == 1 else "; the scheme's scale_op gives it for others"
    if not isclose(value, 1.0):
        yield f"attention: multiply its output by {value:.4g}, which is for {heads}{others}"


def _branches(
    scheme: Parameterization, hps: PlainHps, depth: int, base_depth: int, where: str = ""
) -> Iterator[str]:
    """Of residual branches, two a layer: their outputs' factors, and the skipped stream's."""
    count = 2 * depth
    geometry = {"branches": count, "base_branches": 2 * base_depth}
    found = [
        scheme_factors(scheme, hps, "residual", branch=branch, **geometry)
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
