"""The reference that conf/ and the code write, and the links of the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeper.registry import OVERLAYS
from tests.documents import ROOT
from tests.scripts import load_script

reference = load_script("docs/reference.py")
build = load_script("docs/build.py")
GROUPS = reference.groups()
CONFIGS = sorted((ROOT / "conf").glob("*/*.yaml"))


def leaves(value: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of nested mappings, as YAML reads them."""
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from leaves(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_every_key_of_a_config_is_in_the_reference(path: Path) -> None:
    group = path.parent.name
    section = GROUPS.partition(f"#### `{group}={path.stem}`\n")[2].partition("\n#### ")[0]
    assert section
    if group in OVERLAYS:
        return
    for key in leaves(yaml.safe_load(path.read_text())):
        # A mapping on one line is one row; its keys are in the column of defaults.
        names = [f"`{group}.{key}`", f"`{group}.{key.rpartition('.')[0]}`"]
        names += [f"`{group}.{key.split('.')[0]}`", f"`{group}.{'.'.join(key.split('.')[:2])}`"]
        assert key in ("_target_", "defaults") or any(name in section for name in names), key


def test_a_key_has_the_bounds_of_its_annotation() -> None:
    rows = {
        cells[1].strip(): cells[-2].strip()
        for line in (GROUPS + "\n" + reference.sections()).splitlines()
        if len(cells := line.replace("\\|", "/").split("|")) > 4
    }
    assert rows["`transfer.widths`"] == "a list, each a whole number, at least 1"
    assert rows["`transfer.max_shift`"] == "a positive number"
    assert rows["`law.tokens`"] == "an exponent from -4 to 4"
    assert rows["`train.precision`"] and not rows["`transfer.hyperparameter`"]


def test_a_comment_above_a_key_is_the_key_s(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "# The file.\nfirst: 1\n# Of the second,\n# in two lines.\nsecond: {a: 1} # b\n"
    )
    assert [(key.name, key.default, key.comment) for key in reference.keys(path)] == [
        ("first", "1", ""),
        ("second", "{a: 1}", "Of the second, in two lines. b"),
    ]
    assert reference.head_comment(path.read_text()) == "The file."


def test_every_verb_and_option_is_in_the_reference() -> None:
    text = reference.commands()
    program = reference.typer.main.get_command(reference.app)
    for name in program.commands:
        command = program.get_command(None, name)
        section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            metavar = parameter.metavar if parameter.param_type_name == "argument" else None
            label = metavar or parameter.opts[0]
            hidden = getattr(parameter, "hidden", False)
            assert (f"`{label}`" in section) != hidden or metavar, f"{name} {label}"
    assert "Exit codes: 0 done" in text
    page = (ROOT / "docs/cli.md").read_text()
    assert set(re.findall(r"`(\w+)`", page.partition("Options of")[0])) == set(program.commands)


def test_links_lead_to_where_the_site_has_their_targets() -> None:
    places = build.pages()
    assert build.site_link("docs/plan.md", "export.md", places) == "export.md"
    assert build.site_link("docs/api.md", "../CONTRIBUTING.md", places) == "contributing.md"
    assert build.site_link("CHANGELOG.md", "docs/plan.md", places) == "plan.md"
    script = "../scripts/train_with_plan.py"
    assert build.site_link("docs/plan.md", script, places) == "source/scripts/train_with_plan.py"


def test_every_page_is_reached_from_the_navigation() -> None:
    places = build.pages()
    assert not build.unreachable(places)
    assert build.unreachable({**places, "docs/lost.md": "lost.md"}) == {"lost.md"}


def test_the_pages_are_put_together(tmp_path: Path) -> None:
    build.assemble(tmp_path / "docs")
    text = (tmp_path / "docs" / "cli.md").read_text()
    assert "## transfer" in text and "generated:" not in text
    assert (tmp_path / "docs" / "source" / "scripts" / "train_with_plan.py").is_file()
    assert (tmp_path / "docs" / "figures" / "depth.png").is_file()
    assert not list(tmp_path.glob("docs/**/*.in"))
