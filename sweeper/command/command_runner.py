"""User commands: their settings, one trial as one run of a command, and the job that runs it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sweeper import schedule
from sweeper.command.metrics import metric_of
from sweeper.command.process import can_run
from sweeper.command.supervise import Supervisor, make_folder
from sweeper.command.template import (
    OTHERS,
    RESERVED,
    SIZES,
    Launch,
    Style,
    Template,
    Values,
    each,
    flat,
    float_text,
    styled,
    templates_in,
    under_torchrun,
    values_of,
)
from sweeper.data.corpus import Corpus
from sweeper.errors import Call, ConfigError, SweeperError, flag, key_prefix, suggest
from sweeper.files import private_folder, write_json
from sweeper.launch.code import changed_files, command_files, file_digests, missing_script
from sweeper.launch.executor import Batch, Executor, Launcher, Machine
from sweeper.launch.job import Control, Job, JobOutcome, Resources
from sweeper.launch.machine import has_gpus, visible_gpus
from sweeper.records import AT_LEAST_ONE, AtLeastOne, Bounds, check_bounds, to_json
from sweeper.search.prune import Pruner
from sweeper.stats.ladder import Size
from sweeper.study.folder import PLAN
from sweeper.trial import Trial, TrialSpec

if TYPE_CHECKING:
    from sweeper.plan.plan import TransferPlan

NUMERICS = 1
"""Part of every trial's key: raised when results would be computed otherwise."""
WITHOUT_METRIC = "report"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A user command that is run for every trial: the one record of its settings.

    `command` is the command with placeholders; `arguments` are added in a `style`. `metric` and
    `heldout` say where losses come from: null for the report file. `uses` names what the script
    takes from trial.json by itself. A run is resumed with the words `resume` where its folder has
    a file that matches `resume_if`. `code` are patterns of the files that count as the code (null:
    the script). It has the environment of this process, or with `env` only the usual variables and
    those that match its patterns. `launch` is plain or torchrun (`torchrun`: further options of
    its own), on `nodes` with `tasks` processes each (null: `gpus`, or one).

    A run that says nothing for `hang` seconds is ended, with SIGTERM and after `grace` seconds
    SIGKILL; so is one that prints more than `output` megabytes. After so many equal `failures` in a
    row the search stops.
    """

    command: tuple[str, ...] = ()
    style: Style = "equals"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    metric: str | None = None
    heldout: str | None = None
    uses: tuple[str, ...] = ()
    resume_if: str | None = None
    resume: tuple[str, ...] = ()
    code: tuple[str, ...] | None = None
    cwd: str | None = None
    env: tuple[str, ...] | None = None
    launch: Launch = "plain"
    torchrun: tuple[str, ...] = ()
    nodes: AtLeastOne = 1
    tasks: Annotated[int | None, AT_LEAST_ONE] = None
    gpus: Annotated[int | None, Bounds(least=0, allowed="a whole number, at least 0")] = None
    cpus: Annotated[int | None, AT_LEAST_ONE] = None
    memory: str | None = None
    time: Annotated[int | None, AT_LEAST_ONE] = None
    hang: Annotated[
        float | None, Bounds(above=0, allowed="null, or a positive number of seconds")
    ] = 1800.0
    grace: Annotated[float, Bounds(least=0, allowed="at least 0 seconds")] = 10.0
    output: Annotated[
        float | None, Bounds(above=0, allowed="null, or a positive number of megabytes")
    ] = 1000.0
    failures: AtLeastOne = 3

    def __post_init__(self) -> None:
        if not self.command:
            example = ("the words of a command, as in ", Call("search", command=("WORDS",)))
            raise ConfigError("command", [], example)
        check_bounds(self)
        for key in ("metric", "heldout"):
            if (spec := getattr(self, key)) is not None:
                metric_of(spec, key)
        if self.resume_if is not None:
            pattern = Path(self.resume_if)
            if not self.resume_if or pattern.is_absolute() or ".." in pattern.parts:
                raise ConfigError("resume_if", self.resume_if, "a pattern within a trial's folder")
        patterns = self.env or ()
        if bad := next((name for name in patterns if not re.fullmatch(r"[\w*?\[\]]+", name)), None):
            allowed = "names of variables or patterns of names: set a value where you call sweeper"
            raise ConfigError("env", bad.partition("=")[0], allowed)
        # Parsed now, so that a bad brace is refused with the configuration.
        _ = self._templates

    @cached_property
    def _templates(self) -> dict[str, Any]:
        """The command, its arguments and `resume`, by key: templates in the place of texts."""
        values = {
            "command": list(self.command),
            **{f"arguments.{key}": value for key, value in flat(self.arguments).items()},
            "resume": list(self.resume),
        }
        return {key: each(value, partial(_template, key=key)) for key, value in values.items()}

    @property
    def names(self) -> set[str]:
        """Every placeholder that is used."""
        return {
            n for value in self._templates.values() for t in templates_in(value) for n in t.names
        }

    def filled(self, values: Values, *, resumed: bool, write: bool = True) -> list[str]:
        """The command as it is run, every placeholder filled, under its `launch`.

        A file of arguments goes to `values["dir"]` if asked to `write`. ConfigError names the key
        of an expression without a value.
        """
        number = float_text(self.style)
        parts: dict[str, list[str]] = {"command": [], "resume": []}
        arguments = {}
        for key, value in self._templates.items():
            if key in parts:
                parts[key] = [template.text(values, number) for template in value]
                continue
            try:
                filled = each(value, lambda t: t.value(values) if isinstance(t, Template) else t)
            except ConfigError as error:
                raise ConfigError(key, error.value, error.allowed) from error
            arguments[key.removeprefix("arguments.")] = filled
        added = styled(self.style, arguments, Path(values["dir"]), write=write)
        argv = [*parts["command"], *added, *(parts["resume"] if resumed else [])]
        return under_torchrun(argv, values, self.torchrun) if self.launch == "torchrun" else argv

    @cached_property
    def folder(self) -> Path:
        """Where the command runs."""
        return Path(self.cwd or os.getcwd()).expanduser().absolute()

    @cached_property
    def digests(self) -> dict[str, str]:
        """The code, by file; ConfigError for patterns without one."""
        with key_prefix("runner"):
            files = command_files(self.command, self.code, self.folder)
            return file_digests(files, self.folder)

    def identity(self) -> dict[str, Any]:
        """The command, what is read of it, and its code; where it lies is no part of it."""
        return {
            "name": "command",
            "numerics": NUMERICS,
            "command": list(self.command),
            "style": self.style,
            "arguments": dict(self.arguments),
            "launch": self.launch,
            "metric": self.metric or WITHOUT_METRIC,
            "heldout": self.heldout or WITHOUT_METRIC,
            "code": self.digests,
        }

    def check_use(self, hyperparameters: Sequence[str], *, scaled_by_user: bool) -> None:
        """ConfigError for a placeholder that nothing fills, or a value that nothing takes."""
        if clash := sorted(RESERVED & set(hyperparameters)):
            allowed = f"another name: {{{clash[0]}}} is a placeholder of every command"
            raise ConfigError("parameterization.space", clash[0], allowed)
        placeholders = {*hyperparameters, *SIZES, *OTHERS, "base.width", "base.depth"}
        for key, value in self._templates.items():
            for template in templates_in(value):
                template.check(placeholders, key)
        names = {*hyperparameters, *RESERVED, "watch", "*"} - {"base", "dir"}
        for name in self.uses:
            if name not in names:
                raise ConfigError("uses", name, f"no such name; {suggest(name, names)}")
        takes = self.names | set(self.uses)
        if not scaled_by_user and "plan" not in takes:
            raise ConfigError(
                "command",
                " ".join(self.command),
                f"a command that takes the plan, such as {flag('plan')}={{plan}}; or "
                "runner.uses=[plan], where the script reads SWEEPER_PLAN",
            )
        # Each by a placeholder, or all at once: by {trial}, the file that has them, or uses=["*"].
        lacking = [name for name in hyperparameters if not {name, "trial", "*"} & takes]
        if scaled_by_user and lacking:
            name = lacking[0]
            raise ConfigError(
                "command",
                " ".join(self.command),
                f"a command that takes {name}, such as --{name}={{{name}}}; or "
                f"runner.uses=[{name}], where the script reads it from trial.json",
            )

    def measures(self, kind: str) -> bool:
        """Outputs of modules, where the script calls `sweeper.watch`."""
        return kind == "coordinates" and "watch" in self.uses

    def takes(self, name: str) -> bool:
        """Whether the command takes a size or the seed; it reads data of its own."""
        # A plan is of a width and a depth: it tells the script nothing else.
        files = {"trial", "*"} | ({"plan"} if name in ("width", "depth") else set())
        return name != "data" and bool({name, *files} & (self.names | set(self.uses)))

    def precision(self, launcher: Launcher) -> str:
        """The command's own affair."""
        return "float32"

    def validate(self, trial: Trial, corpus: Corpus, launcher: Launcher) -> None:
        """ConfigError for a command that cannot be found, or placeholders without a value."""
        with key_prefix("runner"):
            if not self.folder.is_dir():
                raise ConfigError("cwd", str(self.folder), "a folder that is there")
            argv = self.argv(trial, Path("DIR"))
            if not can_run(argv[0], self.folder, os.environ.get("PATH")):
                raise ConfigError("command", argv[0], "a program that can be found and executed")
            # `python train.py` can be started whether or not train.py is there.
            if script := missing_script(self.command, self.folder):
                raise ConfigError("command", script, f"a script that is there, from {self.folder}")
        _ = self.digests

    def argv(
        self, trial: Trial, folder: Path, *, resumed: bool = False, write: bool = False
    ) -> list[str]:
        """The command of a trial; a file of arguments is only there if asked to `write`."""
        values = values_of(trial, folder, {**self.counts(), "resume": str(resumed).lower()})
        return self.filled(values, resumed=resumed, write=write)

    def counts(self) -> dict[str, int]:
        """Nodes, GPUs and processes on a node."""
        gpus = self.gpus or 0
        return {"nodes": self.nodes, "gpus": gpus, "tasks": self.tasks or max(1, gpus)}

    def machine(self) -> Machine:
        """GPUs in groups of as many as a trial wants, all where none is named; and the threads."""
        unsaid = self.gpus is None and has_gpus()
        visible = list(visible_gpus("cuda")) if self.gpus or unsaid else []
        wanted = self.gpus or len(visible)
        starts = range(0, len(visible) - wanted + 1, wanted) if wanted else ()
        groups = [visible[start : start + wanted] for start in starts]
        return Machine(
            gpus=tuple(",".join(group) for group in groups), threads=len(os.sched_getaffinity(0))
        )

    def sharing(self, launcher: Launcher) -> str:
        """How its trials share this machine, for the user; empty where nothing is chosen."""
        how = launcher.sharing(machine := self.machine())
        alone = bool(how and self.gpus is None and machine.gpus)
        return how + "; a trial sees all GPUs, and runner.gpus=N gives each N of its own" * alone

    def parameters(self, spec: TrialSpec) -> None:
        """Not known."""

    def flops(self, spec: TrialSpec) -> float:
        """What FLOPs are in proportion to in most models: width^2 x depth x tokens."""
        train = spec.train
        tokens = train.steps * train.batch_size * train.seq_len
        return float(spec.width**2 * spec.depth * tokens)

    def estimate(
        self, trials: Sequence[Trial], corpus: Corpus, launcher: Launcher
    ) -> tuple[int, float]:
        """One trial a job; how long it takes is not known."""
        return 1, math.nan

    def open(
        self,
        corpus: Corpus,
        launcher: Launcher,
        folder: Path,
        notify: Callable[[str], None],
        planned: int = 0,
    ) -> CommandRunner:
        """The runner of one sweep, whose trials have folders below `folder`."""
        return CommandRunner(self, folder)


def _template(value: Any, key: str) -> Any:
    return Template.parse(value, key) if isinstance(value, str) else value


class CommandRunner:
    """Commands as jobs; see `Runner`."""

    def __init__(self, settings: Command, folder: Path) -> None:
        self.settings, self.folder = settings, folder.absolute() / "trials"
        # A job may run from another folder, and must take the very code of the trials' keys.
        self.there = replace(settings, cwd=str(settings.folder))

    def machine(self) -> Machine:
        """See `Command.machine`."""
        return self.settings.machine()

    def batches(
        self, trials: Sequence[Trial], executor: Executor, ahead: Sequence[Trial] = ()
    ) -> list[Batch]:
        """One trial a job, and one of every size first.

        What is too large fails at once, not after hours of smaller ones, and how long all of it
        takes is soon known.
        """
        if executor.layouts:
            executor.use(executor.layouts[-1])
        first = {trial.spec: trial for trial in reversed(trials)}
        sizes = {trial.key for trial in first.values()}
        ordered = sorted(trials, key=lambda trial: trial.key not in sizes)
        return [(trial,) for trial in ordered]

    def job(self, batch: Batch, pruner: Pruner | None) -> Job:
        """The job of a trial; what its script may read is written first."""
        (trial,), settings = batch, self.settings
        folder = self.folder / trial.key
        private_folder(self.folder)
        make_folder(folder)
        train = trial.train
        record = {
            "trial": trial.key,
            "hyperparameters": to_json(trial.values),
            "width": trial.width,
            "depth": trial.depth,
            "base_width": trial.spec.base_width,
            "base_depth": trial.spec.base_depth,
            "steps": train.steps,
            "batch_size": train.batch_size,
            "seq_len": train.seq_len,
            "schedule": schedule.record(train.schedule, train.span),
            "seed": trial.seed,
            "dir": str(folder),
        }
        # Without a sum: it is for the script, which may be written in anything.
        write_json(folder / "trial.json", record, summed=False)
        if trial.spec.parameterization.name != "own":
            write_json(folder / PLAN, to_json(plan_of_trial(trial)))
        task = RunCommand(
            trials=(trial,),
            command=self.there,
            folder=str(folder),
            code=settings.digests,
            pruner=pruner,
        )
        asked = ("nodes", "gpus", "cpus", "memory", "time")
        resources = Resources(**{name: getattr(settings, name) for name in asked})
        return Job(task=task, resources=resources)

    def forget(self, batch: Batch) -> None:
        """A trial's folder is the user's: it stays."""

    def tidy(self, is_finished: Callable[[str], bool], *, idle: bool) -> None:
        """Nothing: as `forget`."""


def plan_of_trial(trial: Trial) -> TransferPlan:
    """What the trial's model is trained with, at its own hyperparameters and size."""
    # A job's process imports this file, and prepares no model: what does is slow to import.
    from sweeper.engine.prepare import prepare
    from sweeper.plan.plan import make_plan

    spec = trial.spec
    base = Size(width=spec.base_width, depth=spec.base_depth)
    target = Size(width=spec.width, depth=spec.depth)
    source = {"trial": trial.key, "seed": trial.seed}
    return make_plan(prepare(spec), base, target, trial.hps, source)


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """The task of a job: run a trial's command, its files in `folder`.

    `code` are the digests of the files that it was submitted with.
    """

    trials: tuple[Trial]
    command: Command
    folder: str
    code: Mapping[str, str]
    pruner: Pruner | None = None

    def run(self, control: Control) -> JobOutcome:
        """See `Supervisor`; SweeperError, and nothing is run, once the code is another."""
        if changed := changed_files(self.code, str(self.command.folder)):
            raise SweeperError(
                f"{', '.join(changed)} changed since the search began: run the same command again "
                "to train with the code as it is now"
            )
        folder = Path(self.folder)
        return Supervisor(self.trials[0], self.command, folder, control, self.pruner).run()

    def modules(self) -> list[str]:
        """None that this process imports."""
        return []


# What the script's text can tell before a search: an option of sweeper's that ended up behind `--`
# would silently be the script's, and a loss that nothing reports would be missed only at the end.


OPTIONS = (
    *("study", "root", "dry-run", "detach", "new-setup", "json", "config-dir"),
    *("to-width", "to-depth", "to-tokens", "to-batch", "validate", "settle"),
    *("budget", "strict", "horizons", "trust", "verbose"),
)
"""The long options of `search` and `transfer`."""
OURS_ALONE = (
    *("dry-run", "detach", "new-setup", "config-dir"),
    *("to-width", "to-depth", "strict", "trust"),
)
"""Those that are said of any script that does not mention them: `--dry-run` there would train."""
OF_GROUPS_ALONE = re.compile(r"\+*(launcher|runner|search|transfer)[.=]")
"""Settings in groups that no script's own have."""


def unknown_to_script(tree: Mapping[str, Any]) -> list[str]:
    """Arguments of a configuration's command that are options or keys of sweeper's alone.

    An argument is the script's where its text mentions it. Where that mentions none of the other
    options either, they are read elsewhere, and only `OURS_ALONE` can be said; nor is anything of
    keys that Hydra reads.
    """
    command, script = _command_and_text(tree)
    options = [word for word in command if word.startswith("--") and word != "--"]
    ours = [word for word in options if "{" not in word and _name(word) in OPTIONS]
    # A script may well have a --study or --root of its own: then it mentions the word.
    strangers = [word for word in ours if not _mentions(script, _name(word))]
    settings = [word for word in command if _is_setting(word, tree, script)]
    if not any(_mentions(script, _name(word)) for word in options if word not in ours):
        strangers = [word for word in strangers if _name(word) in OURS_ALONE]
        settings = [word for word in settings if OF_GROUPS_ALONE.match(word)]
    return strangers if re.search(r"hydra|omegaconf", script) else [*strangers, *settings]


def _is_setting(word: str, tree: Mapping[str, Any], script: str) -> bool:
    """Whether it sets a key of ours, without a placeholder, that the script does not mention."""
    match = re.match(r"(\+*)((\w+)[\w.]*)=(?!.*\{[a-z][\w.]*\})", word)
    ours = {**tree, "metric": None, "heldout": None}
    if match is None or not _has(ours, match[3] if match[1] else match[2]):
        return False
    name = match[2] if OF_GROUPS_ALONE.match(word) else match[2].split(".")[-1]
    return not _mentions(script, name)


def reports_no_loss(tree: Mapping[str, Any]) -> bool:
    """Whether nothing says where a command's loss is, and its script's text knows of no report."""
    _, script = _command_and_text(tree)
    metric = tree["runner"].get("metric")
    return metric is None and bool(script) and not re.search(r"SWEEPER|sweeper", script)


CLIP_WORDS = ("grad_clip", "clip_grad_norm", "clip_grad_norm_", "max_norm", "max_grad_norm")
OFF = r"[=\s]+(0|0\.0|inf|none|null)\s"


def clips_scales(tree: Mapping[str, Any]) -> str:
    """What to say of clipping by a command's script, which undoes a plan's scales."""
    command, script = _command_and_text(tree)
    arguments = flat(tree["runner"].get("arguments") or {})
    line = " ".join([*command, *(f"{key}={value}" for key, value in arguments.items()), ""])
    if any(re.search(_spellings(name) + OFF, line, re.IGNORECASE) for name in CLIP_WORDS):
        return ""
    clip = ", ".join(name for name in CLIP_WORDS if _mentions(line + script, name))
    how = f"the script clips by one norm of all gradients ({clip}), which undoes the plan's scales"
    return f"{how}: turn it off" if clip else ""


def _command_and_text(tree: Mapping[str, Any]) -> tuple[Sequence[str], str]:
    command: Sequence[str] = tree["runner"].get("command") or ()
    cwd = Path(tree["runner"].get("cwd") or ".").expanduser()
    texts = [(cwd / name).read_bytes() for name in command_files(command, None, cwd)]
    # A zero byte: a program, and no script's text.
    return command, "".join(text.decode(errors="replace") for text in texts if b"\0" not in text)


def _name(word: str) -> str:
    return word.removeprefix("--").partition("=")[0]


def _mentions(script: str, name: str) -> bool:
    """Whether the text has the word, its dashes written as underscores or not."""
    return re.search(rf"{_spellings(name)}\b", script) is not None


def _spellings(name: str) -> str:
    return rf"\b{'[-_]'.join(map(re.escape, re.split('[-_]', name)))}"


def _has(tree: Mapping[str, Any], key: str) -> bool:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True
