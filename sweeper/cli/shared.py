"""What verbs that read a configuration share: the study's, the corpus, and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweeper.cli.output import Output, find_study
from sweeper.config.command_line import DEFAULT_ROOT, command_line, repeated
from sweeper.config.compose import Tree, compose_tree, override_value, parse_overrides, read_tree
from sweeper.config.settings import Experiment, Settings, check_model_size
from sweeper.errors import BadInput, ConfigError
from sweeper.registry import OVERLAYS
from sweeper.report.cost import TrialSeconds
from sweeper.report.progress import SweepProgress
from sweeper.study.study import Study, check_config_format, read_root
from sweeper.trial import Log2Hps, Result, Trial, defaults
from sweeper.verdict.ladder import Size

# The configuration of a study that exists, with overrides on top; no torch.


_STUDY_KEYS = ("study", "study.name")


@dataclass(frozen=True, kw_only=True)
class Typed:
    """How a command's configuration was given, for the command that comes next.

    `of_study`: it is that of a study that exists, under whose optimum the command works.
    """

    words: Sequence[str] = ()
    config_dir: Path | None = None
    of_study: bool = False

    def again(self, verb: str, settings: Settings, *changes: str) -> str:
        """A command line of `verb` for the same configuration, with `changes`."""
        keys = tuple(f"{change.partition('=')[0]}=" for change in changes if "=" in change)
        kept = [word for word in self.words if not keys or not word.startswith(keys)]
        given = repeated([*kept, *changes], settings.root, self.config_dir)
        return command_line(verb, *given, study=settings.name if self.of_study else None)


def split_root(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The root folder that the overrides give (default runs), and the other overrides."""
    root, others = Path(DEFAULT_ROOT), []
    for word, override in zip(words, parse_overrides(words), strict=True):
        if override.key_or_group == "root":
            root = read_root(override_value("root", override.value()))
        else:
            others.append(word)
    return root, others


def study_tree(name: str | None, words: Sequence[str], config_dir: Path | None) -> Tree:
    """A study's settings with overrides on top; BadInput for what a study cannot change."""
    root, others = split_root(words)
    study = find_study(name, root)
    for override in parse_overrides(others):
        key = str(override.key_or_group)
        if key.split(".")[0] in ("parameterization", *OVERLAYS) or key in _STUDY_KEYS:
            raise BadInput(
                f"{key} cannot be changed for the study {study!r}: search anew with it, or choose "
                "another study with --study"
            )
    check_config_format(root / study)
    tree = read_tree(root / study / "config.yaml", others, config_dir) | {"root": str(root)}
    if isinstance(tree.get("study"), dict):
        tree["study"]["name"] = study
    return tree


def tree_of(study: str | None, words: Sequence[str], config_dir: Path | None) -> Tree:
    """The configuration of a study where one is named, else of the defaults and the overrides."""
    if study is None:
        return compose_tree(words, config_dir)
    return study_tree(study, words, config_dir)


# What commands that train share: the corpus, and progress.


def open_experiment(settings: Settings, cache: Path | None = None) -> Experiment:
    """Prepare the corpus; BadInput when it cannot serve the training."""
    try:
        corpus = settings.source.prepare(cache or settings.cache)
    except BadInput as error:
        raise BadInput(f"data: {error}") from error
    train = settings.raw["train"]
    corpus.check(train["batch_size"], train["seq_len"])
    return Experiment(
        settings=settings, corpus=corpus, precision=settings.runner.precision(settings.launcher)
    )


def check_model(experiment: Experiment, output: Output) -> None:
    """Train one step of the base model; say which rules the ladder's models cannot follow."""
    settings = experiment.settings
    hps = defaults(settings.space)
    trial = experiment.trial(settings.base, hps, 0, "check")
    settings.runner.validate(trial, experiment.corpus, settings.launcher)
    for sentence in settings.notes:
        output.tell(f"Note: {sentence}")


def changed_code(experiment: Experiment, study: Study) -> list[str]:
    """The user's own files and modules that are others than those of the study's last trial."""
    results = study.results()
    if not results:
        return []
    now, then = experiment.settings.identity, results[-1].trial.spec.runner
    changed = []
    for kind in ("code", "modules"):
        old, new = then.get(kind) or {}, now.get(kind) or {}
        changed += [name for name in old if name in new and old[name] != new[name]]
    return changed


def check_target(settings: Settings, size: Size) -> None:
    """Refuse a target that the model cannot have, by the name of the option that gave it."""
    try:
        check_model_size(settings, size)
        check_taken(settings, {"width": size.width, "depth": size.depth})
    except ConfigError as error:
        flag = {"model.width": "--to-width", "model.depth": "--to-depth"}.get(error.key)
        raise BadInput(f"{flag} {error.value}: {error.allowed}") if flag else error from error
    for name in ("width", "depth"):
        asked, base = getattr(size, name), getattr(settings.base, name)
        if asked < base:
            raise BadInput(
                f"--to-{name} {asked}: at least the base's {name}, {base}, since small models are "
                f"tuned and large ones trained. Search with model.{name}={asked} or less; a "
                f"{name} below the base's may be on the ladder, transfer.{name}s=[{asked},{base}]"
            )


def check_taken(settings: Settings, sizes: Mapping[str, int]) -> None:
    """ConfigError for a size that differs from the base's and that the command does not take."""
    base = settings.ladder_base
    for name, size in sizes.items():
        if size != getattr(base, name) and not settings.runner.takes(name):
            raise ConfigError(
                "runner.command",
                " ".join(settings.raw["runner"]["command"]),
                f"a command that takes {{{name}}}: it is to differ from the base's, "
                f"{getattr(base, name)}",
            )


def short_run(
    experiment: Experiment,
    size: Size,
    log2_hps: Log2Hps,
    seed: int,
    measurement: str,
    **changed: Any,
) -> Trial:
    """A run that measures, in full precision, its training `changed`: no trial of the study."""
    spec = experiment.spec(size)
    train = replace(spec.train, **changed)
    if train.precision != "float64":
        train = replace(train, precision="float32")
    trial = experiment.trial(size, log2_hps, seed, "check")
    return replace(trial, spec=replace(spec, train=train), measurement=measurement)


def progress(
    settings: Settings,
    output: Output,
    job: str,
    planned: int,
    folder: Path | None = None,
    known: Iterable[Result] = (),
) -> SweepProgress:
    """A listener that weighs trials by their FLOPs, and writes to `folder` (None: the study's).

    Runs of a command are weighed by the time that such runs took, those of `known` among them.
    """
    where, work = folder or settings.folder, work_of(settings)
    seconds = trial_seconds(settings, known) if settings.raw["runner"].get("command") else None
    return SweepProgress(where, output.watchers, job, planned=planned, work=work, seconds=seconds)


def work_of(settings: Settings) -> Callable[[Trial], float]:
    """A trial's FLOPs; trials weigh the same where nobody knows them."""
    return lambda trial: settings.runner.flops(trial.spec) or 1.0


def trial_seconds(settings: Settings, known: Iterable[Result]) -> TrialSeconds:
    """How long a run takes, by those of `known` that this very runner has made."""
    own = (result for result in known if result.trial.spec.runner == settings.identity)
    return TrialSeconds(work_of(settings), own)
