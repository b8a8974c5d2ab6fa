"""The plan: what every parameter of the target model is given, beside the base model.

Reading a plan needs no torch; the two methods that act on a module import it when called.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from math import log
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from sweeper.errors import BadInput, Call, ConfigError, Keyword, printable
from sweeper.files import read_json, write_json
from sweeper.laws.law import AppliedLaw
from sweeper.plan import in_training
from sweeper.plan.factors import PlannedFactor, ask, edits_first, is_edit, needs, planned_factors
from sweeper.records import WRITTEN_IF_SET, Build, from_json
from sweeper.registry import TARGET, build_plugin, takes_eps, with_targets
from sweeper.scaling.prescription import (
    SETTING_FACTORS,
    AbsorbedParam,
    Prescription,
    absorb_multiplier,
    constant_of,
    prescription_of,
)
from sweeper.scaling.spec import Init, Parameterization, ParamSpec, Role, Update, with_layer
from sweeper.stats.ladder import Size
from sweeper.study.folder import PLAN, StudyFolder, TargetFolder
from sweeper.table import Column, Table, Value
from sweeper.trial import Choice, PlainHps, PluginSpec, log2
from sweeper.trial import plain as as_used

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer as TorchOptimizer

    from sweeper.engine.architecture import Architecture
    from sweeper.engine.optimizers.optimizer import Optimizer
    from sweeper.engine.prepare import PreparedSpec

COLUMNS = ("parameters", "role", "init std", "lr", "eps", "decay")
UPDATE = "update"
"""A column more, where an optimizer updates some parameters in another way than the rest."""
NAMES_WIDTH, NAMES_LINES = 48, 2
"""The column of names has so many characters a line, and lines a row."""
MAX_LINES = 38
MAX_NEEDS = 12
IN_GROUPS = ("muon", "adamh", "muonh")
"""Optimizers whose groups have all of their settings, betas and momentum too."""
LAW_WIDTH = 96
ONE_MINUS = "one_minus_"
"""Hyperparameters of these names are factors on the distance of an optimizer's setting from 1."""


def plan_table(plan: TransferPlan) -> str:
    """Sizes, parameterization, rows of parameters with the numbers that they absorbed, needs."""
    head, table, after = plan_parts(plan)
    return printable("\n".join([*head, "", str(table), *after]))


def plan_parts(plan: TransferPlan) -> tuple[list[str], Table, list[str]]:
    """The lines above the table, the table, and those below it."""
    lines = [
        f"Plan for {named_sizes(plan, 'target')}, tuned at {named_sizes(plan, 'base')}",
        rules_text(plan),
    ]
    if plan.law is not None:
        for line in plan.law.lines():
            indent = "  " if line.startswith("- ") else ""
            lines += wrap(line, LAW_WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    several = len({p.update for p in plan.parameters if not p.frozen}) > 1
    columns = [*COLUMNS[:2], *[UPDATE] * several, *COLUMNS[2:]]
    if not plan.has_eps:
        columns.remove("eps")
    texts = ("parameters", "role", UPDATE)
    is_apart = any(parameter.target.multiplier != 1 for parameter in plan.parameters)
    title = "Multipliers absorbed: the numbers are those of init_ and param_groups" * is_apart
    table = Table(title, [Column(name, left=name in texts) for name in columns])
    room, alike = MAX_LINES, _alike(plan.parameters)
    for first, names, members in alike:
        settings, tail = first.absorbed(), f" ... {members} in all"
        name_lines = wrap(
            ", ".join(names),
            NAMES_WIDTH,
            break_on_hyphens=False,
            max_lines=NAMES_LINES,
            placeholder=tail,
        )
        if len(name_lines) > room:
            break
        room -= len(name_lines)
        init = first.init if first.init != "normal" else settings.init_std
        eps = [settings.eps] * plan.has_eps
        numbers: list[Value] = [init, settings.lr, *eps, settings.weight_decay]
        cells = ["frozen", *["-"] * (len(numbers) - 1)] if first.frozen else numbers
        update = ["-" if first.frozen else first.update] * several
        table.add("\n".join(name_lines), first.role, *update, *cells)
    after = []
    if hidden := len(alike) - len(table.rows):
        after.append(f"... and {hidden} rows more: plan.absorbed() has every parameter")
    heads = {True: "The model itself must do what no group can:", False: "What else to mind:"}
    for of_model, head in heads.items():
        listed = [need for need in edits_first(plan.needs)[:MAX_NEEDS] if is_edit(need) is of_model]
        after += ["", head, *(f"- {need}" for need in listed)] if listed else []
    if len(plan.needs) > MAX_NEEDS:
        after.append(f"... and {len(plan.needs) - MAX_NEEDS} more: plan.needs has them all")
    return lines, table, after


def named_sizes(plan: TransferPlan, which: str) -> str:
    """The sizes as the user names them, if the plan knows, else width and depth."""
    named: Any = plan.source.get("sizes")
    if isinstance(named, Mapping) and isinstance(named.get(which), Mapping):
        return ", ".join(f"{name} {value}" for name, value in named[which].items())
    return str(getattr(plan, which))


def rules_text(plan: TransferPlan) -> str:
    """Parameterization, optimizer and hyperparameters."""
    optimizer = f" with {plan.optimizer.name}" if plan.optimizer else ""
    return f"{plan.parameterization}{optimizer}: {hps_text(plan)}"


def hps_text(plan: TransferPlan) -> str:
    """The hyperparameters; those that multiply an optimizer's settings as factors."""
    texts = []
    for name, value in plan.hps.items():
        setting = f"(1 - {name.removeprefix(ONE_MINUS)})" if name.startswith(ONE_MINUS) else name
        is_factor = plan.parameters and (setting != name or name in SETTING_FACTORS)
        texts.append(
            f"{setting} x {value_text(value)}" if is_factor else f"{name} {value_text(value)}"
        )
    return ", ".join(texts)


def sets_text(plan: TransferPlan, *, in_script: bool, clip: float | None = None) -> str:
    """What the plan sets beside rates, at its base: decay, eps, betas; and what it does not.

    Those that are not in the plan's groups, and clipping, are `in_script` the script's own.
    """
    trained = [setting for setting in plan.absorbed() if not setting.frozen]
    decaying = [setting for setting in trained if setting.weight_decay]
    starred = _starred({s.name: s.weight_decay > 0 for s in trained})
    spared = [*dict.fromkeys(starred[s.name] for s in trained if not s.weight_decay)]
    names = ", ".join([*spared[:3], *["..."] * (len(spared) > 3)])
    where = f"{len(decaying)} of {len(trained)} parameters, not on {names} (optimizer.decayed)"
    over = spread(setting.weight_decay / setting.lr for setting in decaying)
    texts = ["no weight decay"] * (not decaying) or [
        f"weight decay {spread(s.weight_decay for s in decaying)} of a weight a step (torch's "
        f"weight_decay {over} at eta {plan.hps['eta']:.3g}) on {where if spared else 'all'}"
    ]
    if plan.has_eps:
        texts += [f"eps {spread(setting.eps for setting in trained)}"]
    settings, name = plan.optimizer_settings(), plan.optimizer.name if plan.optimizer else ""
    by_plan = {n: v for n, v in settings.items() if plan.betas and n.startswith("beta")}
    if not in_script or name in IN_GROUPS:
        by_plan = settings
    texts += [f"{setting} {value:.6g}" for setting, value in by_plan.items()]
    if not in_script:
        return f"trained with {', '.join(texts)}, clipping {clip or 'none'}"
    others = ", ".join([*(n for n in settings if n not in by_plan), "clipping"])
    sets = f"in place of the script's own the plan sets {', '.join(texts)}"
    return f"{sets}; left to the script: {others}"


def spread(values: Iterable[float], form: str = ".3g") -> str:
    """The least and the greatest of values, or the one that all have."""
    ends = sorted(values)
    texts = [format(value, form) for value in (*ends[:1], *ends[-1:])]
    return " to ".join(dict.fromkeys(texts)) or "none"


def value_text(value: object) -> str:
    """A hyperparameter as it is used: a float in four digits, anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _alike(parameters: Sequence[PlannedParameter]) -> list[tuple[PlannedParameter, list[str], int]]:
    """Rows of parameters of one role and equal settings: the first, names with *, how many."""
    # By numbers, not by names: layers that train alike are one row, whatever they are called.
    rows: dict[tuple[object, ...], list[PlannedParameter]] = {}
    for parameter in parameters:
        settings = parameter.absorbed()
        numbers = (settings.init_mean, settings.init_std, settings.lr, settings.eps)
        kind = (parameter.role, parameter.update, parameter.init, parameter.frozen)
        key = (*kind, *numbers, settings.weight_decay)
        rows.setdefault(key, []).append(parameter)
    shown = _starred({p.name: row for row, members in enumerate(rows.values()) for p in members})
    return [
        (members[0], list(dict.fromkeys(shown[member.name] for member in members)), len(members))
        for members in rows.values()
    ]


def _starred(rows: Mapping[str, int]) -> dict[str, str]:
    rows_of: dict[str, set[int]] = {}
    for name, row in rows.items():
        rows_of.setdefault(with_layer(name, "*"), set()).add(row)
    starred = ((name, with_layer(name, "*")) for name in rows)
    return {name: star if len(rows_of[star]) == 1 else name for name, star in starred}


PLAN_VERSION = 2
"""Raised when `plan.json` changes in a way that old readers would misread."""


@dataclass(frozen=True, kw_only=True)
class PlannedParameter:
    """A parameter of the target model: what it is, and its numbers at base and at target.

    `init` is a `ParamSpec`'s, and `update` is how the optimizer's updates of it scale; see
    `scaling.spec.Update`. What is `frozen` is neither drawn nor trained. Learning rates are
    eta * gamma * m^-c, m being the growth of the width: `gamma` is the constant of the layer type
    and group, `lr_exponent` is c, None where the target is as wide as the base. `matrix` is a
    `ParamSpec`'s, of what is updated as a matrix and has further dimensions.
    """

    name: str
    role: Role
    init: Init
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    fan_in: int
    fan_out: int
    target: Prescription
    base: Prescription
    update: Update = Update.SIGN
    frozen: bool = False
    norm_of: str = field(default="", metadata=WRITTEN_IF_SET)
    gamma: float = 1.0
    lr_exponent: float | None = field(default=None, metadata=WRITTEN_IF_SET)
    matrix: tuple[int, int] | None = field(default=None, metadata=WRITTEN_IF_SET)

    def absorbed(self, forward: float = 1.0) -> AbsorbedParam:
        """The target's settings where the forward pass multiplies the parameter by `forward`.

        What is left of the multiplier is absorbed by init, learning rate and eps.
        """
        target = replace(self.target, multiplier=self.target.multiplier / forward)
        settings = absorb_multiplier(
            target, Update(self.update), name=self.name, shape=self.shape, init=self.init
        )
        return replace(settings, frozen=self.frozen, norm_of=self.norm_of, matrix=self.matrix)


@dataclass(frozen=True, kw_only=True, repr=False)
class TransferPlan:
    """Everything that training the target needs, keyed by parameter name.

    `operations` are the factors of attention, activation, residual and loss at the target. `source`
    says which study, configuration and runs the hyperparameters (`hps`, not logarithms) came from.
    `parameterization` and `optimizer` are named as by `registry.plugins`. Only where a command
    scales by itself may `hps` hold more than numbers. `needs` says in words what a plain model that
    uses the plan must do beyond `init_` and `param_groups`; `factors` are all factors of its
    operations, one by one (None: not recorded). `law` is what changed `hps` beyond those that were
    tuned, for another batch or horizon. `own_factors` has by parameter what the study's own model
    multiplies its output by, which the plan leaves to it.
    """

    base: Size
    target: Size
    parameterization: str
    hps: Mapping[str, Any]
    parameters: tuple[PlannedParameter, ...]
    operations: Mapping[str, Mapping[str, float]]
    source: Mapping[str, Any]
    optimizer: PluginSpec | None = None
    needs: tuple[str, ...] = ()
    factors: tuple[PlannedFactor, ...] | None = None
    law: AppliedLaw | None = field(default=None, metadata=WRITTEN_IF_SET)
    own_factors: Mapping[str, float] = field(default_factory=dict, metadata=WRITTEN_IF_SET)
    version: int = PLAN_VERSION

    @property
    def has_eps(self) -> bool:
        """Whether eps plays a part in its optimizer."""
        return self.optimizer is None or takes_eps(self.optimizer.name, self.optimizer.arguments)

    @classmethod
    def load(cls, path: str | Path) -> TransferPlan:
        """The plan in the file `path`, in `plan.json` of the folder `path`, or of the study there.

        BadInput for a file that cannot be read, or is no plan of this version of sweeper, and for a
        study that has no plan, or several: these are listed.
        """
        file = _file(path)
        if file.parent == Path(path).expanduser() and not file.exists():
            file = _plan_of_study(file.parent)
        plan = cls._read(file)
        if in_training.TRIAL in os.environ:
            in_training.watch_trial(cls._read)
        return plan

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take a copy, also in a worker that a trial starts."""
        self.__dict__.update(state)
        if in_training.TRIAL in os.environ:
            in_training.watch_trial(self._read)

    @classmethod
    def _read(cls, file: Path) -> TransferPlan:
        try:
            record = read_json(file)
        except OSError as error:
            raise BadInput(f"{file} cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise BadInput(f"{file} cannot be read: {error}") from error
        try:
            return from_json(cls, record)
        except ValueError as error:
            raise BadInput(f"{file} is no plan: {error}") from error

    def save(self, path: str | Path) -> Path:
        """Write what `load` reads to the file `path`, or to `plan.json` in the folder `path`.

        Returns the file. BadInput where it cannot be written; what lay there is then untouched.
        """
        file = _file(path)
        try:
            write_json(file, self)
        except OSError as error:
            reason = f"{error.strerror or error}; give a folder that exists"
            raise BadInput(f"{file} cannot be written: {reason}") from None
        return file

    @classmethod
    def read_json(cls, record: Mapping[str, Any], build: Build) -> TransferPlan:
        """BadInput for a plan of another version, or that nothing can be trained by."""
        # First: the fields of another version may well be read, and mean something else.
        if (version := record.get("version")) != PLAN_VERSION:
            raise BadInput(f"its version is {version!r}, and this sweeper reads {PLAN_VERSION}")
        plan: TransferPlan = build(record)
        seed = plan.source.get("seed", 0)
        if not isinstance(seed, int):
            raise ConfigError("source.seed", seed, "a whole number")
        names = [parameter.name for parameter in plan.parameters]
        if "" in names:
            raise BadInput("a parameter has no name")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadInput(f"{twice} is there twice")
        for factor in plan.factors or ():
            for key, name in (("kind", factor.kind), ("factor", factor.factor)):
                if not name.isidentifier():
                    raise ConfigError(f"factors.{key}", name, "a name such as residual or branch")
            # The usual factor of q k^T is head_size^-1/2: exporters divide by it.
            is_logit = (factor.kind, factor.factor) == ("attention", "logit")
            if is_logit and factor.head_size < 1:
                raise BadInput(f"{factor.where}: head sizes must be positive")
        return plan

    def absorbed(self) -> list[AbsorbedParam]:
        """Every parameter's settings for a plain forward pass; eps is 0 where it plays no part."""
        for watch in in_training.WATCHES:
            watch.use()
        settings = [parameter.absorbed() for parameter in self.parameters]
        # Plans of earlier versions have one for optimizers without.
        return settings if self.has_eps else [replace(s, eps=0.0) for s in settings]

    def init_(
        self, model: nn.Module, seed: int | None = None, *, differs: Sequence[str] = ()
    ) -> nn.Module:
        """Draw all weights of `model` anew, in place, multipliers absorbed, and return it.

        Loaded weights are lost, unless the plan was made with `keep_init` or `frozen` naming them.
        `seed` is by default that of the trial that the plan was made for, else 0. A value depends
        on it and on the parameter's name alone: not on the order of modules, on sharding (DTensors
        get their own part) or on what was drawn before. Parameters that are frozen, or whose init
        is "kept", stay as the model has them. Those that match one of the patterns `differs` may
        have another shape than planned, such as positions for another length of context; they are
        drawn at their own. After the meta device, call `model.to_empty` first, and mend what the
        plan leaves alone: buffers of the model's own, frozen and kept parameters. Names may have
        the prefixes of torch.compile, DDP and FSDP. BadInput lists parameters that do not match.
        """
        # It brings torch, which reading and showing a plan do not need.
        from sweeper.plan import apply

        drawn = int(self.source.get("seed", 0)) if seed is None else seed
        apply.init_(self.absorbed(), model, drawn, differs)
        in_training.note_use(self, model)
        return model

    def param_groups(
        self,
        model: nn.Module,
        *,
        lr_scale: float = 1.0,
        differs: Sequence[str] = (),
        muon: str = "torch",
    ) -> list[dict[str, Any]]:
        """Groups for `torch.optim.AdamW(plan.param_groups(model))` or any torch optimizer.

        A group has `params`, a `name` for people, the kind of its `update`, `lr` (times
        `lr_scale`), `weight_decay`, `eps` where the optimizer has one, and `betas` where a law, a
        search or an option says them; parameters of equal settings share one, and frozen ones are
        in none. `initial_lr` repeats `lr` for schedules: torch's multiply it, and so can a loop of
        one's own. The plan's decay is independent of the learning rate: the share of a weight that
        a step removes. torch's decoupled decay removes lr x weight_decay, so the group's
        `weight_decay` is decay / lr, and `lr_scale` leaves the decay alone. A scheduler scales
        both, as here; it keeps all ratios. L2 decay (torch.optim.Adam, or SGD with momentum) is
        something else; see `needs`. After `fully_shard`, call this anew: it replaces parameters.

        Of a plan with `optimizer=muon` groups whose `update` is "orthogonal" are for Muon, all
        others for AdamW. `muon` names the implementation, whose factor of a matrix's shape its
        rates are divided by: "torch" (torch.optim.Muon), "keller_jordan" (MuonWithAuxAdam),
        "moonlight", "dion", or "plain", whose steps have singular values of 1; "normuon"
        (NorMuonWithAuxAdam) or "plain" for `normuon`. Of AdamH and MuonH groups whose `update` is
        "hyperball" or "orthogonal_hyperball" are for these, whose rate is the share of a weight's
        norm, and all others for Adam. BadInput and `differs` as in `init_`.
        """
        from sweeper.plan import apply

        arguments = self.optimizer.arguments if self.optimizer else {}
        own = self.optimizer_settings()
        if arguments.get("normuon") is not None:
            own["normuon"] = float(arguments["normuon"])
        if self.optimizer and self.optimizer.name == "adafactor":
            own["rms_floor"] = float(arguments.get("rms_floor", 1e-3))
        name = self.optimizer.name if self.optimizer else ""
        convention = muon if name == "muon" else "plain" * (name in IN_GROUPS)
        groups = apply.param_groups(
            self.absorbed(), model, lr_scale, differs, self.betas, convention, own
        )
        in_training.note_use(self, model, lr_scale)
        return groups

    def optimizer_settings(self) -> dict[str, float]:
        """The optimizer's settings beside those of groups, such as betas, as they are used."""
        if self.optimizer is None:
            return {}
        built = built_optimizer(self.optimizer)
        # A user command's hyperparameters may be texts: those are no factors on betas.
        values = {name: value for name, value in self.hps.items() if isinstance(value, float)}
        return {n: float(value) for n, value in built.settings(PlainHps(values)).items()}

    @property
    def betas(self) -> tuple[float, float] | None:
        """Both betas where a law, the search or the optimizer's options say one; else None.

        A script that says its own betas then keeps them.
        """
        now = {**self.optimizer_settings(), **(self.law.betas if self.law else {})}
        if not {"beta1", "beta2"} <= now.keys():
            return None
        kind = type(built_optimizer(self.optimizer)) if self.optimizer else None
        usual = {name: getattr(kind, name, now[name]) for name in ("beta1", "beta2")}
        asked = any(f"{ONE_MINUS}{name}" in self.hps or now[name] != usual[name] for name in usual)
        return (now["beta1"], now["beta2"]) if asked else None

    def check(
        self, optimizer: TorchOptimizer | Sequence[TorchOptimizer], model: nn.Module | None = None
    ) -> None:
        """Make sure that `optimizer` trains by the plan, now: before training or at any step.

        Where several share the parameters, as Muon and AdamW do, give all of them.

        BadInput says what does not agree and what to write instead: learning rates that are not
        the plan's times one common factor (a schedule's, or `lr_scale`), another eps, another
        weight decay or one that goes through the moments, updates of another kind. Groups are
        known by the names that `param_groups` gave them. With the `model` they are known by
        their parameters, whoever made them, and parameters that are missing, there twice, or
        not the plan's are found too.
        """
        from sweeper.plan import apply

        optimizers = [*optimizer] if isinstance(optimizer, Sequence) else [optimizer]
        apply.check(self.absorbed(), optimizers, model, self.betas)

    def __str__(self) -> str:
        """A table of what is trained alike, and the `needs`, in less than 60 lines."""
        return plan_table(self)

    def __repr__(self) -> str:
        return (
            f"TransferPlan({named_sizes(self, 'target')}, from {named_sizes(self, 'base')}: "
            f"{rules_text(self)}; {len(self.parameters)} parameters)"
        )

    def _repr_html_(self) -> str:
        head, table, after = plan_parts(self)
        html = "".join(f"<p>{escape(line)}</p>" for line in head) + table._repr_html_()
        return html + "".join(f"<p>{escape(line)}</p>" for line in after if line)


def built_optimizer(spec: PluginSpec) -> Optimizer:
    """A plan's optimizer anew from its record, which has no more than name and arguments."""
    built: Optimizer = build_plugin(
        with_targets("optimizer", {TARGET: spec.name, **spec.arguments})
    )
    return built


def _file(path: str | Path) -> Path:
    file = Path(path).expanduser()
    return TargetFolder(file).plan if file.is_dir() else file


def _plan_of_study(folder: Path) -> Path:
    study = StudyFolder(folder)
    plans = sorted(study.plans())
    if len(plans) == 1:
        return plans[0]
    if plans:
        each = ", ".join(str(path.parent) for path in plans)
        raise BadInput(f"the study in {folder} has {len(plans)} plans, name one: {each}")
    if study.config.is_file():
        makes = Call("transfer", Keyword("study", folder.name), Keyword("to_width", "N"))
        raise BadInput(f"the study in {folder} has no plan yet: ", makes, " makes one")
    raise BadInput(f"{folder} has no {PLAN}, and is no study that has a plan")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A parameterization and an optimizer, and the plugins that plans name for them."""

    parameterization_spec: PluginSpec
    parameterization: Parameterization
    optimizer_spec: PluginSpec
    optimizer: Optimizer


def make_plan(
    prepared: PreparedSpec,
    base: Size,
    target: Size,
    hps: PlainHps,
    source: Mapping[str, Any],
    law: AppliedLaw | None = None,
) -> TransferPlan:
    """The plan of what was prepared at `target`, for hyperparameters `hps`, tuned at the base."""
    rules = Rules(
        parameterization_spec=prepared.spec.parameterization,
        parameterization=prepared.parameterization,
        optimizer_spec=prepared.spec.optimizer,
        optimizer=prepared.optimizer,
    )
    # Rules get every hyperparameter; the plan lists those that were searched.
    complete = prepared.complete(hps)
    # A command's script applies the plan itself. Our engine has trained the model as it is.
    left_out = prepared.left_out(complete) if prepared.by_engine else None
    plan = plan_of(
        prepared.architecture, rules, base, target, complete, source, law=law, left_out=left_out
    )
    return replace(plan, hps=_lawful(hps, law))


def _lawful(hps: PlainHps, law: AppliedLaw | None) -> PlainHps:
    return hps if law is None else as_used(law.apply(log2(hps)))


OWN_NEED = "everything: the command scales by itself, and is given the hyperparameters as they are"


def own_plan(
    base: Size,
    target: Size,
    hps: Mapping[str, Choice],
    source: Mapping[str, Any],
    law: AppliedLaw | None = None,
) -> TransferPlan:
    """The plan of a model that only its command knows: the target's `hps`, and no parameter."""
    return TransferPlan(
        base=base,
        target=target,
        parameterization="own",
        hps=hps,
        parameters=(),
        operations={},
        source=dict(source),
        needs=(OWN_NEED,),
        law=law,
    )


def plan_of(
    model: Architecture,
    rules: Rules,
    base: Size,
    target: Size,
    hps: PlainHps,
    source: Mapping[str, Any],
    *,
    depth_known: bool = True,
    law: AppliedLaw | None = None,
    left_out: Sequence[str] | None = None,
) -> TransferPlan:
    """The plan of a model that was read at its target, for hyperparameters `hps` at the base.

    At the target they are those that the `law` makes of them. Not `depth_known`: no size of the
    model is its depth. `left_out` says of a model that was trained as it is what of the
    parameterization it was trained without: so it is planned.
    """
    # eta at the target: the one that was tuned, unless a law changes it for another batch or
    # horizon. The width is in no hyperparameter, but in every parameter's own factors.
    tuned, hps = hps, _lawful(hps, law)
    growth = target.width / base.width
    parameters = tuple(_planned(spec, rules, hps, tuned, growth) for spec in model.specs)
    answers = ask(rules.parameterization, hps, model, (target.depth, base.depth))
    asked = answers
    if left_out is not None:
        parameters = tuple(_as_trained(p, model.scale_buffers) for p in parameters)
        answers = [answer if answer.seen else answer.as_trained() for answer in answers]
        asked = [answer for answer in answers if answer.seen]
    return TransferPlan(
        base=base,
        target=target,
        parameterization=rules.parameterization_spec.name,
        hps=hps,
        parameters=parameters,
        operations={a.op.name: a.factors for a in answers if a.seen},
        source=dict(source),
        optimizer=rules.optimizer_spec,
        needs=tuple(
            needs(
                asked,
                {p.name: (p.target.multiplier, p.target.backward_multiplier) for p in parameters},
                unit_scaled=rules.parameterization.unit_scaled,
                depth_known=depth_known,
                eps=takes_eps(rules.optimizer_spec.name, rules.optimizer_spec.arguments),
                decay=any(p.target.weight_decay for p in parameters if not p.frozen),
                cautions=[*(left_out or ()), *model.cautions],
            )
        ),
        factors=planned_factors(answers),
        law=law,
        own_factors=dict(model.own_factors),
    )


def _as_trained(parameter: PlannedParameter, buffers: Collection[str]) -> PlannedParameter:
    if f"{parameter.name.rpartition('.')[0]}.backward_multiplier" in buffers:
        return parameter
    target, base = (
        replace(at, backward_multiplier=at.multiplier) for at in (parameter.target, parameter.base)
    )
    return replace(parameter, target=target, base=base)


def _planned(
    spec: ParamSpec, rules: Rules, hps: PlainHps, tuned: PlainHps, growth: float
) -> PlannedParameter:
    has_eps = takes_eps(rules.optimizer_spec.name, rules.optimizer_spec.arguments)

    def prescribed(spec: ParamSpec, hps: PlainHps) -> Prescription:
        numbers = prescription_of(spec, rules.parameterization, rules.optimizer, hps)
        return numbers if has_eps else replace(numbers, eps=0.0)

    target, exponent = prescribed(spec, hps), None
    if growth != 1:
        # At the target's depth and with its hyperparameters, so that the width alone differs.
        narrow = prescribed(replace(spec.at_base(), depth=spec.depth), hps)
        exponent = round(-log(target.lr / narrow.lr) / log(growth), 6) + 0.0
    return PlannedParameter(
        name=spec.name,
        role=spec.role,
        init=spec.init,
        shape=spec.shape,
        base_shape=spec.base_shape,
        fan_in=spec.fan_in,
        fan_out=spec.fan_out,
        # A law's change belongs to the target's run: the base was trained with what was tuned.
        target=target,
        base=prescribed(spec.at_base(), tuned),
        update=(update := rules.optimizer.kind(spec)),
        matrix=spec.matrix if update.orthogonal and len(spec.shape) > 2 else None,
        frozen=spec.frozen,
        norm_of=spec.norm_of.name if spec.norm_of else "",
        gamma=constant_of(spec, rules.optimizer, hps),
        lr_exponent=exponent,
    )
