"""What stands at the top of every exported file: where it is from, and what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from math import isclose
from textwrap import wrap

from sweeper.export.compare import Lack
from sweeper.export.exporter import (
    Exporter,
    head_of,
    optimizer_choices,
    optimizer_name,
    optimizer_settings,
    rows_multiplier,
    table_of,
)
from sweeper.scaling.spec import NUMBER
from sweeper.transfer.plan import TransferPlan
from sweeper.transfer.plan_table import hps_text, named_sizes, value_text

WIDTH = 96
ALWAYS = (("attention", "logit"), ("residual", "branch"), ("tied_readout", "output"))
"""Factors that are told also where they are the usual ones."""
FACTOR_WORDS = {
    ("attention", "logit"): "attention: q k^T times {}",
    ("attention", "output"): "attention: its output times {}",
    ("residual", "branch"): "residual branches: their outputs times {}",
    ("residual", "skip"): "residual branches: the skipped stream times {}",
    ("tied_readout", "output"): "output: logits of the tied head times {}",
    ("loss", "logit"): "loss: logits times {}",
    ("gated_silu", "alpha"): "gated SiLU: the sigmoid's argument times {}",
    ("gated_silu", "output"): "gated SiLU: its output times {}",
}


def is_export(text: str) -> bool:
    """Whether a file's text says that it is an export; lines may break anywhere."""
    return bool(re.search(r"written\W+by\W+`sweeper\W+export`", text))


def header(
    plan: TransferPlan, exporter: Exporter, lacks: Sequence[Lack], accepted: Collection[str]
) -> str:
    """All lines, each behind the exporter's sign of a comment; no date, so that files compare."""
    law = [*plan.law.lines(), ""] if plan.law else []
    lines = [*_origin(plan, exporter), "", *_assumptions(plan), "", *law, *_forward(plan), ""]
    lines += _lacks(exporter, lacks, accepted)
    wrapped = [part for line in lines for part in _wrapped(line)]
    text = "\n".join(f"{exporter.comment}{line}".rstrip() for line in wrapped)
    # Without a sign of a comment it stands in a docstring.
    return text if exporter.comment else text.replace("\\", "\\\\").replace('"', "'")


def _wrapped(line: str) -> list[str]:
    indent = "  " if line.startswith("- ") else ""
    return wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _origin(plan: TransferPlan, exporter: Exporter) -> Iterator[str]:
    study = plan.source.get("study")
    source = f"the study {study}" if study else str(plan.source.get("made_by", "a plan by hand"))
    yield f"A plan for {exporter.trainer}, from {source}; written by `sweeper export`."
    yield f"Tuned at {named_sizes(plan, 'base')}; for {named_sizes(plan, 'target')}."


def _assumptions(plan: TransferPlan) -> Iterator[str]:
    settings = [f"{k} {value_text(v)}" for k, v in optimizer_settings(plan).items()]
    settings += [k if v is True else f"{k} {v}" for k, v in optimizer_choices(plan).items()]
    optimizer = optimizer_name(plan) + (f" ({', '.join(settings)})" if settings else "")
    yield f"Scheme: {plan.parameterization} with {optimizer}; {hps_text(plan)}."
    bases = [parameter.base for parameter in plan.parameters if not parameter.frozen]
    eps = sorted({base.eps for base in bases})
    yield f"Assumes eps {_ends(eps)} at the base; learning rates are a schedule's peaks."
    decays = sorted({base.weight_decay for base in bases})
    yield (
        f"Weight decay is independent of the learning rate: {_ends(decays)} of a weight a step at "
        "the base. Where an optimizer removes lr x weight_decay, weight_decay is that over lr."
    )
    yield "Gradient clipping is no part of the plan: at one norm for all widths it undoes scales."


def _forward(plan: TransferPlan) -> Iterator[str]:
    """Attention, residual branches and output are always told, others where a plan has them."""
    yield "Factors of the forward pass:"
    told: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for one in plan.factors or ():
        told.setdefault((one.kind, one.factor), []).append((one.value, one.usual, one.where))
    for kind, nothing in (("attention", "logit"), ("residual", "branch")):
        if (kind, nothing) not in told:
            yield f"- {kind}: the plan has none"
    for key, members in told.items():
        if key not in ALWAYS and all(isclose(value, usual) for value, usual, _ in members):
            continue
        values, usual = sorted({m[0] for m in members}), sorted({m[1] for m in members})
        words = FACTOR_WORDS.get(key, f"{key[0]}: its {key[1]} times {{}}")
        text = words.format(_ends(values))
        places = list(dict.fromkeys(NUMBER.sub("*", m[2]) for m in members))
        yield f"- {text}, where a plain model has {_ends(usual)} ({_some(places)})"
    if head := head_of(plan):
        yield f"- output: logits times {head.target.multiplier:.6g}, a factor of {head.name}"
    if table := table_of(plan):
        yield f"- embedding: rows times {rows_multiplier(plan):.6g}, a factor of {table.name}"
    yield (
        "A factor of a weight is in its init, learning rate and eps, unless the trainer has a "
        "setting for it."
    )


def _lacks(exporter: Exporter, lacks: Sequence[Lack], accepted: Collection[str]) -> Iterator[str]:
    if not lacks:
        yield f"{exporter.trainer} can express all of it."
        return
    yield f"What {exporter.trainer} cannot express, and does otherwise:"
    for lack in lacks:
        yield f"- {lack}{' (accepted)' if lack.name in accepted else ''}"


def _ends(values: Sequence[float]) -> str:
    if not values:
        return "none"
    ends = [f"{value:.6g}" for value in (values[0], values[-1])]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _some(places: Sequence[str]) -> str:
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
