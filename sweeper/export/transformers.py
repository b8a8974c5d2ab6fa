"""transformers: fields of a config.json, and groups and initial weights for its Trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from sweeper.export.families import FAMILIES, Family, Multipliers, Shape, family_of_class
from sweeper.export.groups import rows, torch_call
from sweeper.plan.factors import PlannedFactor
from sweeper.plan.plan import PlannedParameter, TransferPlan

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
