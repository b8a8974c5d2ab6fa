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
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from sweeper.config.command_line import DEFAULT_ROOT
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
        pairs = [(Keyword(name, ... if alone else True), text) for name, alone, text in named]
        return (first, *(part for pair in pairs for part in pair))


@dataclass(frozen=True, kw_only=True)
class Request:
    """The base of all requests: `TransferRequest` is of the verb `transfer`.

    Its docstring is the help of the verb, which stands under the title `panel`.
    """

    verb: ClassVar[str]
    panel: ClassVar[str]

    root: Annotated[
        Path | None, Flag("The folder of all studies; runs if not given.", metavar="DIR")
    ] = None

    def __init_subclass__(cls, panel: str) -> None:
        cls.verb, cls.panel = cls.__name__.removesuffix("Request").lower(), panel

    @property
    def call(self) -> Call:
        """What asks for the same again: all that is not its default."""
        arguments: list[Keyword | str] = []
        for name, option in _as_typed(type(self)).items():
            value = getattr(self, name)
            # A flag that is not set is written by leaving it out; a table in memory is no word.
            if value is None or value is False or not isinstance(value, _WORDS):
                continue
            if value == option.default:
                continue
            if name == "root" and str(value) == DEFAULT_ROOT:
                continue
            values: Any = value if option.repeats else [value]
            positional = option.flag.positional
            arguments += [str(each) if positional else Keyword(name, each) for each in values]
        return Call(self.verb, *arguments)


_WORDS: tuple[type, ...] = (str, int, float, Path, tuple, Mapping)
"""What a line can say of a keyword's value."""
TUNE, MODEL = "Tune, transfer, validate", "Rules of a model"
STUDY, MACHINE = "Studies", "This machine"
"""The groups of the verbs in the help."""

COMMON = ("trust", "root")
"""Keywords that mean the same for every verb that has them."""

AT_LEAST_ONE = Bounds(least=1)
POSITIVE = Bounds(above=0)


def _settings(example: str) -> Flag:
    text = f"Settings to change, as key=value in Hydra's syntax, for instance {example}"
    return Flag(text, metavar="OVERRIDES", positional=True)


def _study(text: str) -> Flag:
    return Flag(text, metavar="NAME", completes="study")


Overrides = Annotated[tuple[str, ...], _settings("parameterization=umup model.width=128 search=lr")]
Changes = Annotated[tuple[str, ...], _settings("transfer.widths=[64,128,256] transfer.seeds=4")]
Study = Annotated[str | None, _study("The study; the latest if not given.")]
NewStudy = Annotated[
    str | None, _study("The study's name; made from the configuration if not given.")
]
StudyName = Annotated[
    tuple[str, ...],
    Flag("The study, as {study...} names it.", metavar="NAME", positional=True, completes="study"),
]
StudyInPlace = Annotated[
    str | None,
    _study("A study whose configuration and optimum to take, in place of the defaults."),
]
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


@dataclass(frozen=True, kw_only=True)
class SearchRequest(Request, panel=TUNE):
    r"""Search the best hyperparameters at the base size, model.width and model.depth.

    With a training command of your own after --, every trial is a run of it:
    sweeper search model.width=64 'metric=loss (?P<loss>\S+)' -- ./train.py --lr={eta} --seed={seed}

    Run the same command again to go on where it stopped, or name the study alone; what is finished
    is not trained again.

    Where nothing is said of what to train it searches the learning rate alone, by short runs
    (experiment=first). search=independent is the u-muP paper's search, size=paper its size.
    """

    overrides: Overrides = ()
    study: NewStudy = None
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
    to_batch: ToBatch = None
    study: Study = None
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
        int | str | None,
        Flag(
            "With {settle}: at most so many runs, or so many hours of runs, as in 12h; else three "
            "times the runs without {settle}.",
            metavar="RUNS",
        ),
    ] = None
    strict: Annotated[bool, Flag("Exit with 3 unless the verdict is that it holds.")] = False
    detach: Annotated[bool, Flag("With {validate} on Slurm: submit what can be, and leave.")] = (
        False
    )
    dry_run: Annotated[
        bool, Flag("With {validate} or {horizons}: show what would run; train and write nothing.")
    ] = False
    horizons: Annotated[
        bool,
        Flag("Train widths x steps at the planned eta, whose losses tell what larger runs reach."),
    ] = False
    trust: Trust = False
    config_dir: ConfigDir = None


MOST_RUNS = 10**9
"""Of a budget, or its hours: more is a slip of the pen."""


def budget_of(budget: int | str | None) -> tuple[int | None, float | None]:
    """Its runs, or its hours; ConfigError for what is neither."""
    if budget is None:
        return None, None
    text = str(budget)
    with suppress(ValueError):
        if not text.endswith("h") and 1 <= (runs := int(text)) <= MOST_RUNS:
            return runs, None
        if text.endswith("h") and 0 < (hours := float(text[:-1])) <= MOST_RUNS:
            return None, hours
    allowed = "at least 1 run, or hours of runs, as in 12h; at most 1e9"
    raise ConfigError(Keyword("budget"), budget, allowed)


@dataclass(frozen=True, kw_only=True)
class ExplainRequest(Request, panel=MODEL):
    """Show what every parameter of a model is prescribed, and why. Trains nothing."""

    to_width: Annotated[int | None, AT_LEAST_ONE, Flag("Width of the target model.")] = None
    overrides: Overrides = ()
    to_depth: ToDepth = None
    study: StudyInPlace = None
    trust: Trust = False
    config_dir: ConfigDir = None


@dataclass(frozen=True, kw_only=True)
class ExportRequest(Request, panel=TUNE):
    """Write a study's plan as files that another trainer takes, and say what they leave to you."""

    to: Annotated[
        str | None, Flag("The trainer: hf, megatron, pytorch or torchtitan; others read plan.json.")
    ] = None
    options: Annotated[
        tuple[str, ...],
        Flag(
            "The trainer's own, as key=value: family=granite (hf), recipe=true (megatron), "
            "config=module:function (torchtitan)",
            metavar="KEY=VALUE",
            positional=True,
        ),
    ] = ()
    study: Study = None
    plan: Annotated[
        Path | None, Flag("A plan.json: of several of a study, or in place of a study's.")
    ] = None
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
    scales: Annotated[
        bool, Flag("Report the RMS of every matrix product's operands instead, for FP8.")
    ] = False
    kernels: Annotated[
        bool,
        Flag("Put a drawn Vision Transformer's kernels beside the effective theory's instead."),
    ] = False
    strict: Annotated[bool, Flag("Exit with 3 unless the check passes.")] = False
    trust: Trust = False
    config_dir: ConfigDir = None


@dataclass(frozen=True, kw_only=True)
class StatusRequest(Request, panel=STUDY):
    """Show where a study stands: trials by phase, best so far, its jobs, the running driver."""

    name: StudyName = ()
    study: Study = None
    watch: Annotated[bool, Flag("Refresh until the study's driver and jobs end.")] = False


@dataclass(frozen=True, kw_only=True)
class ReportRequest(Request, panel=STUDY):
    """Write a study's report, report.html: one page that needs no network.

    While a study runs, its page is there, and renews itself.
    """

    name: StudyName = ()
    study: Study = None
    csv: Annotated[
        Path | None,
        Flag(
            "Write the runs of its validation there too, a row each, as judge reads them.",
            metavar="FILE.csv",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CancelRequest(Request, panel=STUDY):
    """Cancel a study's jobs, wherever they run, and no others; what had finished is kept."""

    name: StudyName = ()
    study: Study = None


@dataclass(frozen=True, kw_only=True)
class DoctorRequest(Request, panel=MACHINE):
    """Say what is here and what is missing, with the command to get it.

    Exits with 2 where no search can run.
    """


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

    def read(self, text: str) -> Any:
        """A value as it is typed; ValueError for what is no number where one is due."""
        kinds = {self.type, *typing.get_args(self.type)}
        return next((kind(text) for kind in (str, int, float, Path) if kind in kinds), text)


def options_of(request: Any) -> Mapping[str, Option]:
    """The keywords of a request's class by their names, in their order."""
    return _options_of(request)


@cache
def _options_of(request: Any) -> Mapping[str, Option]:
    hints = typing.get_type_hints(request, include_extras=True)
    options = {}
    for field in sorted(dataclasses.fields(request), key=lambda field: field.name in COMMON):
        kind, *extras = typing.get_args(hints[field.name])
        options[field.name] = Option(
            name=field.name,
            flag=next(each for each in extras if isinstance(each, Flag)),
            type=kind,
            bounds=next((each for each in extras if isinstance(each, Bounds)), None),
            default=field.default,
        )
    return options


def _as_typed(request: type[Request]) -> Mapping[str, Option]:
    """The keywords in the order in which people type them: the study first, folders last."""
    options = options_of(request)

    def rank(name: str) -> int:
        if name in ("root", "config_dir"):
            return 4
        if options[name].flag.positional:
            # What a verb is about stands before its flags, settings behind them.
            return 1 if name == next(iter(options)) else 3
        return 0 if name == "study" else 2

    return {name: options[name] for name in sorted(options, key=rank)}


def checked(request: type[Request], values: Mapping[str, Any]) -> Any:
    """The request of these values; ConfigError by its keyword for one that is refused."""
    try:
        return call_checked(request, values, {})
    except ConfigError as error:
        name = error.key.partition("[")[0]
        raise error.renamed(Keyword(name)) if name in options_of(request) else error from None
