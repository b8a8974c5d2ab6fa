"""`sweeper explain`: the parameterization's prescription for every parameter, without a study."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeper.config.compose import Tree
from sweeper.config.settings import Settings, placeholder_data, resolve
from sweeper.config.studies import Invocation
from sweeper.engine.prepare import PreparedSpec, prepare
from sweeper.errors import BadInput, ConfigError
from sweeper.export.families import Published
from sweeper.plan.explain import explain as explained
from sweeper.plan.explain import tied_readouts
from sweeper.plan.plan import make_plan
from sweeper.records import to_json
from sweeper.report import console as show
from sweeper.report.answer import Sentence
from sweeper.report.next import again
from sweeper.report.output import DONE, Output
from sweeper.stats.ladder import Size
from sweeper.study.study import Study
from sweeper.sweep.experiment import check_target, open_experiment
from sweeper.table import Column, Table
from sweeper.trial import defaults, plain

# `sweeper explain --from`: what the multipliers of a published model stand for.


def explain_published(path: Path, overrides: Sequence[str], output: Output) -> int:
    """Parameterization and base of a config.json, and our muP from that base beside it.

    `path` is the file, or a folder with it; BadInput where it is none.
    """
    if overrides:
        raise BadInput(f"--from reads one file, and takes no settings: {' '.join(overrides)}")
    file = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BadInput(f"{file} is no JSON: {error}") from error
    if not isinstance(fields, Mapping):
        raise BadInput(f"{file} is no configuration: a JSON object is expected")
    model = Published.of(fields)
    shape = model.shape
    sizes = f"width {shape.width}, {shape.depth} layers, heads of {shape.head_size}"
    output.say(f"{path}: {model.family}, {sizes}")
    for line in model.lines():
        output.show(Sentence(line, listed=True))
    names = {"published": "published", "ours": "ours", "lr": "lr / eta", "eps": "eps / eps"}
    table = Table(
        f"muP from width {model.base_width}, depth {model.base_depth}, every constant 1",
        [Column("", left=True), *map(Column, names.values())],
    )
    for row in model.ours:
        table.add(row["what"], *(row.get(name) for name in names))
    output.show(table)
    legend = (
        "Numbers of parameters are standard deviations of initial values, published as one "
        "initializer_range. The configuration does not say learning rates and eps by parameter, "
        "nor weight decay: a plan of ours does."
    )
    output.show(Sentence(legend, detail=True))
    output.end(f"It stands for {model.parameterization}.", {}, to_json(model))
    return DONE


def explain(
    tree: Tree, width: int, depth: int | None, invocation: Invocation, output: Output
) -> int:
    """The table for the configured model, its hyperparameters at their defaults.

    `tree` is the configuration that the `invocation` gives: of a study, at its optimum.
    """
    settings = resolve(tree)
    if settings.scaled_by_user:
        raise ConfigError(
            "parameterization", "own", "a parameterization that says something of parameters"
        )
    base = settings.base
    target = Size(width=width, depth=depth or base.depth)
    check_target(settings, target)
    hps, source = plain(defaults(settings.space)), "defaults of the parameterization"
    if invocation.study is not None:
        from sweeper.cli.transfer import planned_optimum

        study = Study.read(settings.folder)
        hps = plain(planned_optimum(open_experiment(settings), study, output))
        source = f"the study {settings.name}"
    # Classified from the configuration alone: neither data nor a study is needed to explain.
    prepared = _prepared(settings, target)
    plan = make_plan(prepared, base, target, hps, {"hyperparameters": source})
    # Exponents need two widths, and the target may be as wide as the base. At its depth, so that
    # parameters have its names.
    narrow = _prepared(settings, Size(width=base.width, depth=target.depth))
    wide = _prepared(settings, Size(width=4 * base.width, depth=target.depth))
    rows = explained(plan, narrow, wide, hps)
    output.show(*show.explanation(plan, rows, verbose=output.verbose))
    tied = tied_readouts(prepared.specs, prepared.scaled_ops, plan.operations)
    for line in tied:
        output.show(Sentence(line, listed=True))
    parameterization = settings.plugin_spec("parameterization").name
    document = {
        "parameterization": plan.parameterization,
        "base": {"width": base.width, "depth": base.depth},
        "target": {"width": target.width, "depth": target.depth},
        "hps": dict(hps),
        "hyperparameters": source,
        "parameters": [to_json(row) for row in rows],
        "operations": dict(plan.operations),
        "needs": list(plan.needs),
        "tied_readouts": tied,
    }
    why = "to see that it holds in short runs"
    answer = f"{parameterization} prescribes {len(plan.parameters)} parameters for {plan.target}; "
    answer += "nothing was trained or written."
    # Of a command that does not watch its model the check measures nothing.
    checks = settings.runner.measures("coordinates")
    output.end(
        answer, {}, document, again(invocation, "check", settings, why=why) if checks else None
    )
    return DONE


def _prepared(settings: Settings, size: Size) -> PreparedSpec:
    """The model of `size`, classified."""
    return prepare(settings.spec(placeholder_data(settings), "float32", size))
