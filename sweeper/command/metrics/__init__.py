"""The kinds of `metric=`: each is a class with a `form`, which begins with the kind's name.

None is named anywhere else: `metric=KIND:REST` is read by the class whose form begins with KIND. A
text that names the group `loss` is a regular expression, of `pattern.py`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from inspect import isclass
from pkgutil import iter_modules
from typing import cast

from sweeper.command.reading import Metric
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
    by_name = {}
    for module in modules:
        for each in vars(module).values():
            if isclass(each) and each.__module__ == module.__name__ and "form" in vars(each):
                kind = cast("type[Metric]", each)
                name = re.match(r"\w+(?=[:\[]|$)", kind.form)
                by_name[name[0] if name else DEFAULT] = kind
    return dict(sorted(by_name.items()))


def forms() -> str:
    """How every kind is written."""
    others = [kind.form for name, kind in kinds().items() if name != DEFAULT]
    return f"{kinds()[DEFAULT].form}, or {', '.join(others)}"


def metric_of(spec: str, key: str | Keyword = "metric") -> Metric:
    """What `spec`, the value of `key`, names; ConfigError for a source that cannot be read."""
    kind, _, rest = spec.partition(":")
    if GROUP.search(spec) or kind not in kinds() or kind == DEFAULT:
        kind, rest = DEFAULT, spec
    try:
        return kinds()[kind].parse(key, rest)
    except ConfigError as error:
        raise ConfigError(key, spec, error.allowed) from error


def describe_source(spec: str | None) -> str:
    """Where losses are read, in words; null is the file that SWEEPER_REPORT names."""
    if spec is None:
        file = f"lines {REPORTED} in the file that SWEEPER_REPORT names"
        return f"{file}; its output with metric=PATTERN"
    return metric_of(spec).describe()
