"""The resolved configuration as records: every value is checked here, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sweeper.data.corpus import Corpus, Source
from sweeper.errors import ConfigError, suggest
from sweeper.launch.launcher import Launcher
from sweeper.plugs import build, call
from sweeper.report.log import Logger
from sweeper.search.strategy import Strategy
from sweeper.study import check_name
from sweeper.training.recipe import Recipe, prepare
from sweeper.transfer.ladder import LadderRule, Size
from sweeper.trial import Axis, Hps, Space, Trial

NUMERICS = 1
"""Part of every trial's key: raised when a change makes trials train differently."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """A study's name (None: made from the configuration) and its Optuna URL (None: SQLite)."""

    name: str | None = None
    storage: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One command's configuration. `raw` is the resolved tree that it was read from."""

    raw: Mapping[str, Any]
    name: str
    storage: str | None
    root: Path
    space: Space
    search: Strategy
    launcher: Launcher
    source: Source
    logger: Logger
    transfer: LadderRule
    base: Size

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return self.root / self.name

    @property
    def cache(self) -> Path:
        """Where tokenized corpora are kept, for all studies."""
        return self.root / ".cache"

    def setup(self, data: Mapping[str, Any], precision: str, size: Size) -> dict[str, Any]:
        """What determines a trial beside hyperparameters and seed; see `Trial.setup`."""
        scheme = {k: v for k, v in self.raw["parameterization"].items() if k != "space"}
        train = dict(self.raw["train"])
        if train["precision"] == "auto":
            train["precision"] = precision
        return {
            "numerics": NUMERICS,
            "parameterization": scheme,
            "model": {**self.raw["model"], "width": size.width, "depth": size.depth},
            "base": {"width": self.base.width, "depth": self.base.depth},
            "optimizer": dict(self.raw["optimizer"]),
            "data": dict(data),
            "train": train,
        }


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Settings with their corpus at hand: makes trials of any size."""

    settings: Settings
    corpus: Corpus
    precision: str

    def recipe(self, size: Size) -> Recipe:
        """The prepared setup at `size`."""
        return prepare(self.settings.setup(self.corpus.identity(), self.precision, size))

    def trial(self, size: Size, hps: Hps, seed: int, phase: str) -> Trial:
        """A trial of `size`."""
        setup = self.settings.setup(self.corpus.identity(), self.precision, size)
        return Trial(setup=setup, hps=dict(hps), seed=seed, phase=phase)


def _under(key: str, make: Callable[[], T]) -> T:
    """`make()`, its ConfigError seen from the root of the configuration."""
    try:
        return make()
    except ConfigError as error:
        raise error.below(key) from error


def read_space(parameterization: Mapping[str, Any]) -> Space:
    """The search space of a parameterization's config: every hyperparameter it knows, no other."""
    space = parameterization.get("space")
    if not isinstance(space, Mapping):
        raise ConfigError("space", space, "a mapping from hyperparameter to {low, high, default}")
    scheme = build({k: v for k, v in parameterization.items() if k != "space"})
    known = scheme.hyperparameters
    for name in space:
        if name not in known:
            raise ConfigError(f"space.{name}", space[name], f"no such name; {suggest(name, known)}")
    for name in known:
        if name not in space:
            raise ConfigError(f"space.{name}", None, "{low, high, default} in log2")
    return {name: _under(f"space.{name}", lambda n=name: _axis(space[n])) for name in known}  # type: ignore[misc]


def _axis(value: Any) -> Axis:
    if not isinstance(value, Mapping):
        raise ConfigError("", value, "a mapping with low, high and default, in log2")
    axis: Axis = call(Axis, value, {})
    return axis


def resolve(raw: Mapping[str, Any]) -> Settings:
    """Check the whole tree and build its plugs; ConfigError names the first key that is refused."""
    parameterization = raw["parameterization"]
    space = _under("parameterization", lambda: read_space(parameterization))
    study: StudySettings = _under("study", lambda: call(StudySettings, raw["study"], {}))
    base = Size(width=_whole(raw, "width"), depth=_whole(raw, "depth"))
    settings = Settings(
        raw=raw,
        name=check_name(study.name if study.name is not None else default_name(raw)),
        storage=study.storage,
        root=_root(raw["root"]),
        space=space,
        search=_under("search", lambda: build(raw["search"])),
        launcher=_under("launcher", lambda: build(raw["launcher"])),
        source=_under("data", lambda: build(raw["data"])),
        logger=_under("logger", lambda: build(raw["logger"])),
        transfer=_under("transfer", lambda: call(LadderRule, raw["transfer"], {})),
        base=base,
    )
    _under("search", lambda: settings.search.plan(space))
    _check_sizes(settings)
    return settings


def _root(value: Any) -> Path:
    if not isinstance(value, str) or not value:
        raise ConfigError("root", value, "the path of a folder")
    return Path(value).expanduser()


def _whole(raw: Mapping[str, Any], key: str) -> int:
    """`model.<key>`, a positive whole number."""
    value = raw["model"].get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"model.{key}", value, "a whole number, at least 1")
    return value


def _check_sizes(settings: Settings) -> None:
    """Build the model, without weights, at the base size and along the ladders."""
    stand_in: dict[str, Any] = {"digest": "", "classes": 256, "heldout_fraction": 0.05}
    if (shape := getattr(settings.source, "input_shape", None)) is not None:
        stand_in["input_shape"] = list(shape)
    prepare(settings.setup(stand_in, "float32", settings.base))
    for key, sizes in settings.transfer.ladders(settings.base, depth=True).items():
        for size in sizes:
            try:
                prepare(settings.setup(stand_in, "float32", size))
            except ConfigError as error:
                if error.key not in ("model.width", "model.depth", "model.ffn_ratio"):
                    raise
                allowed = f"sizes that the model can have ({error})"
                raise ConfigError(f"transfer.{key}s", getattr(size, key), allowed) from error


def default_name(raw: Mapping[str, Any]) -> str:
    """`<parameterization>-<search>-w<width>-d<depth>`, from the classes' modules."""
    parts = [str(raw[group]["_target_"]).split(".")[-2] for group in ("parameterization", "search")]
    return "-".join([*parts, f"w{raw['model']['width']}", f"d{raw['model']['depth']}"])
