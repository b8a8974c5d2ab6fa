"""What an exporter is: by which rules its trainer trains, and the files that it is given.

An exporter does not list what its trainer cannot say. It says what the trainer makes of the files,
parameter by parameter and factor by factor, and `compare` finds the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, wraps
from textwrap import wrap
from typing import Any, ClassVar, ParamSpec, TypeVar

from sweeper.errors import BadInput, ConfigError, Keyword, printable
from sweeper.gone import gone
from sweeper.plan.factors import PlannedFactor
from sweeper.plan.plan import PlannedParameter, TransferPlan, built_optimizer
from sweeper.records import check_type
from sweeper.registry import TARGET, build_plugin, import_plugin, name_classes
from sweeper.scaling.spec import WRAPPERS, Role, layer_of, with_layer
from sweeper.schedule import OWN

P = ParamSpec("P")
T = TypeVar("T")


def once_a_plan(function: Callable[P, T]) -> Callable[P, T]:
    """Remember the last answer for the same objects: it is asked for each of many parameters."""
    # By identity: to compare or hash two plans would cost more than most answers.
    last: list[tuple[tuple[Any, ...], T]] = []

    @wraps(function)
    def remembered(*args: P.args, **named: P.kwargs) -> T:
        arguments: tuple[Any, ...] = (*args, *named.values())
        if not last or not all(a is b for a, b in zip(last[0][0], arguments, strict=True)):
            last[:] = [(arguments, function(*args, **named))]
        return last[0][1]

    return remembered


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the trainer gives one parameter by the exported files.

    `weight_decay` is the share of the weight that one step removes at the schedule's peak.
    `forward` is the factor by which the trainer's own forward pass multiplies the parameter. None:
    the files do not say it, and the trainer's own value stays.
    """

    lr: float
    weight_decay: float
    eps: float | None
    init_std: float | None
    forward: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """A trainer that takes groups by name, sets all weights, and has a plain forward pass.

    Another trainer overrides what differs. `trainer` is its name for people, `optimizers` its names
    for ours (None: any optimizer of torch). `freezes`: whether the files can keep a parameter from
    being trained. `two_optimizers`: whether Muon and AdamW can share the parameters. `plain_sgd`:
    whether SGD is torch's, whose decay goes through the momentum, and without Nesterov's step. The
    fields of a subclass are its options.
    """

    trainer: ClassVar[str]
    template: ClassVar[str] = ""
    """The template in the folder `templates`; its file is plan_TEMPLATE."""
    comment: ClassVar[str] = ""
    """What begins a line of the header; nothing inside a docstring."""
    optimizers: ClassVar[Mapping[str, str] | None] = None
    freezes: ClassVar[bool] = True
    two_optimizers: ClassVar[bool] = False
    plain_sgd: ClassVar[bool] = False
    own_model: ClassVar[bool] = False
    """Whether it trains the study's own model, whose code multiplies as it did."""
    schedules: ClassVar[Mapping[str, str]] = {}
    """The trainer's words for our schedules: by name, wsd with its shape, and "linear to 0"."""
    schedule_note: ClassVar[str] = ""
    """How they differ from ours, where they do."""

    def has_own_factors(self, plan: TransferPlan) -> bool:
        """Whether its model multiplies by itself as the study's does."""
        return self.own_model

    def setting(self, plan: TransferPlan, parameter: PlannedParameter) -> Setting:
        """The trainer's numbers for a trained parameter; here as planned."""
        return as_planned(parameter)

    def applied(self, plan: TransferPlan, factor: PlannedFactor) -> float:
        """The value that the trainer's forward pass has for a factor; here a plain model's."""
        return factor.usual

    def values(self, plan: TransferPlan) -> dict[str, Any]:
        """What the template names of the plan, beside what `render` gives to all."""
        raise NotImplementedError

    def files(self, plan: TransferPlan, header: str) -> dict[str, str]:
        """The texts of the export by the names of their files, `header` in each that can."""
        return {f"plan_{self.template}": render(self.template, plan, header, self.values(plan))}


def schedule_lines(plan: TransferPlan, exporter: Exporter) -> Iterator[str]:
    """The plan's schedule in the trainer's words; or that it has none such."""
    record = plan.source.get("schedule")
    if record == OWN:
        yield (
            "Schedule (LEFT TO YOU): the study's command takes none, so it is the script's own and "
            "not known here: write it as one factor on the learning rates of all groups."
        )
    if not isinstance(record, Mapping):
        return
    # A schedule of the user's own names none; it may do anything from the end of the warm-up on.
    numbers = {"decay_start": record.get("warmup"), **record}
    steps, warmup, final, start = (
        check_type(f"source.schedule.{key}", numbers.get(key), float | int)
        for key in ("steps", "warmup", "final_lr", "decay_start")
    )
    decay = steps - start
    name = " ".join(str(record[key]) for key in ("name", "shape") if key in record)
    yield (
        f"Schedule: {name}, {steps} steps, warm-up over the first {warmup}, decay over the last "
        f"{decay}, to {final:g} of the peak."
    )
    text = exporter.schedules.get(f"{name} to 0") if final == 0 else None
    if text := text or exporter.schedules.get(name):
        values = {"steps": steps, "warmup": warmup, "final": final, "start": start}
        values |= {"decay": decay, "share": decay / steps, "span": max(1, decay - 1)}
        yield f"In {exporter.trainer}{exporter.schedule_note}: {text.format(**values)}"
    else:
        yield (
            f"{exporter.trainer} has no such schedule: write it as one factor on the learning "
            "rates of all groups."
        )


def for_trainer(plan: TransferPlan, exporter: Exporter) -> TransferPlan:
    """The plan of what `exporter`'s trainer has to do.

    The study's model multiplies by numbers of its own code, beside which the plan's factors stand.
    A model of the trainer's does not: its factors are the products, and what is usual of q k^T is
    head size^-1/2 and not what the study's model does.
    """
    if exporter.has_own_factors(plan):
        return plan
    factors = []
    for factor in plan.factors or ():
        usual = factor.usual
        if (factor.kind, factor.factor) == ("attention", "logit"):
            usual = factor.head_size**-0.5
        value = factor.value * (factor.own or 1.0)
        factors.append(replace(factor, value=value, usual=usual, own=factor.own and 1.0))
    head = head_of(plan)
    own = plan.own_factors.get(head.name, 1.0) if head else 1.0
    parameters = tuple(_times(p, own) if p is head else p for p in plan.parameters)
    return replace(
        plan,
        factors=None if plan.factors is None else tuple(factors),
        parameters=parameters,
        own_factors={n: f for n, f in plan.own_factors.items() if head is None or n != head.name},
    )


def _times(parameter: PlannedParameter, own: float) -> PlannedParameter:
    target = parameter.target
    both = (target.multiplier * own, target.backward_multiplier * own)
    return replace(
        parameter, target=replace(target, multiplier=both[0], backward_multiplier=both[1])
    )


def own_lines(plan: TransferPlan) -> Iterator[str]:
    """What the study's model multiplies by itself, and a model of the trainer's does not."""
    groups: dict[tuple[str, float], list[str]] = {}
    for name, value in plan.own_factors.items():
        groups.setdefault((with_layer(name, "*"), value), []).append(name)
    for (pattern, value), names in groups.items():
        where = pattern if len(names) > 1 else names[0]
        yield f"the output of {where} (or a part of it) times {value:.6g}"


def as_planned(parameter: PlannedParameter, forward: float = 1.0) -> Setting:
    """The setting that the plan asks for, where the forward pass has the factor `forward`."""
    wanted = parameter.absorbed(forward)
    return Setting(
        lr=wanted.lr,
        weight_decay=wanted.weight_decay,
        eps=wanted.eps,
        init_std=wanted.init_std,
        forward=forward,
    )


def trained(plan: TransferPlan) -> list[PlannedParameter]:
    """The parameters that are not frozen."""
    return [parameter for parameter in plan.parameters if not parameter.frozen]


@once_a_plan
def first_hidden(plan: TransferPlan) -> PlannedParameter:
    """The first trained hidden matrix; the first parameter where there is none."""
    matrices = (p for p in trained(plan) if p.role == Role.HIDDEN and len(p.shape) > 1)
    return next(matrices, plan.parameters[0])


@once_a_plan
def head_of(plan: TransferPlan) -> PlannedParameter | None:
    """The matrix outside of layers that gives the logits; None where it is the embedding's."""
    # Of several outside of layers the last: models end with their head.
    heads = [p for p in trained(plan) if p.role == Role.READOUT and layer_of(p.name) is None]
    return heads[-1] if heads else None


@once_a_plan
def table_of(plan: TransferPlan) -> PlannedParameter | None:
    """The first embedding, of tokens; None without one."""
    return next((p for p in trained(plan) if is_table(p)), None)


def is_table(parameter: PlannedParameter) -> bool:
    """Whether a trainer's factor of the embedding is one of this parameter."""
    return parameter.role == Role.EMBEDDING and layer_of(parameter.name) is None


def has_words(plan: TransferPlan) -> bool:
    """Whether rows of a table [words, width] are looked up: what is fed by arrays has none."""
    return any(
        p.role == Role.EMBEDDING and p.shape == (p.fan_in, p.fan_out) for p in plan.parameters
    )


def rows_multiplier(plan: TransferPlan) -> float:
    """The plan's factor of the embedding's rows."""
    table = table_of(plan)
    return table.target.multiplier if table else 1.0


def logits_multiplier(plan: TransferPlan) -> float:
    """The plan's factor of the logits beside weights without one, the loss's in it.

    The plan's factor of a tied head multiplies weights that have the factor of the rows in them;
    a trainer's forward pass gives that to the rows alone, so here the head gets it too.
    """
    head, loss = head_of(plan), value_of(plan, "loss", "logit")
    if head is not None:
        return head.target.multiplier * loss
    return value_of(plan, "tied_readout", "output") * rows_multiplier(plan) * loss


def factors_of(plan: TransferPlan, kind: str, factor: str) -> Iterator[PlannedFactor]:
    """Every factor of a kind of operation."""
    return (f for f in plan.factors or () if (f.kind, f.factor) == (kind, factor))


def value_of(plan: TransferPlan, kind: str, factor: str, otherwise: float = 1.0) -> float:
    """The value of the first factor of a kind, or `otherwise`."""
    return next((match.value for match in factors_of(plan, kind, factor)), otherwise)


@once_a_plan
def optimizer_settings(plan: TransferPlan) -> dict[str, float | bool]:
    """The optimizer's settings beside those of the groups, such as betas, as they are used."""
    return dict(plan.optimizer_settings())


@once_a_plan
def optimizer_choices(plan: TransferPlan) -> dict[str, Any]:
    """How the optimizer steps beside its settings, such as nesterov; not what is off."""
    if plan.optimizer is None:
        return {}
    optimizer: Any = built_optimizer(plan.optimizer)
    if not is_dataclass(optimizer):
        return {}
    numbers = {"eps", "weight_decay", *optimizer_settings(plan)}
    choices = {field.name: getattr(optimizer, field.name) for field in fields(optimizer)}
    return {name: value for name, value in choices.items() if name not in numbers and value}


def optimizer_name(plan: TransferPlan) -> str:
    """The optimizer's name; adamw where a plan does not say."""
    return plan.optimizer.name if plan.optimizer else "adamw"


WIDTH = 84


def render(template: str, plan: TransferPlan, header: str, values: Mapping[str, Any]) -> str:
    """The text of `templates/TEMPLATE.j2`; what it names and is not given is an error."""
    settings = optimizer_settings(plan)
    common = {
        "header": header,
        "seed": int(plan.source.get("seed", 0)),  # the one that `plan.init_` takes by default
        "wrappers": WRAPPERS,
        "eps": plan.has_eps,
        "betas": (settings.get("beta1", 0.9), settings.get("beta2", 0.999)),
    }
    return str(_environment().get_template(f"{template}.j2").render({**common, **values}))


def quoted_lines(names: Sequence[str]) -> list[str]:
    """Names as one text of Python, on as many lines as it takes, with a comma behind the last."""
    parts = wrap(" ".join(names), WIDTH, break_on_hyphens=False, break_long_words=False)
    return [f'"{part} "' for part in parts[:-1]] + [f'"{parts[-1]}",']


def one_line(text: str) -> str:
    """A text of a plan, which may be anybody's, for a comment: no end of a line is in it."""
    return " ".join(printable(text).split())


@cache
def _environment() -> Any:
    """Texts for programs, so nothing is escaped. `py` writes values exactly."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sweeper.export"),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters.update({"py": repr, "line": one_line})
    environment.globals["lines"] = quoted_lines
    return environment


EXPORTERS: Mapping[str, str] = {
    "hf": "sweeper.export.transformers.Hf",
    "megatron": "sweeper.export.megatron.Megatron",
    "pytorch": "sweeper.export.groups.Pytorch",
    "torchtitan": "sweeper.export.groups.Torchtitan",
}


def build_exporter(name: str | None, options: Mapping[str, Any]) -> Exporter:
    """The exporter of a trainer, or of the class at a dotted path, with its options.

    ConfigError for an unknown name, and for an option that it does not have or refuses; BadInput
    without a name.
    """
    if name is None:
        raise BadInput(
            Keyword("to", ...),
            f" names the trainer: {', '.join(EXPORTERS)}, or a class as package.module.Class. "
            "A training loop of your own takes ",
            Keyword("to", "pytorch"),
        )
    if name not in EXPORTERS and "." not in name:
        allowed = f"one of {', '.join(EXPORTERS)}, or a class as package.module.Class"
        raise ConfigError(Keyword("to"), name, allowed + gone(f"export to={name}"))
    target = EXPORTERS.get(name, name)
    name_classes([target])
    try:
        kind = import_plugin(target)
    except ConfigError as error:
        raise error.renamed(Keyword("to")) from error
    # A class without a trainer's name is a beginning of one, as Exporter itself.
    if not (isinstance(kind, type) and issubclass(kind, Exporter) and hasattr(kind, "trainer")):
        raise ConfigError(Keyword("to"), name, "a subclass of sweeper.export.exporter.Exporter")
    exporter: Exporter = build_plugin({TARGET: target, **options})
    return exporter
