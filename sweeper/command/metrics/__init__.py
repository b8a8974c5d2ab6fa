"""The kinds of `metric=`: each is a class with a `form`, which begins with the kind's name.

None is named anywhere else: `metric=KIND:REST` is read by the class whose form begins with KIND. A
text that names the group `loss` is a regular expression, of `pattern.py`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from inspect import isclass
from pathlib import Path
from pkgutil import iter_modules
from typing import cast

from sweeper.command.reading import IN_FOLDER, Metric, MetricSource
from sweeper.errors import ConfigError, Keyword

DEFAULT = "pattern"
"""The kind of what names none."""
GROUP = re.compile(r"\(\?P<loss>")
REPORTED = '{"step": 1, "loss": 2.3}'
PRINTED = r"where it prints its loss, add 'metric=loss (?P<loss>\S+)' as it prints it"


@cache
def kinds() -> dict[str, type[Metric]]:
    """The kinds that there are, by name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = {}
    for module in modules:
        for each in vars(module).values():
            if isclass(each) and each.__module__ == module.__name__ and "form" in vars(each):
                kind = cast("type[Metric]", each)
                name = re.match(r"\w+(?=[:\[]|$)", kind.form)
                found[name[0] if name else DEFAULT] = kind
    return dict(sorted(found.items()))


def forms() -> str:
    """How every kind is written."""
    others = [kind.form for name, kind in kinds().items() if name != DEFAULT]
    return f"{kinds()[DEFAULT].form}, or {', '.join(others)}"


def metric_of(key: str | Keyword, spec: str) -> Metric:
    """What `spec` names; ConfigError for a source that cannot be read."""
    kind, _, rest = spec.partition(":")
    if GROUP.search(spec) or kind not in kinds() or kind == DEFAULT:
        kind, rest = DEFAULT, spec
    try:
        return kinds()[kind].parse(key, rest)
    except ConfigError as error:
        raise ConfigError(key, spec, error.allowed) from error


# What others ask of a `spec` that was checked, or null: for the file that SWEEPER_REPORT names.


def check_source(key: str | Keyword, spec: str) -> None:
    """ConfigError for a source that cannot be read."""
    metric_of(key, spec)


def describe_source(spec: str | None) -> str:
    """Where losses are read, in words; `spec` is checked."""
    if spec is None:
        file = f"lines {REPORTED} in the file that SWEEPER_REPORT names"
        return f"{file}; its output with metric=PATTERN"
    return metric_of("metric", spec).describe()


def make_source(spec: str, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
    """The source of a checked `spec`; see `Metric.open`."""
    return metric_of("metric", spec).open(folder, log, fresh=fresh)


def contents(spec: str, folder: Path, advice: str = IN_FOLDER) -> str:
    """What is there in a run's `folder`; see `Metric.contents`. Empty for the log."""
    return metric_of("metric", spec).contents(folder, advice)
