"""The command line: verbs and their flags. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from sweeper.cli.commands import HELP_NAMES, VERBS, Commands
from sweeper.cli.verb import (
    FIRST,
    INTERRUPTED,
    USAGE,
    Accept,
    Changes,
    ConfigDir,
    Json,
    Name,
    Names,
    NewStudy,
    Out,
    Overrides,
    PlanFile,
    Published,
    Root,
    Studies,
    Study,
    StudyInPlace,
    ToBatch,
    ToDepth,
    ToTokens,
    ToWidth,
    Trainer,
    TrainerOptions,
    Trust,
    Verbose,
    WhichDepth,
    WhichWidth,
    called_by_program,
    output_of,
    run,
    say,
    show_version,
    stopped_to_go_on,
    usage_text,
)
from sweeper.cli.warned import keep_warnings
from sweeper.config.command_line import (
    DEFAULT_ROOT,
    of_study,
    place_of,
    with_place,
    with_user_command,
)
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.launch.machine import collect_rarely, set_spin

if TYPE_CHECKING:
    from sweeper.cli.next import Invocation
    from sweeper.cli.output import Output
    from sweeper.config.compose import Tree


app = typer.Typer(
    name="sweeper",
    cls=Commands,
    no_args_is_help=True,
    # `run` ends every verb itself: with one message, or for a bug with a plain traceback.
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
    help="Tune small, train big: search hyperparameters on a small proxy model, transfer them to "
    "any width and depth, and validate that the transfer holds.",
    epilog="Exit codes: 0 done, 1 the work failed, 2 bad input, 3 under --strict where a "
    "transfer is not validated or an export not whole, or off the band of follow, 130 interrupted.",
)


TUNE, MODEL, STUDY, MACHINE = (
    "Tune, transfer, validate",
    "Rules of a model",
    "Studies",
    "This machine",
)
"""The groups of the verbs in the help."""


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Print the version."),
    ] = False,
) -> None:
    """What holds for all verbs; Typer takes the text from above."""


UNTRAINED = ("study", "root=", "launcher", "logger", "runner.device=", "runner.batched_trials=")
"""How the words begin that say nothing of what a search trains."""


def _choices() -> str:
    """Every group with its options, for the help."""
    from sweeper.registry import groups

    try:  # a broken conf/ is told in the help, and breaks no `--help`
        options = groups()
    except BadInput as error:
        return str(error)
    return "Groups: " + ", ".join(f"{name}={'|'.join(options[name])}" for name in options)


@VERBS.declare(TUNE, epilog=_choices)
def search(
    overrides: Overrides = None,
    study: NewStudy = None,
    root: Root = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run; train and write nothing.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Collect finished jobs, submit what can be named, and return (launcher=slurm).",
        ),
    ] = False,
    new_setup: Annotated[
        bool,
        typer.Option(
            "--new-setup", help="Go on in a study whose trials so far are of another setup."
        ),
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
    config_dir: ConfigDir = None,
) -> None:
    r"""Search the best hyperparameters at the base size, model.width and model.depth.

    With a training command of your own after --, every trial is a run of it:
    sweeper search model.width=256 'metric=loss (?P<loss>\S+)' -- python train.py --lr={eta}

    Run the same command again to go on where it stopped; what is finished is not trained again.

    Where nothing is said of what to train it searches the learning rate alone, in minutes
    (experiment=first). search=independent is the u-muP paper's search, size=paper its size.
    """

    def work() -> int:
        from sweeper.cli.studies import tree_of

        said = overrides or []
        if all(word.startswith(UNTRAINED) for word in said):
            said = [f"experiment={FIRST}", *said]
        named = with_place(said, study, root)
        tree, invocation = tree_of(None, named, config_dir)  # a misspelt key needs no torch
        # Each verb's work has its verb's name: from here on within `work`, that is the one meant.
        from sweeper.cli.search import search

        flags = {"dry_run": dry_run, "detach": detach, "new_setup": new_setup}
        return search(tree, invocation, output_of(json, verbose), **flags)

    run(work)


@VERBS.declare(TUNE)
def transfer(
    to_width: ToWidth,
    overrides: Changes = None,
    to_depth: ToDepth = None,
    to_tokens: ToTokens = None,
    to_batch: ToBatch = None,
    study: Study = None,
    root: Root = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="Train learning-rate curves along transfer.widths and depths, and judge them.",
        ),
    ] = False,
    settle: Annotated[
        bool,
        typer.Option(
            "--settle",
            help="With --validate: begin with few runs, and add those that tell most until the "
            "answer is settled.",
        ),
    ] = False,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            min=1,
            metavar="RUNS",
            help="With --settle: at most so many runs; else three times those without --settle.",
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option("--hours", help="With --settle: at most so many hours of runs."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 unless the verdict is that it holds.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="With --validate on Slurm: submit what can be, and leave."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="With --validate or --predict: show what would run; train and write nothing.",
        ),
    ] = False,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict",
            help="Train widths x steps at the planned eta, and predict the target's loss by them.",
        ),
    ] = False,
    trust: Trust = False,
    json: Json = False,
    verbose: Verbose = False,
    config_dir: ConfigDir = None,
) -> None:
    """Rescale a study's optimum to a larger model; with --validate, show whether it holds.

    Another batch or number of tokens than the study's takes a law: --to-tokens=1e9 law=joint.
    The plan with every parameter's numbers goes to <study>/transfer/<target>/plan.json.
    """

    def work() -> int:
        if strict and not validate:
            raise BadInput("--strict judges the verdict of --validate: give both")
        if dry_run and not validate and not predict:
            raise BadInput("--dry-run shows what --validate or --predict would train: give one")
        if settle and not validate:
            raise BadInput("--settle trains the ladders of --validate: give both")
        if (budget is not None or hours is not None) and not settle:
            given = "--budget" if budget is not None else "--hours"
            raise BadInput(f"{given} bounds what --settle trains: give --validate --settle, too")
        _check_hours(hours)
        if detach and (not validate or dry_run):
            raise BadInput("--detach leaves the runs of --validate in a queue: give both")
        if predict and (validate or to_batch is not None):
            other = "--validate" if validate else "--to-batch"
            raise BadInput(
                f"--predict trains its own ladder, at the base's batch: leave {other} out"
            )
        tree, invocation = _of_study(overrides, study, root, config_dir, trust)
        if predict:
            from sweeper.cli.predict import StudyTarget, predict_ladder
            from sweeper.decide.loss import Question

            asked = StudyTarget(width=to_width, depth=to_depth)
            question = Question(tokens=to_tokens)
            return predict_ladder(
                tree, asked, question, invocation, output_of(json, verbose), dry_run=dry_run
            )
        from sweeper.cli.transfer import TransferRequest, transfer
        from sweeper.cli.validate import Settle

        request = TransferRequest(
            width=to_width,
            depth=to_depth,
            tokens=to_tokens,
            batch=to_batch,
            validate=validate,
            settle=Settle(budget=budget, hours=hours) if settle else None,
            strict=strict,
            dry_run=dry_run,
            detach=detach,
        )
        return transfer(tree, request, invocation, output_of(json, verbose))

    run(work)


@VERBS.declare(TUNE)
def diagnose(
    overrides: Changes = None,
    study: Study = None,
    root: Root = None,
    over: Annotated[str, typer.Option("--over", help="The ladder: width or depth.")] = "width",
    only: Annotated[
        list[str] | None, typer.Option("--only", help="An ablation to run; may be repeated.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run; train and write nothing.")
    ] = False,
    trust: Trust = False,
    json: Json = False,
    verbose: Verbose = False,
    config_dir: ConfigDir = None,
) -> None:
    """Find out why a transfer fails: change one thing at a time, at the base and the largest size.

    The ladder is that of the newest verdict; what `transfer --validate` has trained is taken.
    """

    def work() -> int:
        if over not in ("width", "depth"):
            raise ConfigError(Keyword("over"), over, "width or depth")
        name, given = of_study(overrides or [], study, root)
        from sweeper.cli.diagnose import diagnose, judged_ladder
        from sweeper.cli.studies import study_tree

        output = output_of(json, verbose)
        ladder = judged_ladder(name, given, over, output)
        tree, invocation = study_tree(name, [*given, *ladder], config_dir, trust=trust)
        return diagnose(tree, over, only or [], invocation, output, dry_run=dry_run)

    run(work)


@VERBS.declare(MODEL)
def explain(
    context: typer.Context,
    to_width: Annotated[
        int | None, typer.Option("--to-width", min=1, help="Width of the target model.")
    ] = None,
    overrides: Overrides = None,
    to_depth: ToDepth = None,
    study: StudyInPlace = None,
    root: Root = None,
    published: Published = None,
    trust: Trust = False,
    json: Json = False,
    verbose: Verbose = False,
    config_dir: ConfigDir = None,
) -> None:
    """Show what every parameter of a model is prescribed, and why. Trains nothing.

    With --from: what a published model's multipliers stand for, and our muP from its base.
    """
    if (to_width is None) == (published is None):
        # Typer's own error, with usage and all: without --from the option would be a required one.
        reason = "give one of --to-width and --from"
        raise typer.BadParameter(reason, ctx=context, param_hint="--to-width")
    flags = {"--to-depth": to_depth, "--study": study, "--root": root, "--config-dir": config_dir}
    for flag, value in flags.items():
        if published is not None and value is not None:
            reason = "a published model has its own: it does not go with --from"
            raise typer.BadParameter(reason, ctx=context, param_hint=flag)

    def work() -> int:
        if to_width is None:
            from sweeper.cli.explain import explain_published

            assert published is not None
            return explain_published(published, overrides or [], output_of(json, verbose))
        from sweeper.cli.studies import tree_of

        placed = with_place(overrides or [], None, root)
        tree, invocation = tree_of(study, placed, config_dir, trust=trust)
        from sweeper.cli.explain import explain

        return explain(tree, to_width, to_depth, invocation, output_of(json, verbose))

    run(work)


@VERBS.declare(TUNE)
def export(
    to: Trainer = None,
    options: TrainerOptions = None,
    study: Study = None,
    root: Root = None,
    to_width: WhichWidth = None,
    to_depth: WhichDepth = None,
    plan: PlanFile = None,
    out: Out = None,
    accept: Accept = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with 3, and write nothing, where something is left to you that --accept "
            "does not name.",
        ),
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Write a study's plan as files that another trainer takes, and say what they leave to you."""

    def work() -> int:
        name, arguments = of_study(options or [], study, root)
        from sweeper.cli.export import ExportRequest, export

        request = ExportRequest(
            to=to,
            study=name,
            plan=plan,
            width=to_width,
            depth=to_depth,
            out=out,
            accept=tuple(accept or ()),
            strict=strict,
        )
        return export(request, arguments, output_of(json, verbose))

    run(work)


@VERBS.declare(MODEL)
def check(
    overrides: Overrides = None,
    study: StudyInPlace = None,
    root: Root = None,
    scales: Annotated[
        bool,
        typer.Option(
            "--scales", help="Report the RMS of every matrix product's operands instead, for FP8."
        ),
    ] = False,
    rules: Annotated[
        bool,
        typer.Option(
            "--rules", help="Measure every printed learning-rate rule over shapes instead."
        ),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where to write; <study>/check if not given."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 unless the check passes.")
    ] = False,
    trust: Trust = False,
    json: Json = False,
    verbose: Verbose = False,
    config_dir: ConfigDir = None,
) -> None:
    """Check that outputs and their changes keep their size over transfer.widths and depths.

    Trains tiny runs of a few steps: wrong rules for width and depth show at once, and where.
    """

    def work() -> int:
        from sweeper.cli.studies import tree_of

        placed = with_place(overrides or [], None, root)
        tree, invocation = tree_of(study, placed, config_dir, trust=trust)
        from sweeper.cli.check import CheckRequest, check

        request = CheckRequest(scales=scales, rules=rules, strict=strict, folder=folder)
        return check(tree, request, invocation, output_of(json, verbose))

    run(work, stopped=stopped_to_go_on("Stopped; nothing is kept.", "to begin anew"))


@VERBS.declare(STUDY)
def status(
    name: Name = None,
    study: Study = None,
    root: Root = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh until the study's driver and jobs end.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show where a study stands: trials by phase, best so far, its jobs, the running driver."""

    def work() -> int:
        from sweeper.cli.status import status

        return status(*place_of(name or [], study, root), output_of(json, verbose), watch=watch)

    run(work, stopped="Stopped watching.")


@VERBS.declare(STUDY)
def report(
    name: Names = None,
    study: Study = None,
    root: Root = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            metavar="FILE.svg",
            help="Of several studies: write their curves there too, and as FILE-dark.svg.",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE.csv",
            help="Write the runs of its validation there too, a row each, as judge reads them.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write a study's report, report.html: one page that needs no network.

    While a study runs, the page is there from its first results on, and renews itself. Of several
    studies, sweeper report A B, their curves side by side, and how they rank; a list of all, with
    their pages, is then written to the root's index.html.
    """

    def work() -> int:
        from sweeper.cli.compare import named_studies, report_several
        from sweeper.cli.status import report

        names, place = named_studies(name or [], root)
        if len(names) > 1 and csv is not None:
            raise BadInput("--csv is of one study: sweeper report STUDY --csv FILE.csv")
        if len(names) > 1 and study is None:
            return report_several(names, place, picture, output_of(json))
        if picture is not None:
            raise BadInput("--picture is of several studies: sweeper report STUDY STUDY")
        return report(*place_of(name or [], study, root), output_of(json), csv)

    run(work, stopped="Stopped.")


@VERBS.declare(STUDY)
def compare(
    names: Studies,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Compare studies whose data, model or training differ."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write; <root>/comparisons/NAMES if not given."),
    ] = None,
    to_width: Annotated[
        int | None,
        typer.Option("--to-width", min=1, help="Predict there how much compute the best saves."),
    ] = None,
    settle: Annotated[
        bool,
        typer.Option(
            "--settle",
            help="Train seeds at each study's optimum, until it is decided which is the best.",
        ),
    ] = False,
    at_width: Annotated[
        int | None,
        typer.Option(
            "--at-width",
            min=1,
            help="With --settle: the width to train; else the widest that all ladders have.",
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            min=1,
            metavar="RUNS",
            help="With --settle: at most so many runs; else 40 each.",
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option("--hours", help="With --settle: at most so many hours of runs."),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="With --settle on Slurm: submit what can be, and leave."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="With --settle: say what would run; train nothing."),
    ] = False,
    trust: Trust = False,
    root: Root = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Rank studies at equal compute: is a parameterization worth it? Trains with --settle alone.

    Of validated studies: loss at the transferred and the re-tuned eta over width, robustness, and
    what tuning cost. With --settle, after the names: settings to change, as launcher=local.
    """

    def work() -> int:
        from sweeper.cli.compare import compare_studies, named_studies

        given = {"--at-width": at_width, "--budget": budget, "--hours": hours}
        given |= {"--detach": detach or None, "--dry-run": dry_run or None}
        if not settle and (extra := [key for key, value in given.items() if value is not None]):
            raise BadInput(f"{extra[0]} is of what --settle trains: give both")
        if settle and to_width is not None:
            raise BadInput("--to-width looks beyond curves, and --settle trains none: give one")
        _check_hours(hours)
        studies, place = named_studies(names, root)
        shown = output_of(json, verbose)
        if settle:
            from sweeper.cli.ranked import RankRequest, rank_studies
            from sweeper.cli.validate import Settle

            request = RankRequest(
                names=[name for name in studies if "=" not in name],
                overrides=[name for name in studies if "=" in name],
                root=place,
                settle=Settle(budget=budget, hours=hours),
                width=at_width,
                anyway=anyway,
                out=out,
                trust=trust,
                detach=detach,
                dry_run=dry_run,
            )
            return rank_studies(request, shown)
        return compare_studies(studies, place, shown, anyway=anyway, out=out, to_width=to_width)

    run(work, stopped=None if settle else "Stopped.")


@VERBS.declare(TUNE)
def predict(
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="A table of runs, one a row: CSV, TSV, JSON, Parquet, Excel; - is CSV from a "
            "pipe. Without it a study's runs.",
        ),
    ] = None,
    study: Study = None,
    to_width: Annotated[
        int | None, typer.Option("--to-width", min=1, help="Width of a study's run to come.")
    ] = None,
    to_depth: ToDepth = None,
    columns: Annotated[
        str,
        typer.Option(
            "--columns",
            help="Which column is what, as in 'params=N,tokens=D,loss=val_loss'; also flops, "
            "run and seed. What is not named is found by its usual name.",
        ),
    ] = "",
    where: Annotated[
        str, typer.Option("--where", help="Take these rows alone, as in 'loss < 4'.")
    ] = "",
    to_params: Annotated[
        float | None, typer.Option("--to-params", help="Parameters of the run to come.")
    ] = None,
    to_tokens: Annotated[float | None, typer.Option("--to-tokens", help="Its tokens.")] = None,
    flops: Annotated[
        float | None, typer.Option("--flops", help="A budget: its best size and tokens.")
    ] = None,
    flops_per_second: Annotated[
        float | None,
        typer.Option("--flops-per-second", help="What your machines compute, for the hours."),
    ] = None,
    huber: Annotated[
        float | None,
        typer.Option(
            "--huber",
            help="Huber's threshold on log loss, by the residuals if not given.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--form", help="additive or coupled alone; averaged if not given."),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", help="Of the bootstrap.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Of the bootstrap.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write; <root>/predictions/FILE if not given."),
    ] = None,
    root: Root = None,
    trust: Trust = False,
    json: Json = False,
    verbose: Verbose = False,
    config_dir: ConfigDir = None,
) -> None:
    """Predict the loss of a large run by the law of small ones, tried backwards. Trains nothing.

    sweeper predict --study mine --to-width 4096 --to-tokens 1e11
    sweeper predict --from runs.csv --to-params 7e9 --to-tokens 1.4e11
    """

    def work() -> int:
        from sweeper.cli.predict import (
            StudyTarget,
            predict_saved,
            predict_study,
            predict_table,
        )
        from sweeper.decide.loss import Question

        question = Question(
            params=to_params,
            tokens=to_tokens,
            flops=flops,
            flops_per_second=flops_per_second,
            threshold=huber,
            form=form,
            draws=draws,
            seed=seed,
        )
        of_table = {"--columns": columns, "--where": where, "--to-params": to_params}
        of_study = {"--study": study, "--to-width": to_width, "--to-depth": to_depth}
        place = Path(root or DEFAULT_ROOT).expanduser()
        # A flag that is meant for the other source would else be passed over in silence.
        for flag, value in (of_study if source else of_table).items():
            if value:
                of = "a study" if source else "--from a table"
                raise ConfigError(flag, value, f"given with the runs of {of} alone")
        if out is not None and out.exists() and not out.is_dir():
            raise ConfigError(Keyword("out"), str(out), "a folder, or nothing yet")
        if source is not None:
            return predict_table(
                source, columns, where, question, output_of(json, verbose), out, place
            )
        from sweeper.cli.studies import tree_of
        from sweeper.study.study import find_study, is_saved

        name = find_study(study, place)
        asked = StudyTarget(width=to_width, depth=to_depth)
        if is_saved(place / name):
            return predict_saved(place / name, asked, question, output_of(json, verbose), out)
        tree, invocation = tree_of(name, with_place([], None, root), config_dir, trust=trust)
        return predict_study(tree, asked, question, invocation, output_of(json, verbose), out)

    run(work, stopped="Stopped.")


@VERBS.declare(TUNE)
def follow(
    prediction: Annotated[
        Path,
        typer.Option(
            "--prediction", metavar="FILE", help="prediction.json of `sweeper predict --study`."
        ),
    ],
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            metavar="SOURCE",
            help="Where the training loss is: a regular expression with (?P<step>...) and "
            "(?P<loss>...), jsonl:FILE:KEY, csv:FILE:COLUMN, tensorboard:TAG, wandb:KEY, or "
            "wandb:ENTITY/PROJECT/RUN:KEY of a server.",
        ),
    ],
    place: Annotated[
        Path,
        typer.Option("--run", metavar="PATH", help="The run's log, or the folder it writes to."),
    ] = Path(),
    lr: Annotated[
        str,
        typer.Option(
            "--lr",
            metavar="SOURCE",
            help="Where its learning rate is, to check the schedule; a pattern has (?P<lr>...).",
        ),
    ] = "",
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", help="Of the whole run; its tokens at the ladder's batch if not given."
        ),
    ] = None,
    alarm: Annotated[
        float,
        typer.Option("--alarm", help="The chance of ever calling a run off that is on course."),
    ] = 0.01,
    spike_steps: Annotated[
        int | None,
        typer.Option(
            "--spike-steps", help="A spike returns within these; 1 % of the run if not given."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read what there is, answer and end: for cron.")
    ] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks.")] = 30.0,
    measured: Annotated[
        float | None,
        typer.Option(
            "--measured", help="The loss at the end, where the prediction is of held-out data."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write; beside the prediction if not given."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            metavar="FILE",
            help="The ledger of outcomes; predictions.md beside the prediction's folder.",
        ),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Follow a large run: is it on the course that was predicted? Exit code 3 where it is not.

    sweeper follow --prediction prediction.json --metric jsonl:log.jsonl:loss --run runs/big
    sweeper follow --prediction prediction.json --metric wandb:train/loss --run runs/big --once
    """

    def work() -> int:
        from sweeper.cli.follow import Request, follow_run

        request = Request(
            prediction=prediction,
            metric=metric,
            run=place,
            lr=lr,
            steps=steps,
            alarm=alarm,
            spike_steps=spike_steps,
            every=every,
            measured=measured,
            out=out,
            ledger=ledger,
        )
        return follow_run(request, output_of(json, verbose), once=once)

    run(work, stopped="Stopped watching; the run goes on.")


@VERBS.declare(TUNE)
def judge(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="RUNS",
            help="A table, a run a row: CSV, TSV, JSON, Parquet, Excel; a folder of TensorBoard or "
            "offline W&B runs; wandb:ENTITY/PROJECT; an Optuna storage's URL; a study's folder.",
            show_default=False,
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            "--study",
            metavar="NAME",
            help="A study of ours, in place of RUNS; of an Optuna storage, which of its studies "
            "('w*' for several).",
        ),
    ] = None,
    series: Annotated[
        str,
        typer.Option(
            "--series",
            help="Which series of a run is its loss, a tag or a key; or jsonl:FILE:KEY, "
            "csv:FILE:COLUMN of a file in every run's folder.",
        ),
    ] = "",
    window: Annotated[
        float,
        typer.Option(
            "--window", help="The last share of its steps that it is averaged over; 0: last value."
        ),
    ] = 0.1,
    columns: Annotated[
        str,
        typer.Option(
            "--columns",
            help="Which column is what, as in 'width=n_embd,eta=lr,loss=val_loss,seed=seed'; also "
            "depth, batch_size, steps, tokens, decay, first, or optimum in place of eta and loss. "
            "What is not named is found by its usual name.",
        ),
    ] = "",
    to_width: Annotated[
        int | None,
        typer.Option("--to-width", min=1, help="The target's width, or its size along --axis."),
    ] = None,
    axis: Annotated[
        str | None,
        typer.Option(
            "--axis",
            help="Along what: width, depth, batch_size, steps, tokens, or size for several "
            "together; what differs if not given.",
        ),
    ] = None,
    where: Annotated[
        str,
        typer.Option("--where", help="Take these rows alone, as in 'optimizer == \"muon\"'."),
    ] = "",
    ignore: Annotated[
        str, typer.Option("--ignore", help="Columns that may differ between runs: 'host,lr_min'.")
    ] = "",
    base: Annotated[
        float | None,
        typer.Option("--base", help="The size tuned at; the smallest if not given."),
    ] = None,
    eta: Annotated[
        float | None,
        typer.Option("--eta", help="The transferred learning rate; the base's best if not given."),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            "--noise", help="A run's standard deviation in nats, where one seed shows none."
        ),
    ] = None,
    diverged: Annotated[
        float | None,
        typer.Option("--diverged", help="A loss above this is of a run that diverged."),
    ] = None,
    grid_step: Annotated[
        float | None,
        typer.Option(
            "--grid-step", help="The step of the grid in octaves, of a table of optima alone."
        ),
    ] = None,
    max_shift: Annotated[
        float, typer.Option("--max-shift", help="Octaves within which a size holds.")
    ] = 1.0,
    max_loss_gap: Annotated[
        float,
        typer.Option("--max-loss-gap", help="The fraction of the loss within which it holds."),
    ] = 0.01,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 unless the verdict is that it holds.")
    ] = False,
    save: Annotated[
        str | None,
        typer.Option(
            "--save", metavar="NAME", help="Keep the runs as a study, to report, compare, predict."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write; <root>/judged/FILE if not given."),
    ] = None,
    root: Root = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Judge a grid that you have: does its learning rate transfer? Trains nothing.

    sweeper judge runs.csv --columns 'width=n_embd,eta=lr,loss=val_loss' --to-width 4096
    sweeper judge logs/ --series val/loss
    """

    def work() -> int:
        from sweeper.cli.judge import JudgeRequest, judge
        from sweeper.decide.judged import Question
        from sweeper.runs.grid import ALIASES, Reading
        from sweeper.runs.trackers import Objective

        ignored = tuple(filter(None, (name.strip() for name in ignore.split(","))))
        question = Question(
            reading=Reading(
                axis=ALIASES.get(axis or "", axis),
                ignore=ignored,
                noise=noise,
                diverged=diverged,
                base=base,
                objective=Objective(series=series, window=window, study=study or ""),
            ),
            to=to_width,
            eta=eta,
            grid_step=grid_step,
            max_shift=max_shift,
            max_loss_gap=max_loss_gap,
        )
        request = JudgeRequest(
            place=place,
            study=study,
            columns=columns,
            where=where,
            question=question,
            save=save,
            strict=strict,
            out=out,
            root=Path(root or DEFAULT_ROOT).expanduser(),
        )
        return judge(request, output_of(json, verbose))

    run(work, stopped="Stopped.")


@VERBS.declare(STUDY)
def cancel(name: Name = None, study: Study = None, root: Root = None, json: Json = False) -> None:
    """Cancel a study's jobs, wherever they run, and no others; what had finished is kept."""

    def work() -> int:
        from sweeper.cli.status import cancel

        return cancel(*place_of(name or [], study, root), output_of(json))

    run(work, stopped="Stopped.")


@VERBS.declare(MACHINE)
def doctor(
    root: Root = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help="An Optuna URL to try, as study.storage."),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Say what is here and what is missing, with the command to get it.

    Exits with 2 where no search can run.
    """

    def work() -> int:
        from sweeper.cli.doctor import doctor

        return doctor(root, storage, output_of(json, verbose))

    run(work, stopped="Stopped.")


def _check_hours(hours: float | None) -> None:
    if hours is not None and not 0 < hours < math.inf:
        raise ConfigError(Keyword("hours"), hours, "a number above 0")


def _of_study(
    overrides: list[str] | None,
    study: str | None,
    root: str | None,
    config_dir: Path | None,
    trust: bool,
) -> tuple[Tree, Invocation]:
    """A study's configuration with the overrides; a misspelt one is refused before torch loads."""
    from sweeper.cli.studies import study_tree

    name, others = of_study(overrides or [], study, root)
    return study_tree(name, others, config_dir, trust=trust)


def call(words: Sequence[str], output: Output) -> int:
    """Run the command line `words` for a program: its exit code.

    What it says goes to `output`. Errors are raised as they are; BadInput for words that are no
    command line.
    """
    # Records keep the command that made them.
    before, sys.argv = sys.argv, ["sweeper", *words]
    try:
        with called_by_program(output):
            commands = typer.main.get_command(app)
            arguments = with_user_command(words)
            code = commands.main(arguments, prog_name="sweeper", standalone_mode=False) or 0
    except USAGE as error:
        raise BadInput(usage_text(error)) from None
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    finally:
        sys.argv = before
    # So Typer hands on a KeyboardInterrupt, which was an Abort in its older versions.
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return int(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _open_streams() -> None:
    """Make stdout and stderr take every word: one may be closed, or know ASCII alone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # So Python has a stream that the caller closed, as `>&-` and daemons do.
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        else:
            stream.reconfigure(errors="replace")


def _is_no_text(word: str) -> bool:
    """Whether a word is bytes that are no UTF-8; `--help` need not load `files` to ask."""
    if word.isascii():
        return False
    from sweeper.files import is_text

    return not is_text(word)


def main() -> None:
    """The `sweeper` command."""
    _open_streams()
    # Schedulers and `kill` send SIGTERM: like Ctrl-C it then unwinds, so that locks are released,
    # jobs ended and the message printed. By default Python would just be gone.
    signal.signal(signal.SIGTERM, _interrupt)
    # A model of the user's own lies in the folder worked in, as for a script started there.
    with suppress(FileNotFoundError):  # it may be gone
        sys.path.append(os.getcwd())
    # OpenMP reads its settings once, when torch loads it: before any import of torch.
    set_spin()
    collect_rarely()
    keep_warnings()
    if bad := next(filter(_is_no_text, sys.argv[1:]), None):
        sys.exit(say(f"Error: {bad!a} is refused: words in UTF-8, as records keep them", 2))
    try:
        # Before Typer parses: it drops the `--`, and the words behind it would be overrides to it.
        app(with_user_command(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(say(stopped_to_go_on(), INTERRUPTED))
    finally:
        gc.freeze()  # or Python goes over all that was loaded, twice, before it ends


if __name__ == "__main__":
    main()
