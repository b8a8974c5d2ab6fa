"""What every parameter of a model is prescribed at a size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeper.config.command_line import with_place
from sweeper.config.studies import Invocation, tree_of
from sweeper.errors import BadInput, Call, ConfigError, Keyword
from sweeper.scaling.spec import Role
from sweeper.stats.ladder import Size
from sweeper.study.study import StudyRecord
from sweeper.study.watcher import Watcher
from sweeper.trial import PlainHps, defaults, plain
from sweeper.verbs.answer import VerbAnswer
from sweeper.verbs.requests import ExplainRequest

if TYPE_CHECKING:
    from sweeper.config.settings import Settings
    from sweeper.engine.prepare import PreparedSpec
    from sweeper.plan.explanation import Explained
    from sweeper.plan.plan import TransferPlan
    from sweeper.sweep.optimum import SearchedOptimum


@dataclass(frozen=True, kw_only=True)
class ExplainAnswer(VerbAnswer):
    """The prescription for every parameter; of a study at its `optimum`, else at the defaults.

    `tied` are sentences on readouts that share their weights, `measures` tells whether a
    coordinate check could follow. `classes` are those that the model takes, where the engine's data
    have more; else 0.
    """

    plan: TransferPlan
    rows: Sequence[Explained]
    hps: PlainHps
    parameterization: str
    tied: Sequence[str]
    settings: Settings
    invocation: Invocation
    measures: bool
    classes: int = 0
    optimum: SearchedOptimum | None = None


def explain(request: ExplainRequest, watcher: Watcher) -> ExplainAnswer:
    """The prescription at `to_width`."""
    if request.to_width is None:
        example = Call("explain", Keyword("to_width", 256))
        raise BadInput("explain takes a width: ", example, " of a model as it is configured")
    placed = with_place(request.overrides, None, request.root)
    tree, invocation = tree_of(request.study, placed, request.config_dir, trust=request.trust)
    # A misspelt setting is refused before torch loads.
    from sweeper.config.settings import resolve

    settings = resolve(tree, placed)
    from sweeper.plan.explanation import explain as prescriptions
    from sweeper.plan.explanation import tied_readouts
    from sweeper.plan.factors import tied_weight
    from sweeper.plan.plan import make_plan
    from sweeper.sweep.experiment import check_target, open_experiment
    from sweeper.sweep.optimum import planned_before, searched_optimum

    if settings.scaled_by_user:
        raise ConfigError(
            "parameterization", "own", "a parameterization that says something of parameters"
        )
    base = settings.base
    target = Size(width=request.to_width, depth=request.to_depth or base.depth)
    check_target(settings, target)
    hps, study, best = plain(defaults(settings.space)), "", None
    notices: Sequence[str] = ()
    if invocation.study is not None:
        record = StudyRecord.read(settings.folder)
        best = searched_optimum(open_experiment(settings), record)
        # As an earlier plan has them: it may have taken a better eta from the ladder's curves.
        hps = plain(planned_before(settings, best.conclusion.best_log2))
        study, notices = settings.name, record.notices
    # Classified from the configuration alone: neither data nor a study is needed to explain.
    prepared = _prepared(settings, target)
    source = f"the study {study}" if study else "defaults of the parameterization"
    plan = make_plan(prepared, base, target, hps, {"hyperparameters": source})
    classes = prepared.spec.data["classes"]
    heads = [spec.fan_out for spec in prepared.specs if spec.role is Role.READOUT]
    # A readout that is an embedding's matrix has its rows.
    tied = [
        tied_weight(prepared.specs, op) for op in prepared.scaled_ops if op.kind == "tied_readout"
    ]
    heads += [spec.shape[0] for spec in tied if spec is not None]
    few = min([head for head in heads if 1 < head < classes], default=0)
    few *= settings.raw["runner"].get("command") is None  # a command has data of its own
    # Exponents need two widths, and the target may be as wide as the base. At its depth, so that
    # parameters have its names.
    narrow = _prepared(settings, Size(width=base.width, depth=target.depth))
    wide = _prepared(settings, Size(width=4 * base.width, depth=target.depth))
    return ExplainAnswer(
        plan=plan,
        rows=prescriptions(plan, narrow, wide, hps),
        hps=hps,
        parameterization=settings.plugin_spec("parameterization").name,
        tied=tied_readouts(prepared.specs, prepared.scaled_ops, plan.operations),
        settings=settings,
        invocation=invocation,
        # Of a command that does not watch its model the check measures nothing.
        measures=settings.runner.measures("coordinates") and not few,
        classes=few,
        notes=tuple((notice,) for notice in notices),
        optimum=best,
    )


def _prepared(settings: Settings, size: Size) -> PreparedSpec:
    from sweeper.data.corpus import placeholder_data
    from sweeper.engine.prepare import prepare

    return prepare(settings.spec(placeholder_data(settings.source), "float32", size))
