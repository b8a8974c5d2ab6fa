"""`sweeper explain`: the scheme's prescription for every parameter, without a study."""

from __future__ import annotations

from sweeper.commands.experiment import check_target, open_experiment
from sweeper.commands.output import DONE, Output
from sweeper.commands.study_config import Typed
from sweeper.commands.transfer import planned_optimum
from sweeper.config import Tree
from sweeper.errors import ConfigError
from sweeper.report import console as show
from sweeper.settings import Settings, placeholder_data, resolve
from sweeper.study import Study
from sweeper.training.prepare import PreparedSpec, prepare
from sweeper.transfer.explain import explain as explained
from sweeper.transfer.explain import tied_readouts
from sweeper.transfer.ladder import Size
from sweeper.transfer.plan import make_plan
from sweeper.trial import defaults, plain


def explain(tree: Tree, width: int, depth: int | None, output: Output, typed: Typed) -> int:
    """The table for the configured model, its hyperparameters at their defaults.

    `typed` is how `tree` was given; of a study: at its optimum.
    """
    settings = resolve(tree)
    if settings.own:
        raise ConfigError("parameterization", "own", "a scheme that says something of parameters")
    base = settings.base
    target = Size(width=width, depth=depth or base.depth)
    check_target(settings, target)
    hps, source = plain(defaults(settings.space)), "defaults of the parameterization"
    if typed.of_study:
        study = Study.read(settings.folder)
        hps = plain(planned_optimum(open_experiment(settings), study, output))
        source = f"the study {settings.name}"
    prepared = _prepared(settings, target)
    plan = make_plan(prepared, base, target, hps, {"hyperparameters": source})
    narrow = _prepared(settings, Size(width=base.width, depth=target.depth))
    wide = _prepared(settings, Size(width=4 * base.width, depth=target.depth))
    rows = explained(plan, narrow, wide, hps)
    show.explanation(output.people, plan, rows)
    tied = tied_readouts(prepared.specs, prepared.scaled_ops, plan.operations)
    for line in tied:
        output.say(f"- {line}")
    scheme = settings.plugin_spec("parameterization").name
    found = f"{scheme} prescribes {len(plan.parameters)} parameters for {plan.target}; "
    found += "nothing was trained or written."
    output.end(found, {}, typed.again("check", settings))
    output.document(
        {
            "parameterization": plan.parameterization,
            "base": {"width": base.width, "depth": base.depth},
            "target": {"width": target.width, "depth": target.depth},
            "hps": dict(hps),
            "hyperparameters": source,
            "parameters": [row.to_json() for row in rows],
            "operations": dict(plan.operations),
            "needs": list(plan.needs),
            "tied_readouts": tied,
        }
    )
    return DONE


def _prepared(settings: Settings, size: Size) -> PreparedSpec:
    """The model of `size`, classified."""
    return prepare(settings.spec(placeholder_data(settings), "float32", size))
