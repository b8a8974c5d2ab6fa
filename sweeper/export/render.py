"""Jinja's one place here: a template in the files of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from textwrap import wrap
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from sweeper.trainer.styles import float_text

WIDTH = 84
"""Characters of a line of names."""


def render(template: str, **values: Any) -> str:
    """The text of `templates/TEMPLATE.j2`; what it names and is not given is an error."""
    return _environment().get_template(f"{template}.j2").render(**values)


def quoted_lines(names: Sequence[str]) -> list[str]:
    """Names as one text of Python, on as many lines as it takes, with a comma behind the last."""
    parts = wrap(" ".join(names), WIDTH, break_on_hyphens=False, break_long_words=False)
    return [f'"{part} "' for part in parts[:-1]] + [f'"{parts[-1]}",']


@cache
def _environment() -> Environment:
    """Texts for programs, so nothing is escaped. `py` and `yaml` write values exactly."""
    environment = Environment(
        loader=PackageLoader("sweeper.export"),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    filters: dict[str, Callable[..., str]] = {"py": repr, "yaml": float_text("yaml")}
    environment.filters.update(filters)
    environment.globals["lines"] = quoted_lines
    return environment
