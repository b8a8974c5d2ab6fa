"""A diagnosis in sentences: what is changed, what that would mean, and what was found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sweeper.decide.diagnosis import CAUSE_FRACTION, Ablation, AblationResult, Diagnosis
from sweeper.scaling.relative import Change
from sweeper.scaling.spec import Role
from sweeper.stats.estimate import Estimate
from sweeper.stats.ladder import Size

ROLES = {
    Role.EMBEDDING: "the embedding's",
    Role.HIDDEN: "the hidden layers'",
    Role.READOUT: "the readout's",
    Role.VECTOR: "the gains' and biases'",
}


def worded_ablation(ablation: Ablation) -> Ablation:
    """The ablation with its sentences."""
    change, cause, evidence = WORDS[ablation.name](ablation, ablation.known)
    return replace(ablation, change=change, cause=cause, evidence=evidence * ablation.seen)


def worded_diagnosis(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with what each result says, and with what was found."""
    results = tuple(replace(each, sentence=result_text(each)) for each in diagnosis.results)
    return replace(diagnosis, results=results, conclusion=conclusion_text(diagnosis))


# By ablation: what is changed, the cause if that helps, and what was seen of it.


def _rules(_: Ablation, known: Mapping[str, Any]) -> tuple[str, str, str]:
    changes = known["changes"]
    powers = "; ".join(f"{ROLES[role]} {_powers(change)}" for role, change in changes.items())
    return (
        f"muP's rules for all parameters ({powers}; m is the growth of the width)",
        "the parameterization does not rescale its parameters with the width as muP does",
        f"{len(changes)} roles of parameters follow other powers of the width than under muP",
    )


def _role(_: Ablation, known: Mapping[str, Any]) -> tuple[str, str, str]:
    ((role, change),) = known["changes"].items()
    powers = _powers(change)
    return (
        f"{ROLES[role]} {powers} (m is the growth of the width)",
        f"{ROLES[role]} rule for the width is wrong",
        f"muP's rule has a further {powers}",
    )


def _powers(change: Change) -> str:
    parts = [("init std", change.b), ("learning rate", change.c)]
    return " and ".join(f"{name} times m^{-value:+g}" for name, value in parts if abs(value) > 1e-9)


def _decay(_: Ablation, known: Mapping[str, Any]) -> tuple[str, str, str]:
    if not known:
        cause = "the weight decay moves the optimum as the model grows"
        return "no weight decay", cause, ""
    base, large = known["base"], known["large"]
    return (
        f"weight decay independent of the learning rate, {base:.3g} a step as at the base",
        f"the weight decay is {known['rule']}: it follows the learning rate of each parameter",
        f"a step removes {base:.3g} of a hidden weight at the base and {large:.3g} at "
        f"{known['size']}",
    )


def _epsilon(ablation: Ablation, known: Mapping[str, Any]) -> tuple[str, str, str]:
    evidence = ["eps is the same at all sizes while gradients shrink"] * known["fixed"]
    if below := known["below_eps"]:
        shares = (f"{100 * share:.3g} % of entries at {size}" for size, share in below.items())
        evidence.append(f"eps exceeds the root of the second moment for {' and '.join(shares)}")
    by_atan2 = "optimizer.atan2" in ablation.overrides
    return (
        "steps by atan2, which needs no eps"
        if by_atan2
        else f"an eps 2^-10 times {known['eps']:g}",
        "gradients shrink below the optimizer's eps as the model grows",
        "; ".join(evidence),
    )


def _plain(ablation: Ablation, known: Mapping[str, Any]) -> tuple[str, str, str]:
    """The words of `PLAIN`, with what is known and with the one setting that is changed."""
    key, value = next(iter(ablation.overrides.items()), ("", ""))
    values = {**known, "key": key, "value": value}
    if "distances" in known:
        values["edge"] = _edge(known["distances"])
    change, cause, evidence = (text.format(**values) for text in PLAIN[ablation.name])
    return change, cause, evidence


def _edge(distances: Mapping[Size, float]) -> str:
    each = (
        f"{distance:.2g} at {size}" if math.isfinite(distance) else f"none diverges at {size}"
        for size, distance in distances.items()
    )
    return f"distance in log2 from the optimum to the first rate that diverges: {'; '.join(each)}"


PLAIN = {
    "depth": (
        "the depth rule {other} instead of {rule}",
        "the depth rule {rule} scales the residual branches wrongly",
        "the residual branches have no rule for the depth",
    ),
    "attention": (
        "attention logits divided by the head size",
        "attention logits grow with the head size",
        "heads grow from {heads[0]} to {heads[1]}, and the logits' factor follows the power "
        "{power:.2f} of that, not -1",
    ),
    "gains": ("{key}=false", "the norms' gains are trained", "the norms have trainable gains"),
    "tied": (
        "{key}=false",
        "the embedding and the readout share their weights",
        "the embedding and the readout are tied",
    ),
    "warmup": (
        "a warm-up over {value:g} of the steps",
        "the edge of stability keeps the learning rate low: the warm-up is too short",
        "{edge}",
    ),
    "stability": (
        "gradients clipped to norm 1",
        "the edge of stability keeps the learning rate low: large gradients end runs",
        "{edge}",
    ),
    "horizon": ("{value} steps", "the runs are too short for the optimum to have settled", ""),
    "batch": (
        "batches of {value}",
        "the batch size exceeds the critical batch size of one of the models",
        "",
    ),
}
WORDS: Mapping[str, Callable[[Ablation, Mapping[str, Any]], tuple[str, str, str]]] = {
    "rules": _rules,
    **{str(role): _role for role in ROLES},
    "decay": _decay,
    "epsilon": _epsilon,
    **dict.fromkeys(PLAIN, _plain),
}


# What the ablations showed.


def result_text(result: AblationResult) -> str:
    """What an ablation showed, with its numbers."""
    change = f"with {result.ablation.change}"
    if result.after is None:
        return f"{change}: it could not be tried ({result.error})"
    before, after = result.before, result.after
    return (
        f"{change}: the shift is {_number(after.shift_log2, '+.2f')} in log2 instead of "
        f"{_number(before.shift_log2, '+.2f')}, and the loss gap is "
        f"{_number(after.loss_gap, '.4f')} nats instead of "
        f"{_number(before.loss_gap, '.4f')}; {_meaning(result)}"
    )


def _meaning(result: AblationResult) -> str:
    doubt = ", but by its interval it may explain nothing" if result.doubtful else ""
    if result.is_cause:
        return f"this explains {_share(result)}{doubt}"
    if result.explained.value >= CAUSE_FRACTION / 2:
        return f"this explains a part, {_share(result)}{doubt}"
    return "this does not explain the failure"


def conclusion_text(diagnosis: Diagnosis) -> str:
    """What a diagnosis found, in a sentence or two."""
    if diagnosis.answer == "holds":
        return (
            f"Nothing to diagnose: the transfer over {diagnosis.axis} holds from the base to the "
            "largest size, which are all that a diagnosis looks at."
        )
    if diagnosis.answer != "fails":
        todo = f" To settle it, {diagnosis.todo}." if diagnosis.todo else ""
        return f"Nothing to diagnose yet: the verdict on the transfer is still open.{todo}"
    best = diagnosis.results[0] if diagnosis.results else None
    if best is None or not best.is_cause:
        return "No ablation explains the failure."
    name, cause = best.ablation.name, best.ablation.cause
    if best.doubtful:
        return (
            "No ablation surely explains the failure: by its interval the likeliest may explain "
            f"nothing. It is {name}: {cause}. Without it, {_share(best)} seems gone."
        )
    return f"The likeliest cause ({name}): {cause}. Without it, {_share(best)} is gone."


def _share(result: AblationResult) -> str:
    return f"{100 * result.explained.value:.0f} % of the failure"


def _number(estimate: Estimate, form: str) -> str:
    value = estimate.value
    if math.isnan(value):
        return "unknown"
    return f"{value:{form}}" if math.isfinite(value) else "infinite"
