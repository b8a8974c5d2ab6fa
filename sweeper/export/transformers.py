"""transformers: fields of a config.json, and groups and initial weights for its Trainer.

Some families of models have multipliers in their configuration. A family writes the plan's into
fields and reads them back; what it has no field for reads back as the usual value. Sources: the
modeling files of transformers 5, and MiniCPM's own code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar

from sweeper.errors import ConfigError, MissingValue
from sweeper.export.exporter import (
    Exporter,
    Setting,
    as_planned,
    factors_of,
    has_words,
    head_of,
    is_table,
    logits_multiplier,
    once_a_plan,
    rows_multiplier,
    table_of,
    value_of,
)
from sweeper.export.groups import rows, torch_call
from sweeper.plan.factors import PlannedFactor
from sweeper.plan.plan import PlannedParameter, TransferPlan

Fields = Mapping[str, Any]
LARGEST = 2.0**32
"""Beyond any size or multiplier of a model, and its inverse below any: what is there is a slip."""


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """Factors of a forward pass: of rows, q k^T, outputs of each kind of branch, and logits."""

    embedding: float = 1.0
    attention: float
    attention_branch: float = 1.0
    ffn_branch: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Width, layers, and the size of a head."""

    width: int
    depth: int
    head_size: int

    @property
    def usual_attention(self) -> float:
        """The usual factor of q k^T, head size^-1/2."""
        return float(self.head_size**-0.5)


@dataclass(frozen=True, kw_only=True)
class Family:
    """`classes` are the models' names without their ending."""

    classes: tuple[str, ...]
    write: Callable[[Multipliers, Shape], dict[str, Any]]
    read: Callable[[Fields, Shape], Multipliers]


def _write_granite(m: Multipliers, shape: Shape) -> dict[str, Any]:
    """Logits are divided by `logits_scaling`; one factor serves both kinds of branches."""
    return {
        "embedding_multiplier": m.embedding,
        "attention_multiplier": m.attention,
        "residual_multiplier": m.attention_branch,
        "logits_scaling": 1 / m.logits,
    }


def _read_granite(fields: Fields, shape: Shape) -> Multipliers:
    branch = number(fields, "residual_multiplier", 1.0)
    return Multipliers(
        embedding=number(fields, "embedding_multiplier", 1.0),
        attention=number(fields, "attention_multiplier", 1.0),
        attention_branch=branch,
        ffn_branch=branch,
        logits=1 / number(fields, "logits_scaling", 1.0),
    )


def _write_hyperclovax(m: Multipliers, shape: Shape) -> dict[str, Any]:
    """Granite's fields, but logits are multiplied by `logits_scaling`, not divided."""
    return {**_write_granite(m, shape), "logits_scaling": m.logits}


def _read_hyperclovax(fields: Fields, shape: Shape) -> Multipliers:
    # Attention's field is null by default, and then the usual; Granite's default is 1.
    usual = {"attention_multiplier": shape.usual_attention}
    present = {name: value for name, value in fields.items() if value is not None}
    flipped = 1 / number(fields, "logits_scaling", 1.0)
    return _read_granite({**usual, **present, "logits_scaling": flipped}, shape)


def _write_minicpm(m: Multipliers, shape: Shape) -> dict[str, Any]:
    """dim_model_base is a whole number; attention has no field."""
    return {
        "scale_emb": m.embedding,
        "scale_depth": m.attention_branch * sqrt(shape.depth),
        "dim_model_base": max(1, round(m.logits * shape.width)),
    }


def _read_minicpm(fields: Fields, shape: Shape) -> Multipliers:
    """What is missing is MiniCPM's own, 12, 1.4 and 256; null is neutral."""
    usual = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, **fields}
    branch = number(usual, "scale_depth", sqrt(shape.depth)) / sqrt(shape.depth)
    return Multipliers(
        embedding=number(usual, "scale_emb", 1.0),
        attention=shape.usual_attention,
        attention_branch=branch,
        ffn_branch=branch,
        logits=number(usual, "dim_model_base", shape.width) / shape.width,
    )


_SSM_INPUTS = 5
"""Parts of the state space's input, each with a multiplier."""


def _write_falcon_h1(m: Multipliers, shape: Shape) -> dict[str, Any]:
    """Keys are multiplied; attention and state space are one branch, each with its factor."""
    return {
        "embedding_multiplier": m.embedding,
        "lm_head_multiplier": m.logits,
        "key_multiplier": m.attention / shape.usual_attention,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": m.attention_branch,
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": m.attention_branch,
        "ssm_multipliers": [1.0] * _SSM_INPUTS,
        "mlp_multipliers": [1.0, m.ffn_branch],
    }


def _read_falcon_h1(fields: Fields, shape: Shape) -> Multipliers:
    """What multiplies the input of attention is in q, in k and, through v, in the output."""
    # So q k^T has it squared, and the branch's output once. `mlp_multipliers`: gate, down.
    into = number(fields, "attention_in_multiplier", 1.0)
    pair = fields.get("mlp_multipliers") or (1.0, 1.0)
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ConfigError("mlp_multipliers", pair, "a list of 2 positive numbers")
    return Multipliers(
        embedding=number(fields, "embedding_multiplier", 1.0),
        attention=shape.usual_attention * number(fields, "key_multiplier", 1.0) * into**2,
        attention_branch=number(fields, "attention_out_multiplier", 1.0) * into,
        ffn_branch=number({"mlp_multipliers[1]": pair[1]}, "mlp_multipliers[1]", 1.0),
        logits=number(fields, "lm_head_multiplier", 1.0),
    )


FAMILIES: Mapping[str, Family] = {
    "granite": Family(classes=("Granite",), write=_write_granite, read=_read_granite),
    "granitemoe": Family(
        classes=("GraniteMoe", "GraniteMoeShared", "GraniteMoeHybrid"),
        write=_write_granite,
        read=_read_granite,
    ),
    "hyperclovax": Family(
        classes=("HyperCLOVAX",), write=_write_hyperclovax, read=_read_hyperclovax
    ),
    "minicpm3": Family(classes=("MiniCPM3",), write=_write_minicpm, read=_read_minicpm),
    "falcon_h1": Family(classes=("FalconH1",), write=_write_falcon_h1, read=_read_falcon_h1),
}


def family_of_class(model: str) -> str | None:
    """The family of a class such as GraniteForCausalLM, if it is one of these."""
    stem = model.removesuffix("ForCausalLM")
    return next((name for name, family in FAMILIES.items() if stem in family.classes), None)


def number(fields: Fields, name: str, otherwise: float) -> float:
    """A field as a number; `otherwise` where it is missing or null, ConfigError for another."""
    value = fields.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(name, value, "a positive number")
    if not 1 / LARGEST <= value <= LARGEST:
        raise ConfigError(name, value, "a number from 2^-32 to 2^32")
    return float(value)


OWN_FIELDS = "CONFIG counts in the fields that the study's model had of its own."
NO_FIELDS = (
    "It is taken that the model was tuned with neutral fields: others multiply those of CONFIG."
)


@dataclass(frozen=True, kw_only=True)
class Hf(Exporter):
    """`family` is one of `FAMILIES`; "" takes that of the study's own model.

    Multipliers of embedding and head stand in the fields, and the groups are those of weights
    without them. Fields that the study's model had of its own stay in force.
    """

    trainer: ClassVar[str] = "transformers"
    template: ClassVar[str] = "hf.py"
    schedules: ClassVar[Mapping[str, str]] = {
        "constant": 'lr_scheduler_type="constant_with_warmup", warmup_steps={warmup}',
        "linear to 0": 'lr_scheduler_type="linear", warmup_steps={warmup}',
        "cosine": 'lr_scheduler_type="cosine_with_min_lr", warmup_steps={warmup}, '
        'lr_scheduler_kwargs={{"min_lr_rate": {final}}}',
        **{
            f"wsd {shape}": 'lr_scheduler_type="warmup_stable_decay", warmup_steps={warmup}, '
            f'lr_scheduler_kwargs={{{{"num_decay_steps": {{decay}}, "decay_type": "{shape}", '
            '"min_lr_ratio": {final}}}'
            for shape in ("linear", "1-sqrt")
        },
    }
    schedule_note: ClassVar[str] = (
        ", a step later than here (at the first step its warm-up has not begun)"
    )
    family: str = ""

    def __post_init__(self) -> None:
        if self.family and self.family not in FAMILIES:
            raise ConfigError("family", self.family, f"one of {', '.join(FAMILIES)}")

    def has_own_factors(self, plan: TransferPlan) -> bool:
        """Where the study's model is one of its families: its fields are counted in."""
        return family_of_class(str(_model(plan).get("name", ""))) is not None

    def setting(self, plan: TransferPlan, parameter: PlannedParameter) -> Setting:
        """The plan's numbers for weights that the fields' factors multiply."""
        multipliers = self._of_fields(plan)
        if is_table(parameter):
            return as_planned(parameter, multipliers.embedding)
        if parameter is head_of(plan):
            return as_planned(parameter, multipliers.logits / value_of(plan, "loss", "logit"))
        return as_planned(parameter)

    def applied(self, plan: TransferPlan, factor: PlannedFactor) -> float:
        """What the fields have, read back."""
        multipliers = self._of_fields(plan)
        match factor.kind, factor.factor:
            case "attention", "logit":
                return multipliers.attention
            case "residual", "branch":
                return multipliers.attention_branch if factor.branch % 2 else multipliers.ffn_branch
            case "tied_readout", "output":
                return multipliers.logits / multipliers.embedding / value_of(plan, "loss", "logit")
            case "loss", "logit":
                return factor.value  # it is part of the logits'
        return 1.0

    def values(self, plan: TransferPlan) -> dict[str, Any]:
        """The family with its fields, and the groups beside them."""
        settings = {p.name: self.setting(plan, p) for p in plan.parameters}
        return {
            "fields": self.fields(plan),
            "rows": rows(plan, settings, updates=True),
            "optimizer": torch_call(plan),
            "family": self._name(plan),
            "tuned": OWN_FIELDS if _model(plan) else NO_FIELDS,
        }

    def files(self, plan: TransferPlan, header: str) -> dict[str, str]:
        """The fields are in `plan_config.json`, too, to be merged into a config.json."""
        fields = json.dumps(self.fields(plan), indent=2) + "\n"
        return {**super().files(plan, header), "plan_config.json": fields}

    def fields(self, plan: TransferPlan) -> dict[str, Any]:
        """The configuration's fields; those that the study's model had already multiply."""
        built_in, wanted = self._built_in(plan), _wanted(plan)
        return self._family(plan).write(_times(wanted, built_in), _shape(plan))

    @once_a_plan
    def _of_fields(self, plan: TransferPlan) -> Multipliers:
        # Read back, not taken from the plan: a family without a field, or with whole numbers
        # alone, does something else than it was asked for, which `compare` then finds.
        family, built_in = self._family(plan), self._built_in(plan)
        neutral = Multipliers(attention=1.0)
        return _times(
            family.read(self.fields(plan), _shape(plan)), _times(neutral, built_in, divide=True)
        )

    def _built_in(self, plan: TransferPlan) -> Multipliers:
        model = _model(plan)
        name, config = family_of_class(str(model.get("name", ""))), model.get("config")
        config = config if isinstance(config, Mapping) else {}
        if name is None:
            return Multipliers(attention=1.0)
        return replace(FAMILIES[name].read(config, _shape(plan)), attention=1.0)

    def _family(self, plan: TransferPlan) -> Family:
        return FAMILIES[self._name(plan)]

    def _name(self, plan: TransferPlan) -> str:
        of_study = family_of_class(str(_model(plan).get("name", "")))
        data = plan.source.get("data")
        of_arrays = isinstance(data, Mapping) and "input_shape" in data
        if self.family and plan.parameters and (of_arrays or not has_words(plan)):
            # Its fields would scale another model than the one that was tuned.
            allowed = f"a plan of text: all of {', '.join(FAMILIES)} are, and this one is of arrays"
            raise ConfigError("family", self.family, allowed)
        if name := self.family or of_study:
            return name
        names = ", ".join(FAMILIES)
        advice = f": the model to write for, one of {names}, as in family={next(iter(FAMILIES))}"
        raise MissingValue("family", advice)


def _model(plan: TransferPlan) -> Mapping[str, Any]:
    model = plan.source.get("model")
    arguments = model.get("arguments") if isinstance(model, Mapping) else None
    return arguments if isinstance(arguments, Mapping) else {}


def _times(a: Multipliers, b: Multipliers, *, divide: bool = False) -> Multipliers:
    pairs = {name: (value, getattr(b, name)) for name, value in vars(a).items()}
    return Multipliers(**{name: x / y if divide else x * y for name, (x, y) in pairs.items()})


def _wanted(plan: TransferPlan) -> Multipliers:
    usual = _shape(plan).usual_attention
    # Branches count from 1, odd ones are attention's; reversed, so that the first of a kind stays.
    branches = {f.branch % 2: f.value for f in reversed([*factors_of(plan, "residual", "branch")])}
    return Multipliers(
        embedding=rows_multiplier(plan),
        attention=value_of(plan, "attention", "logit", usual),
        attention_branch=branches.get(1, 1.0),
        ffn_branch=branches.get(0, 1.0),
        logits=logits_multiplier(plan),
    )


def _shape(plan: TransferPlan) -> Shape:
    size = next((f.head_size for f in factors_of(plan, "attention", "logit")), 64)
    # The hidden size is the length of an embedding's row, where there is one.
    table = table_of(plan)
    width = table.shape[1] if table and len(table.shape) == 2 else plan.target.width
    return Shape(width=width, depth=plan.target.depth, head_size=size)
