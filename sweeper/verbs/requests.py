"""What every verb takes: its name, its keywords with their types, bounds, defaults and meaning.

The command line makes options of these fields, Python makes keywords of them, and both refuse a
value by the same annotation. A field `to_width` is `--to-width` there and `to_width=` here. What
stands in no Request is no verb's business: how an answer is shown, `--json` and `--verbose`.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from sweeper.errors import Call, ConfigError, Keyword, Text
from sweeper.records import Bounds, call_checked


@dataclass(frozen=True)
class Flag:
    """What a keyword means, and how a command line writes it.

    Its `text` may name other keywords: `{settle}` as it is given, `{axis...}` by its name alone.
    `positional`: a word without a flag. `completes`: what a shell proposes for it.
    """

    text: str
    metavar: str = ""
    positional: bool = False
    completes: str = ""

    @property
    def help(self) -> Text:
        """The text in parts, its keywords as values."""
        first, *parts = re.split(r"\{(\w+)(\.\.\.)?\}", self.text)
        named = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        found = [(Keyword(name, ... if alone else True), text) for name, alone, text in named]
        return (first, *(part for pair in found for part in pair))


@dataclass(frozen=True, kw_only=True)
class Request:
    """The base of all requests: `TransferRequest` is of the verb `transfer`.

    Its docstring is the help of the verb, which stands under the title `panel`.
    """

    verb: ClassVar[str]
    panel: ClassVar[str]

    def __init_subclass__(cls, panel: str) -> None:
        """Name the verb by the class."""
        cls.verb, cls.panel = cls.__name__.removesuffix("Request").lower(), panel

    @property
    def call(self) -> Call:
        """What asks for the same again: all that is not its default."""
        flags: list[Keyword | str] = []
        words: list[str] = []
        for name, option in options_of(type(self)).items():
            value = getattr(self, name)
            # A flag that is not set is written by leaving it out.
            if value == option.default or value is None or value is False:
                continue
            values = value if option.repeats else [value]
            if option.flag.positional:
                words += map(str, values)
            else:
                flags += [Keyword(name, each) for each in values]
        return Call(self.verb, *flags, *words)


TUNE, MODEL, STUDY, MACHINE = (
    "Tune, transfer, validate",
    "Rules of a model",
    "Studies",
    "This machine",
)
"""The groups of the verbs in the help."""

AT_LEAST_ONE = Bounds(least=1)
POSITIVE = Bounds(above=0)
COUNT = Bounds(least=1, below=1e30)

Overrides = Annotated[
    tuple[str, ...],
    Flag(
        "Settings to change, as key=value in Hydra's syntax, for instance "
        "parameterization=umup model.width=128 search=lr",
        metavar="OVERRIDES",
        positional=True,
    ),
]
Changes = Annotated[
    tuple[str, ...],
    Flag(
        "Settings to change, as key=value in Hydra's syntax, for instance "
        "transfer.widths=[64,128,256] transfer.seeds=4",
        metavar="OVERRIDES",
        positional=True,
    ),
]


Study = Annotated[
    str | None, Flag("The study; the latest if not given.", metavar="NAME", completes="study")
]
NewStudy = Annotated[
    str | None,
    Flag(
        "The study's name; made from the configuration if not given.",
        metavar="NAME",
        completes="study",
    ),
]
StudyName = Annotated[
    tuple[str, ...],
    Flag("The study, as {study...} names it.", metavar="NAME", positional=True, completes="study"),
]
StudyInPlace = Annotated[
    str | None,
    Flag(
        "A study whose configuration and optimum to take, in place of the defaults.",
        metavar="NAME",
        completes="study",
    ),
]
Root = Annotated[Path | None, Flag("The folder of all studies; runs if not given.", metavar="DIR")]
ConfigDir = Annotated[
    Path | None, Flag("A folder of your own configs, laid out as GROUP/OPTION.yaml.")
]
Trust = Annotated[
    bool, Flag("Run the classes and the command that the study's own records name; remembered.")
]
ToWidth = Annotated[int, AT_LEAST_ONE, Flag("Width of the target model.")]
ToDepth = Annotated[int | None, AT_LEAST_ONE, Flag("Its depth; the base depth if not given.")]
ToTokens = Annotated[
    float | None,
    AT_LEAST_ONE,
    Flag(
        "Tokens of its whole run (examples, where those are no sequences), by a law=...; the "
        "base's if not given."
    ),
]
ToBatch = Annotated[
    int | None,
    AT_LEAST_ONE,
    Flag("Its batch, in sequences or examples a step, by a law=...; the base's if not given."),
]
DryRun = Annotated[bool, Flag("Show what would run; train and write nothing.")]
Hours = Annotated[float | None, POSITIVE, Flag("With {settle}: at most so many hours of runs.")]
Where = Annotated[str, Flag("Take these rows alone, as in 'optimizer == \"muon\"'.")]
Ignore = Annotated[
    str | tuple[str, ...], Flag("Columns that may differ between runs: 'host,lr_min'.")
]
Draws = Annotated[int, Bounds(least=100, most=100_000), Flag("Of the bootstrap.")]


@dataclass(frozen=True, kw_only=True)
class SearchRequest(Request, panel=TUNE):
    r"""Search the best hyperparameters at the base size, model.width and model.depth.

    With a training command of your own after --, every trial is a run of it:
    sweeper search model.width=256 'metric=loss (?P<loss>\S+)' -- python train.py --lr={eta}

    Run the same command again to go on where it stopped; what is finished is not trained again.

    Where nothing is said of what to train it searches the learning rate alone, by short runs
    (experiment=first). search=independent is the u-muP paper's search, size=paper its size.
    """

    overrides: Overrides = ()
    study: NewStudy = None
    root: Root = None
    dry_run: DryRun = False
    detach: Annotated[
        bool, Flag("Collect finished jobs, submit what can be named, and return (launcher=slurm).")
    ] = False
    new_setup: Annotated[
        bool, Flag("Go on in a study whose trials so far are of another setup.")
    ] = False
    config_dir: ConfigDir = None


@dataclass(frozen=True, kw_only=True)
class TransferRequest(Request, panel=TUNE):
    """Rescale a study's optimum to a larger model; with --validate, show whether it holds.

    Another batch or number of tokens than the study's takes a law: --to-tokens=1e9 law=joint.
    The plan with every parameter's numbers goes to <study>/transfer/<target>/plan.json.
    """

    to_width: ToWidth
    overrides: Changes = ()
    to_depth: ToDepth = None
    to_tokens: ToTokens = None
    to_steps: Annotated[int | None, AT_LEAST_ONE, Flag("In place of {to_tokens}: its steps.")] = (
        None
    )
    to_batch: ToBatch = None
    study: Study = None
    root: Root = None
    validate: Annotated[
        bool, Flag("Train learning-rate curves along transfer.widths and depths, and judge them.")
    ] = False
    settle: Annotated[
        bool,
        Flag(
            "With {validate}: begin with few runs, and add those that tell most until the answer "
            "is settled."
        ),
    ] = False
    budget: Annotated[
        int | None,
        AT_LEAST_ONE,
        Flag(
            "With {settle}: at most so many runs; else three times those without {settle}.",
            metavar="RUNS",
        ),
    ] = None
    hours: Hours = None
    strict: Annotated[bool, Flag("Exit with 3 unless the verdict is that it holds.")] = False
    detach: Annotated[bool, Flag("With {validate} on Slurm: submit what can be, and leave.")] = (
        False
    )
    dry_run: Annotated[
        bool, Flag("With {validate} or {predict}: show what would run; train and write nothing.")
    ] = False
    predict: Annotated[
        bool,
        Flag("Train widths x steps at the planned eta, and predict the target's loss by them."),
    ] = False
    trust: Trust = False
    config_dir: ConfigDir = None


@dataclass(frozen=True, kw_only=True)
class DiagnoseRequest(Request, panel=TUNE):
    """Find out why a transfer fails: change one thing at a time, at the base and the largest size.

    The ladder is that of the newest verdict; what `transfer --validate` has trained is taken.
    """

    overrides: Changes = ()
    study: Study = None
    root: Root = None
    over: Annotated[str, Flag("The ladder: width or depth.")] = "width"
    only: Annotated[tuple[str, ...], Flag("An ablation to run; may be repeated.")] = ()
    dry_run: DryRun = False
    trust: Trust = False
    config_dir: ConfigDir = None


@dataclass(frozen=True, kw_only=True)
class ExplainRequest(Request, panel=MODEL):
    """Show what every parameter of a model is prescribed, and why. Trains nothing.

    With --published: what a published model's multipliers stand for, and our muP from its base.
    """

    to_width: Annotated[int | None, AT_LEAST_ONE, Flag("Width of the target model.")] = None
    overrides: Overrides = ()
    to_depth: ToDepth = None
    study: StudyInPlace = None
    root: Root = None
    published: Annotated[
        Path | None,
        Flag("A published model's config.json: which rules and base its multipliers stand for."),
    ] = None
    trust: Trust = False
    config_dir: ConfigDir = None


@dataclass(frozen=True, kw_only=True)
class ExportRequest(Request, panel=TUNE):
    """Write a study's plan as files that another trainer takes, and say what they leave to you."""

    to: Annotated[
        str | None,
        Flag(
            "The trainer: automodel, hf, llm-foundry, megatron, nanogpt-mup, olmo-core, pytorch "
            "or torchtitan."
        ),
    ] = None
    options: Annotated[
        tuple[str, ...],
        Flag(
            "The trainer's own, as key=value: family=granite (hf), recipe=true (megatron), "
            "completep=true (nanogpt-mup), config=module:function (torchtitan)",
            metavar="KEY=VALUE",
            positional=True,
        ),
    ] = ()
    study: Study = None
    root: Root = None
    to_width: Annotated[int | None, AT_LEAST_ONE, Flag("The plan's, where there are several.")] = (
        None
    )
    to_depth: Annotated[int | None, AT_LEAST_ONE, Flag("The plan's, where there are several.")] = (
        None
    )
    plan: Annotated[Path | None, Flag("A plan.json in place of a study's.")] = None
    out: Annotated[Path | None, Flag("The folder to write to; export/TRAINER beside the plan.")] = (
        None
    )
    accept: Annotated[
        tuple[str, ...], Flag("What the trainer cannot express, by name; may be repeated.")
    ] = ()
    strict: Annotated[
        bool,
        Flag(
            "Exit with 3, and write nothing, where something is left to you that {accept...} does "
            "not name."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class CheckRequest(Request, panel=MODEL):
    """Check that outputs and their changes keep their size over transfer.widths and depths.

    Trains tiny runs of a few steps: wrong rules for width and depth show at once, and where.
    """

    overrides: Overrides = ()
    study: StudyInPlace = None
    root: Root = None
    scales: Annotated[
        bool, Flag("Report the RMS of every matrix product's operands instead, for FP8.")
    ] = False
    rules: Annotated[
        bool, Flag("Measure every printed learning-rate rule over shapes instead.")
    ] = False
    kernels: Annotated[
        bool,
        Flag("Put a drawn Vision Transformer's kernels beside the effective theory's instead."),
    ] = False
    folder: Annotated[Path | None, Flag("Where to write; <study>/check if not given.")] = None
    strict: Annotated[bool, Flag("Exit with 3 unless the check passes.")] = False
    trust: Trust = False
    config_dir: ConfigDir = None


@dataclass(frozen=True, kw_only=True)
class StatusRequest(Request, panel=STUDY):
    """Show where a study stands: trials by phase, best so far, its jobs, the running driver."""

    name: StudyName = ()
    study: Study = None
    root: Root = None
    watch: Annotated[bool, Flag("Refresh until the study's driver and jobs end.")] = False


@dataclass(frozen=True, kw_only=True)
class ReportRequest(Request, panel=STUDY):
    """Write a study's report, report.html: one page that needs no network.

    While a study runs, the page is there from its first results on, and renews itself. Of several
    studies, sweeper report A B, their curves side by side, and how they rank; a list of all, with
    their pages, is then written to the root's index.html.
    """

    name: Annotated[
        tuple[str, ...],
        Flag(
            "The study, as {study...} names it; several for one page.",
            metavar="NAME",
            positional=True,
            completes="study",
        ),
    ] = ()
    study: Study = None
    root: Root = None
    picture: Annotated[
        Path | None,
        Flag(
            "Of several studies: write their curves there too, and as FILE-dark.svg.",
            metavar="FILE.svg",
        ),
    ] = None
    csv: Annotated[
        Path | None,
        Flag(
            "Write the runs of its validation there too, a row each, as judge reads them.",
            metavar="FILE.csv",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CompareRequest(Request, panel=STUDY):
    """Which change wins: variants at small sizes carried to a target, or studies ranked.

    sweeper compare runs.csv --by optimizer --baseline adamw --to-params 1.2e9 --to-tokens 2.4e10

    Of validated studies at equal compute: loss at the transferred and the re-tuned eta over width,
    robustness, and what tuning cost. With --settle, after the names: settings to change, as
    launcher.workers=2. Trains with --settle alone.
    """

    names: Annotated[
        tuple[str, ...],
        Flag(
            "Studies, two or more; or runs as judge takes them, of which a column names the "
            "variants.",
            metavar="SOURCE",
            positional=True,
            completes="study",
        ),
    ]
    by: Annotated[
        str | None, Flag("The column whose values are the variants; of several tables each is one.")
    ] = None
    baseline: Annotated[str | None, Flag("The variant that all others are compared with.")] = None
    to_params: Annotated[float | None, COUNT, Flag("Parameters of the run to come.")] = None
    to_tokens: Annotated[float | None, COUNT, Flag("Its tokens.")] = None
    to_width: Annotated[
        int | None,
        AT_LEAST_ONE,
        Flag(
            "Its width; of studies: predict there how much compute the best saves, or with "
            "{settle} train until it is known which wins there."
        ),
    ] = None
    columns: Annotated[
        str | Mapping[str, str],
        Flag(
            "Which column is what, as in 'params=N,tokens=D,loss=val_loss'; also width, flops, "
            "eta, seed, throughput (tokens a second) and time. What is not named is found by its "
            "usual name."
        ),
    ] = ""
    where: Where = ""
    ignore: Ignore = ""
    floor: Annotated[
        float | None, Flag("Of the loss over compute, where you know it; fitted if not given.")
    ] = None
    exponent: Annotated[
        float | None,
        Bounds(least=1e-3, most=1),
        Flag("Of (loss - floor) over compute; fitted if not given."),
    ] = None
    error: Annotated[
        float,
        Bounds(least=1e-12, below=0.5),
        Flag("The chance that what has no effect is called better; many tries divide it."),
    ] = 0.05
    strict: Annotated[
        bool, Flag("Exit with 0 where one is better, 3 where all are worse, 4 where it is open.")
    ] = False
    anyway: Annotated[bool, Flag("Compare studies whose data, model or training differ.")] = False
    out: Annotated[Path | None, Flag("Where to write; <root>/comparisons/NAMES if not given.")] = (
        None
    )
    settle: Annotated[
        bool, Flag("Train seeds at each study's optimum, until it is decided which is the best.")
    ] = False
    at_width: Annotated[
        int | None,
        AT_LEAST_ONE,
        Flag("With {settle}: the width to train; else the widest that all ladders have."),
    ] = None
    budget: Annotated[
        int | None,
        AT_LEAST_ONE,
        Flag("With {settle}: at most so many runs; else 40 each.", metavar="RUNS"),
    ] = None
    hours: Hours = None
    detach: Annotated[bool, Flag("With {settle} on Slurm: submit what can be, and leave.")] = False
    dry_run: Annotated[bool, Flag("With {settle}: say what would run; train nothing.")] = False
    trust: Trust = False
    root: Root = None


@dataclass(frozen=True, kw_only=True)
class PredictRequest(Request, panel=TUNE):
    """Predict the loss of a large run by the law of small ones, tried backwards. Trains nothing.

    sweeper predict --study mine --to-width 4096 --to-tokens 1e11
    sweeper predict runs.csv --to-params 7e9 --to-tokens 1.4e11
    """

    source: Annotated[
        Any,
        Flag(
            "A table of runs, one a row: CSV, TSV, JSON, Parquet, Excel; - is CSV from a pipe. "
            "Without it a study's runs.",
            metavar="RUNS",
            positional=True,
        ),
    ] = None
    study: Study = None
    to_width: Annotated[int | None, AT_LEAST_ONE, Flag("Width of a study's run to come.")] = None
    to_depth: ToDepth = None
    columns: Annotated[
        str | Mapping[str, str],
        Flag(
            "Which column is what, as in 'params=N,tokens=D,loss=val_loss'; also flops, run and "
            "seed. What is not named is found by its usual name."
        ),
    ] = ""
    where: Annotated[str, Flag("Take these rows alone, as in 'loss < 4'.")] = ""
    ignore: Ignore = ""
    curves: Annotated[
        Any,
        Flag(
            "Loss curves of earlier runs, for a band: a table with a row a step, or a tracker's.",
            metavar="RUNS",
        ),
    ] = None
    to_params: Annotated[float | None, POSITIVE, Flag("Parameters of the run to come.")] = None
    to_tokens: Annotated[float | None, POSITIVE, Flag("Its tokens.")] = None
    flops: Annotated[float | None, POSITIVE, Flag("A budget: its best size and tokens.")] = None
    flops_per_second: Annotated[
        float | None, POSITIVE, Flag("What your machines compute, for the hours.")
    ] = None
    huber: Annotated[
        float | None,
        POSITIVE,
        Flag("Huber's threshold on log loss, by the residuals if not given."),
    ] = None
    form: Annotated[str | None, Flag("additive or coupled alone; averaged if not given.")] = None
    floor: Annotated[
        float | None, POSITIVE, Flag("The floor E, where you know it; fitted if not given.")
    ] = None
    exponent: Annotated[
        str | Mapping[str, float],
        Flag("Exponents that you know, as in 'alpha=0.34,beta=0.28' or 'gamma=0.15'."),
    ] = ""
    draws: Draws = 1000
    seed: Annotated[int, Bounds(least=0), Flag("Of the bootstrap.")] = 0
    out: Annotated[Path | None, Flag("Where to write; <root>/predictions/FILE if not given.")] = (
        None
    )
    root: Root = None
    trust: Trust = False
    config_dir: ConfigDir = None


@dataclass(frozen=True, kw_only=True)
class FollowRequest(Request, panel=TUNE):
    r"""Follow a large run: is it on the course that was predicted? Exit code 3 where it is not.

    sweeper follow --prediction prediction.json --metric jsonl:log.jsonl:loss --run runs/big
    sweeper follow --band seeds/ --metric 'step (?P<step>\d+) loss (?P<loss>\S+)' --run big.log
    """

    metric: Annotated[
        str,
        Flag(
            "Where the training loss is: a regular expression with (?P<step>...) and "
            "(?P<loss>...), jsonl:FILE:KEY, csv:FILE:COLUMN, tensorboard:TAG, wandb:KEY, or "
            "wandb:ENTITY/PROJECT/RUN:KEY of a server.",
            metavar="SOURCE",
        ),
    ]
    prediction: Annotated[
        Path | None,
        Flag("The prediction of a study, prediction.json, as predict wrote it.", metavar="FILE"),
    ] = None
    band: Annotated[
        Any,
        Flag(
            "Earlier runs in place of a prediction: a folder of logs or runs, a table with a row a "
            "step, wandb:ENTITY/PROJECT, a study.",
            metavar="RUNS",
        ),
    ] = None
    columns: Annotated[
        str | Mapping[str, str],
        Flag("Which column of that table is what, as in 'run=seed,loss=val_loss,params=N'."),
    ] = ""
    where: Where = ""
    run: Annotated[Path, Flag("The run's log, or the folder it writes to.", metavar="PATH")] = (
        Path()
    )
    lr: Annotated[
        str,
        Flag(
            "Where its learning rate is, to check the schedule; a pattern has (?P<lr>...).",
            metavar="SOURCE",
        ),
    ] = ""
    steps: Annotated[
        int | None, Flag("Of the whole run; its tokens at the ladder's batch if not given.")
    ] = None
    alarm: Annotated[float, Flag("The chance of ever calling a run off that is on course.")] = 0.01
    spike_steps: Annotated[
        int | None, Flag("A spike returns within these; 1 % of the run if not given.")
    ] = None
    once: Annotated[bool, Flag("Read what there is, answer and end: for cron.")] = False
    every: Annotated[float, POSITIVE, Flag("Seconds between two looks.")] = 30.0
    measured: Annotated[
        float | None, Flag("The loss at the end, where the prediction is of held-out data.")
    ] = None
    out: Annotated[Path | None, Flag("Where to write; beside the prediction if not given.")] = None
    ledger: Annotated[
        Path | None,
        Flag(
            "The ledger of outcomes; predictions.md beside the prediction's folder.", metavar="FILE"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class JudgeRequest(Request, panel=TUNE):
    """Judge a grid that you have: does its learning rate transfer? Trains nothing.

    sweeper judge runs.csv --columns 'width=n_embd,eta=lr,loss=val_loss' --to-width 4096
    sweeper judge logs/ --series val/loss

    Of runs over models and horizons it tells the rate, and the batch where that was varied:
    sweeper judge runs.csv --to-params 7e9 --to-tokens 1.4e11
    """

    source: Annotated[
        Any,
        Flag(
            "A table, a run a row: CSV, TSV, JSON, Parquet, Excel; a folder of TensorBoard or "
            "offline W&B runs; wandb:ENTITY/PROJECT; an Optuna storage's URL; a study's folder.",
            metavar="RUNS",
            positional=True,
        ),
    ] = None
    study: Annotated[
        str | None,
        Flag(
            "A study of ours, in place of RUNS; of an Optuna storage, which of its studies ('w*' "
            "for several).",
            metavar="NAME",
        ),
    ] = None
    series: Annotated[
        str,
        Flag(
            "Which series of a run is its loss, a tag or a key; or jsonl:FILE:KEY, "
            "csv:FILE:COLUMN of a file in every run's folder."
        ),
    ] = ""
    window: Annotated[
        float, Flag("The last share of its steps that it is averaged over; 0: last value.")
    ] = 0.1
    columns: Annotated[
        str | Mapping[str, str],
        Flag(
            "Which column is what, as in 'width=n_embd,eta=lr,loss=val_loss,seed=seed'; also "
            "depth, batch_size, steps, tokens, decay, first, or optimum in place of eta and loss. "
            "What is not named is found by its usual name."
        ),
    ] = ""
    to_width: Annotated[
        int | None, AT_LEAST_ONE, Flag("The target's width, or its size along {axis...}.")
    ] = None
    to_params: Annotated[
        float | None, COUNT, Flag("Parameters of a run to come: its learning rate and batch.")
    ] = None
    to_tokens: Annotated[float | None, COUNT, Flag("Its tokens.")] = None
    to_batch: Annotated[
        float | None, COUNT, Flag("Its batch, where you choose it: the rate that goes with it.")
    ] = None
    axis: Annotated[
        str | None,
        Flag(
            "Along what: width, depth, batch_size, steps, tokens, params, any other column of "
            "whole numbers by its name, or size for several; what differs if not given. Over "
            "batch the critical one is told, too."
        ),
    ] = None
    where: Where = ""
    ignore: Ignore = ""
    base: Annotated[float | None, Flag("The size tuned at; the smallest if not given.")] = None
    eta: Annotated[
        float | None, Flag("The transferred learning rate; the base's best if not given.")
    ] = None
    noise: Annotated[
        float | None, Flag("A run's standard deviation in nats, where one seed shows none.")
    ] = None
    diverged: Annotated[float | None, Flag("A loss above this is of a run that diverged.")] = None
    grid_step: Annotated[
        float | None, Flag("The step of the grid in octaves, of a table of optima alone.")
    ] = None
    max_shift: Annotated[float, Flag("Octaves within which a size holds.")] = 1.0
    max_loss_gap: Annotated[float, Flag("The fraction of the loss within which it holds.")] = 0.01
    each: Annotated[
        bool, Flag("Of settings varied one at a time around a point: carry, retune or leave each.")
    ] = False
    strict: Annotated[bool, Flag("Exit with 3 unless the verdict is that it holds.")] = False
    save: Annotated[
        str | None, Flag("Keep the runs as a study, to report, compare, predict.", metavar="NAME")
    ] = None
    out: Annotated[Path | None, Flag("Where to write; <root>/judged/FILE if not given.")] = None
    root: Root = None


@dataclass(frozen=True, kw_only=True)
class CancelRequest(Request, panel=STUDY):
    """Cancel a study's jobs, wherever they run, and no others; what had finished is kept."""

    name: StudyName = ()
    study: Study = None
    root: Root = None


@dataclass(frozen=True, kw_only=True)
class DoctorRequest(Request, panel=MACHINE):
    """Say what is here and what is missing, with the command to get it.

    Exits with 2 where no search can run.
    """

    root: Root = None
    storage: Annotated[
        str | None, Flag("An Optuna URL to try, as study.storage.", metavar="URL")
    ] = None


REQUESTS: Mapping[str, type[Any]] = {each.verb: each for each in Request.__subclasses__()}
"""Every verb's request, in the order of the help."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A keyword of a verb, as its Request declares it."""

    name: str
    flag: Flag
    type: Any
    bounds: Bounds | None
    default: Any

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is dataclasses.MISSING

    @property
    def is_path(self) -> bool:
        """Whether it names a file or a folder."""
        return Path in {self.type, *typing.get_args(self.type)}

    @property
    def repeats(self) -> bool:
        """Whether it may be given several times, a text each."""
        return bool(self.type == tuple[str, ...])


def options_of(request: Any) -> Mapping[str, Option]:
    """The keywords of a request's class by their names, in their order."""
    return _options_of(request)


@cache
def _options_of(request: Any) -> Mapping[str, Option]:
    hints = typing.get_type_hints(request, include_extras=True)
    found = {}
    for field in dataclasses.fields(request):
        kind, *extras = typing.get_args(hints[field.name])
        found[field.name] = Option(
            name=field.name,
            flag=next(each for each in extras if isinstance(each, Flag)),
            type=kind,
            bounds=next((each for each in extras if isinstance(each, Bounds)), None),
            default=field.default,
        )
    return found


def checked(request: type[Request], values: Mapping[str, Any]) -> Any:
    """The request of these values; ConfigError by its keyword for one that is refused."""
    try:
        return call_checked(request, values, {})
    except ConfigError as error:
        name = error.key.partition("[")[0]
        raise error.renamed(Keyword(name)) if name in options_of(request) else error from None


def columns_text(columns: Any) -> str:
    """Roles and columns as a text, `width=n_embd,loss=val_loss`."""
    if isinstance(columns, str):
        return columns
    return ",".join(f"{role}={column}" for role, column in columns.items())


def ignored(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Columns that may differ, one by one."""
    words = names.split(",") if isinstance(names, str) else names
    return tuple(filter(None, (word.strip() for word in words)))
