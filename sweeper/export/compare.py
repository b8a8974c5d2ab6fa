"""What a trainer cannot say of a plan, by name: where its own rules come to other numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose

from sweeper.export.exporter import (
    Exporter,
    Setting,
    by_atan2,
    head_of,
    in_gauge,
    is_head,
    optimizer_choices,
    optimizer_name,
    optimizer_settings,
    takes_eps,
    trained,
)
from sweeper.scaling.prescription import AbsorbedParam
from sweeper.scaling.spec import NUMBER
from sweeper.transfer.plan import PlannedParameter, TransferPlan

NAMES: Mapping[str, str] = {
    "optimizer": "another optimizer than the plan's",
    "frozen": "parameters that are to stay as they are",
    "tied": "a head of its own beside the embedding",
    "embedding_lr": "the learning rate of embeddings",
    "hidden_lr": "the learning rate of hidden matrices",
    "readout_lr": "the learning rate of the head",
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

FACTOR_NAMES: Mapping[tuple[str, str], str] = {
    ("attention", "logit"): "attention",
    ("attention", "output"): "attention_output",
    ("residual", "branch"): "residual",
    ("residual", "skip"): "skip",
    ("tied_readout", "output"): "output",
    ("loss", "logit"): "loss",
    ("gated_silu", "alpha"): "gate",
    ("gated_silu", "output"): "gate_output",
}
CLOSE = 1e-9
"""Numbers that differ by a smaller share are equal: flags and fields are written exactly."""
MAX_DETAILS = 6


@dataclass(frozen=True)
class Difference:
    """Of one parameter or operation: what the plan asks, and what it gets.

    Nothing is `asked` in numbers where it is a matter of yes or no; None is `given` where the
    trainer's own value is not known.
    """

    name: str
    what: str
    asked: float | None
    given: float | None


@dataclass(frozen=True, kw_only=True)
class Lack:
    """One thing that a trainer cannot say, with everything in the plan that it concerns."""

    name: str
    differences: tuple[Difference, ...]

    def details(self) -> list[str]:
        """A line for each pair of numbers, equal ones together."""
        counted: dict[tuple[str, float | None, float | None], int] = {}
        for one in self.differences:
            key = (one.what, one.asked, one.given)
            counted[key] = counted.get(key, 0) + 1
        lines = [_line(*key, count) for key, count in counted.items()]
        if len(lines) <= MAX_DETAILS:
            return lines
        return [*lines[:MAX_DETAILS], f"and {len(lines) - MAX_DETAILS} more"]

    def __str__(self) -> str:
        """The name, what it means, and the details, on one line."""
        return f"{self.name}, {NAMES[self.name]}: {'; '.join(self.details())}"


def lacking(plan: TransferPlan, exporter: Exporter) -> tuple[Lack, ...]:
    """Everything that `exporter`'s trainer would do otherwise than the plan, in `NAMES`' order."""
    found: dict[str, list[Difference]] = {}
    for one in (*_whole(plan, exporter), *_parameters(plan, exporter), *_factors(plan, exporter)):
        found.setdefault(one.name, []).append(one)
    return tuple(Lack(name=name, differences=tuple(found[name])) for name in NAMES if name in found)


def _whole(plan: TransferPlan, exporter: Exporter) -> Iterator[Difference]:
    """Of the optimizer, and of what is not to be trained."""
    name, known = optimizer_name(plan), exporter.optimizers
    if by_atan2(plan):
        yield Difference("optimizer", f"{name} by atan2", None, None)
    elif known is not None and name not in known:
        yield Difference("optimizer", f"{name}; it has {', '.join(known)}", None, None)
    elif name == "sgd" and exporter.plain_sgd:
        yield from _plain_sgd(plan)
    for parameter in plan.parameters:
        if parameter.frozen and not exporter.freezes:
            yield Difference("frozen", parameter.name, None, None)
    if exporter.ties and (head := head_of(plan)) is not None:
        yield Difference("tied", head.name, None, None)


def _plain_sgd(plan: TransferPlan) -> Iterator[Difference]:
    """What torch's SGD does otherwise, whatever its settings."""
    if optimizer_choices(plan).get("nesterov"):
        yield Difference("optimizer", "sgd with Nesterov's momentum", None, None)
    decays = any(parameter.target.weight_decay for parameter in trained(plan))
    if decays and optimizer_settings(plan).get("momentum"):
        yield Difference("weight_decay", "sgd's decay goes through its momentum", None, None)


def _parameters(plan: TransferPlan, exporter: Exporter) -> Iterator[Difference]:
    eps = takes_eps(plan)
    for parameter in trained(plan):
        given = exporter.setting(plan, parameter)
        wanted = in_gauge(parameter, given.forward)
        differences = list(_settings(parameter, wanted, given, eps=eps))
        multiplier = parameter.target.multiplier
        theirs = given.forward != 1 and not _close(given.forward, multiplier)
        if differences and theirs and is_head(plan, parameter):
            # What a wrong factor of the logits asks of all the rest says nothing by itself.
            differences = [Difference("output", parameter.name, multiplier, given.forward)]
        yield from differences
        backward = parameter.target.backward_multiplier
        if not _close(backward, multiplier):
            what = f"the gradient to the input of {parameter.name}"
            yield Difference("backward", what, backward / multiplier, 1.0)


def _settings(
    parameter: PlannedParameter, wanted: AbsorbedParam, given: Setting, *, eps: bool
) -> Iterator[Difference]:
    """Learning rate, eps, decay and init of one parameter."""
    role = parameter.role
    pairs: list[tuple[str, float, float | None]] = [
        (f"{role}_lr", wanted.lr, given.lr),
        ("weight_decay", wanted.weight_decay, given.weight_decay),
    ]
    if eps:
        pairs.append(("eps", wanted.eps, given.eps))
    if wanted.init == "normal":
        pairs.append(("init", wanted.init_std, given.init_std))
    for name, asked, value in pairs:
        if value is None or not _close(asked, value):
            yield Difference(name, f"{role} parameters", asked, value)


def _factors(plan: TransferPlan, exporter: Exporter) -> Iterator[Difference]:
    for factor in plan.factors or ():
        given = exporter.applied(plan, factor)
        if not _close(factor.value, given):
            name = FACTOR_NAMES.get((factor.kind, factor.factor), factor.kind)
            yield Difference(name, _kind_of_place(factor.where), factor.value, given)


def _kind_of_place(where: str) -> str:
    """The operation without its layer's number, so that layers are counted together."""
    return NUMBER.sub("*", where)


def _close(a: float, b: float) -> bool:
    return isclose(a, b, rel_tol=CLOSE)


def _line(what: str, asked: float | None, given: float | None, count: int) -> str:
    """What differs, how often, and by how much."""
    many = f" ({count})" if count > 1 else ""
    if asked is None:
        return f"{what}{many}"
    if given is None:
        return f"{what}{many}: {asked:.6g} asked, and the trainer's own stays"
    ratio = f", factor {asked / given:.6g}" if given else ""
    return f"{what}{many}: {asked:.6g} asked, {given:.6g} given{ratio}"
