"""Arguments as each trainer takes them, read back by what would read them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from sweeper.command.template import Style, float_text, words

ARGUMENTS: dict[str, Any] = {
    "lr": 1e-05,
    "model.width": 64,
    "name": "gpt",
    "on": True,
    "off": False,
}
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_flags(tmp_path: Path) -> None:
    assert words("equals", ARGUMENTS, tmp_path) == [
        *("--lr=1e-05", "--model.width=64", "--name=gpt", "--on=True", "--off=False")
    ]
    assert words("spaces", ARGUMENTS | {"sizes": [1, 2]}, tmp_path) == [
        *("--lr", "1e-05", "--model.width", "64", "--name", "gpt", "--on", "--sizes", "1", "2")
    ]
    assert words("hydra", ARGUMENTS | {"sizes": [1, 2], "none": None}, tmp_path) == [
        *("lr=1.0e-05", "model.width=64", "name=gpt", "on=true", "off=false", "sizes=[1, 2]"),
        "none=null",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("style", "read"), [("json", json.loads), ("yaml", yaml.safe_load), ("toml", tomllib.loads)]
)
def test_files(style: Style, read: Any, tmp_path: Path) -> None:
    (path,) = words(style, ARGUMENTS, tmp_path)
    nested = {"lr": 1e-05, "model": {"width": 64}, "name": "gpt", "on": True, "off": False}
    assert read(Path(path).read_text()) == nested
    assert not words(style, {}, tmp_path)


@given(FINITE)
def test_floats_are_floats_to_whoever_reads_them(value: float) -> None:
    """PyYAML takes 1e-05 for a text."""
    assert yaml.safe_load(float_text("yaml")(value)) == value
    assert float(float_text("equals")(value)) == value
    parsed = OverridesParser.create().parse_override(f"lr={float_text('hydra')(value)}").value()
    assert isinstance(parsed, float) and parsed == value
