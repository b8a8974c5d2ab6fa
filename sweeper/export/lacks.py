"""What a trainer cannot say of a plan, by name, and what every exported file says of itself.

Where a trainer's rules come to other numbers than the plan, it lacks something.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from textwrap import wrap

from sweeper.export.exporter import (
    Exporter,
    head_of,
    one_line,
    optimizer_choices,
    optimizer_name,
    optimizer_settings,
    own_lines,
    schedule_lines,
    trained,
)
from sweeper.plan.plan import TransferPlan, hps_text, named_sizes, spread, value_text
from sweeper.scaling.spec import NUMBER, Update

NAMES: Mapping[str, str] = {
    "optimizer": "another optimizer than the plan's",
    "frozen": "parameters that are to stay as they are",
    "embedding_lr": "the learning rate of embeddings",
    "hidden_lr": "the learning rate of hidden matrices",
    "readout_lr": "the learning rate of the head",
    "down_lr": "the learning rate of projections down, within the body",
    "up_lr": "the learning rate of projections up, within the body",
    "vector_lr": "the learning rate of gains and biases",
    "fixed_lr": "the learning rate of parameters that do not grow",
    "eps": "the optimizer's eps of each parameter",
    "weight_decay": "the share of each weight that a step removes",
    "init": "the standard deviation of initial values",
    "attention": "the factor of q k^T",
    "attention_output": "the factor of attention's output",
    "residual": "the factor of residual branches",
    "skip": "the factor of the skipped stream",
    "output": "the factor of the logits",
    "loss": "the factor of the logits within the loss",
    "gate": "the factor within the gated SiLU's sigmoid",
    "gate_output": "the factor of the gated SiLU's output",
    "backward": "gradients that are scaled otherwise than activations",
}
"""What may be missing, by the name that `--accept` takes."""

FACTORS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("attention", "logit"): ("attention", "F.scaled_dot_product_attention(q, k, v, scale={})"),
    ("attention", "output"): ("attention_output", "{} * F.scaled_dot_product_attention(...)"),
    ("residual", "branch"): ("residual", "x + {} * branch(x)"),
    ("residual", "skip"): ("skip", "{} * x + branch(x)"),
    ("tied_readout", "output"): ("output", "logits = {} * head(x)"),
    ("loss", "logit"): ("loss", "F.cross_entropy({} * logits, targets)"),
    ("gated_silu", "alpha"): ("gate", "x * torch.sigmoid({} * x) in place of F.silu(x)"),
    ("gated_silu", "output"): ("gate_output", "{} * F.silu(gate) * up"),
}
"""The name of an operation's factor, and the line of a model that applies it."""
EDITS = dict(FACTORS.values())
CLOSE = 1e-9
"""Numbers that differ by a smaller share are equal: flags and fields are written exactly."""
MAX_DETAILS = 6
NOT_RECORDED = "the plan does not record what the study's model multiplies its logits by"


@dataclass(frozen=True)
class Difference:
    """What the plan asks of one parameter or operation, and what the trainer gives it.

    Nothing is `asked` in numbers where it is a matter of yes or no; `got` is None where the
    trainer's own value is not known.
    """

    name: str
    what: str
    asked: float | None
    got: float | None


@dataclass(frozen=True, kw_only=True)
class Lack:
    """One thing that a trainer cannot say, with everything in the plan that it concerns."""

    name: str
    differences: tuple[Difference, ...]

    def details(self) -> list[str]:
        """A line for each pair of numbers, equal ones together."""
        counted: dict[tuple[str, float | None, float | None], int] = {}
        for difference in self.differences:
            key = (difference.what, difference.asked, difference.got)
            counted[key] = counted.get(key, 0) + 1
        lines = [_line(*key, count) for key, count in counted.items()]
        if len(lines) <= MAX_DETAILS:
            return lines
        return [*lines[:MAX_DETAILS], f"and {len(lines) - MAX_DETAILS} more"]

    def edit(self) -> str:
        """The line of a model's code that does it; "" for what is no operation's factor."""
        places: dict[str, list[str]] = {}
        for each in self.differences if self.name in EDITS else ():
            if each.asked is not None:
                line = EDITS[self.name].format(f"{each.asked:.6g}")
                places.setdefault(line, []).append(each.what)
        lines = [f"{line} ({_some([*dict.fromkeys(w)])})" for line, w in places.items()]
        more = [f"and {len(lines) - MAX_DETAILS} more"] * (len(lines) > MAX_DETAILS)
        return "; ".join([*lines[:MAX_DETAILS], *more])

    def __str__(self) -> str:
        return f"{self.name}, {NAMES[self.name]}: {'; '.join(self.details())}"


def lacking(plan: TransferPlan, exporter: Exporter) -> tuple[Lack, ...]:
    """Everything that `exporter`'s trainer would do otherwise than the plan, in `NAMES`' order."""
    by_name: dict[str, list[Difference]] = {}
    for differences in (_of_optimizer, _of_parameters, _of_factors):
        for difference in differences(plan, exporter):
            by_name.setdefault(difference.name, []).append(difference)
    return tuple(Lack(name=n, differences=tuple(by_name[n])) for n in NAMES if n in by_name)


def _of_optimizer(plan: TransferPlan, exporter: Exporter) -> Iterator[Difference]:
    name, names = optimizer_name(plan), exporter.optimizers
    if plan.optimizer and plan.optimizer.arguments.get("atan2"):
        yield Difference("optimizer", f"{name} by atan2", None, None)
    elif names is not None and name not in names:
        yield Difference("optimizer", f"{name}; it has {', '.join(names)}", None, None)
    elif any(Update(p.update).holds_norm for p in trained(plan)):
        what = f"{name} for weights of fixed norm, which torch has no optimizer for"
        yield Difference("optimizer", what, None, None)
    elif name == "muon" and not exporter.two_optimizers:
        yield Difference("optimizer", "muon for matrices, beside AdamW for all else", None, None)
    elif name == "muon":
        for option in sorted({"normuon", "split"} & optimizer_choices(plan).keys()):
            yield Difference("optimizer", f"muon with {option}, which torch's has not", None, None)
        for parameter in trained(plan):
            if parameter.update == Update.ORTHOGONAL and len(parameter.shape) > 2:
                what = f"muon of {len(parameter.shape)} dimensions, where torch's takes two: "
                yield Difference("optimizer", what + parameter.name, None, None)
    elif name == "sgd" and exporter.plain_sgd:
        # torch's SGD adds the decay to the gradient, whatever its settings.
        if optimizer_choices(plan).get("nesterov"):
            yield Difference("optimizer", "sgd with Nesterov's momentum", None, None)
        decays = any(parameter.target.weight_decay for parameter in trained(plan))
        if decays and optimizer_settings(plan).get("momentum"):
            yield Difference("weight_decay", "sgd's decay goes through its momentum", None, None)
    for parameter in plan.parameters:
        if parameter.frozen and not exporter.freezes:
            yield Difference("frozen", parameter.name, None, None)


def _of_parameters(plan: TransferPlan, exporter: Exporter) -> Iterator[Difference]:
    for parameter in trained(plan):
        role, setting = parameter.role, exporter.setting(plan, parameter)
        # The trainer multiplies by its own factor: what the plan asks is written in that gauge.
        wanted = parameter.absorbed(setting.forward)
        pairs: list[tuple[str, float, float | None]] = [
            (f"{role}_lr", wanted.lr, setting.lr),
            ("weight_decay", wanted.weight_decay, setting.weight_decay),
        ]
        if plan.has_eps:  # where it plays no part, no difference of it is one
            pairs.append(("eps", wanted.eps, setting.eps))
        if wanted.init == "normal":
            pairs.append(("init", wanted.init_std, setting.init_std))
        if wanted.init == "norm":
            what = f"{parameter.name} starts as the norm of {parameter.norm_of}"
            yield Difference("init", what, None, None)
        differences = [
            Difference(name, f"{role} parameters", asked, got)
            for name, asked, got in pairs
            # None: the trainer's own value stays, which nobody here knows.
            if got is None or not _close(asked, got)
        ]
        multiplier = parameter.target.multiplier
        theirs = setting.forward != 1 and not _close(setting.forward, multiplier)
        if differences and theirs and parameter is head_of(plan):
            # In the gauge of a wrong factor every other number is wrong with it: name the cause.
            differences = [Difference("output", parameter.name, multiplier, setting.forward)]
        yield from differences
        backward = parameter.target.backward_multiplier
        if not _close(backward, multiplier):
            what = f"the gradient to the input of {parameter.name}"
            yield Difference("backward", what, backward / multiplier, 1.0)


def _of_factors(plan: TransferPlan, exporter: Exporter) -> Iterator[Difference]:
    """Differences of operations, those of all layers under one name so that they are counted."""
    own_model = exporter.has_own_factors(plan)
    for factor in plan.factors or ():
        # A number would be a guess: the model may have any part of the plan's factor itself.
        if factor.kind == "tied_readout" and factor.own is None and not own_model:
            yield Difference("output", f"{factor.where}: {NOT_RECORDED}", None, None)
            continue
        applied = exporter.applied(plan, factor)
        if not _close(factor.value, applied):
            name, _ = FACTORS.get((factor.kind, factor.factor), (factor.kind, ""))
            yield Difference(name, NUMBER.sub("*", factor.where), factor.value, applied)


def _close(a: float, b: float) -> bool:
    return isclose(a, b, rel_tol=CLOSE)


def _line(what: str, asked: float | None, got: float | None, count: int) -> str:
    many = f" ({count})" if count > 1 else ""
    if asked is None:
        return f"{what}{many}"
    if got is None:
        return f"{what}{many}: {asked:.6g} asked, and the trainer's own stays"
    ratio = f", factor {asked / got:.6g}" if got else ""
    return f"{what}{many}: {asked:.6g} asked, {got:.6g} given{ratio}"


WIDTH = 96


def is_export(text: str) -> bool:
    """Whether a text says that it is an export; a comment's sign may stand between its words."""
    return bool(re.search(r"written\W+by\W+`sweeper\W+export`", text))


def header(
    plan: TransferPlan, exporter: Exporter, lacks: Sequence[Lack], accepted: Collection[str]
) -> str:
    """The top of an export, behind the exporter's sign of a comment; no date: files compare."""
    study = plan.source.get("study")
    source = f"the study {study}" if study else str(plan.source.get("made_by", "a plan by hand"))
    lines = [
        f"A plan for {exporter.trainer}, from {source}; written by `sweeper export`.",
        f"Tuned at {named_sizes(plan, 'base')}; for {named_sizes(plan, 'target')}.",
        *("", *_assumptions(plan, exporter), ""),
        *([*plan.law.lines(), ""] if plan.law else []),
        *_unseen(plan),
    ]
    if not exporter.has_own_factors(plan) and (own := [*own_lines(plan)]):
        lines.append("The study's model multiplies by itself, and yours must too:")
        lines += [f"- {line}" for line in own]
    if lacks:
        lines.append(f"What {exporter.trainer} cannot express, and does otherwise:")
        for lack in lacks:
            state = "accepted" if lack.name in accepted else "LEFT TO YOU"
            lines.append(f"- {lack} ({state})")
            lines += [f"- the edit: {edit}"] if (edit := lack.edit()) else []
    else:
        lines.append(f"{exporter.trainer} can express all of it.")
    wrapped: list[str] = []
    for line in lines:
        indent = "  " if line.startswith("- ") else ""
        parts = wrap(one_line(line), WIDTH, subsequent_indent=indent, break_on_hyphens=False)
        wrapped += parts or [""]
    text = "\n".join(f"{exporter.comment}{line}".rstrip() for line in wrapped)
    # Without a sign of a comment it stands in a docstring, which a quote could end.
    return text if exporter.comment else text.replace("\\", "\\\\").replace('"', "'")


def _assumptions(plan: TransferPlan, exporter: Exporter) -> Iterator[str]:
    settings = [f"{k} {value_text(v)}" for k, v in optimizer_settings(plan).items()]
    settings += [k if v is True else f"{k} {v}" for k, v in optimizer_choices(plan).items()]
    optimizer = optimizer_name(plan) + (f" ({', '.join(settings)})" if settings else "")
    yield f"Parameterization: {plan.parameterization} with {optimizer}; {hps_text(plan)}."
    # Of the base, as the study tuned it: at the target each parameter has numbers of its own.
    bases = [parameter.base for parameter in plan.parameters if not parameter.frozen]
    eps = spread((base.eps for base in bases), ".6g")
    assumed = f"Assumes eps {eps} at the base; l" if plan.has_eps else "L"
    yield f"{assumed}earning rates are a schedule's peaks."
    yield from schedule_lines(plan, exporter)
    decays = spread((base.weight_decay for base in bases), ".6g")
    yield (
        f"Weight decay is independent of the learning rate: {decays} of a weight a step at "
        "the base. Where an optimizer removes lr x weight_decay, weight_decay is that over lr."
    )
    yield "Gradient clipping is no part of the plan: at one norm for all widths it undoes scales."


def _unseen(plan: TransferPlan) -> Iterator[str]:
    seen = {factor.kind for factor in plan.factors or ()}
    yield from (f"The plan has no {k}." for k in ("attention", "residual") if k not in seen)


def _some(places: Sequence[str]) -> str:
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return ", ".join(places[:3]) + more
