"""The files beside the code agree with it."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from sweeper.version import __version__

ROOT = Path(__file__).parents[1]


def made(*words: str) -> str:
    """What make says, or would do; these tests may themselves be run by a make."""
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *words], cwd=ROOT, env=alone, capture_output=True, text=True, check=True
    ).stdout


def test_make_alone_lists_every_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = made().splitlines()
    assert {line.split()[0] for line in lines} == targets
    assert len({re.match(r"\S+ +", line).end() for line in lines}) == 1, "in two columns"  # type: ignore[union-attr]


def test_a_commit_is_held_to_what_make_check_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (hook,) = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert (hook["entry"], hook["language"]) == ("make check", "system")
    assert hook["always_run"] and not hook["pass_filenames"]
    assert "make check" in (ROOT / ".ci/run").read_text()


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == project["project"]["license"]
    assert project["tool"]["hatch"]["version"]["path"] == "sweeper/version.py"


def test_badges_say_what_the_project_file_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    badges = {
        name: re.search("<title>(.*): (.*)</title>", path.read_text())[2]  # type: ignore[index]
        for name in re.findall(r"docs/assets/badge-(\w+)\.svg", (ROOT / "README.md").read_text())
        if (path := ROOT / "docs" / "assets" / f"badge-{name}.svg").is_file()
    }
    assert badges == {
        "python": project["project"]["requires-python"].removeprefix(">=") + "+",
        "license": project["project"]["license"],
        "types": "mypy --strict" if project["tool"]["mypy"]["strict"] else "",
    }
    assert "MIT License" in (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("name", ["bug.yml", "wish.yml"])
def test_issue_forms_are_whole(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / name).read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = [field["id"] for field in form["body"]]
    assert len(fields) == len(set(fields))
    assert all({"type", "id", "attributes"} <= field.keys() for field in form["body"])
    assert all("label" in field["attributes"] for field in form["body"])


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/glossary.md"])
def test_every_name_that_a_page_places_in_a_file_is_there(page: str) -> None:
    places = re.findall(r"`([\w/]+\.py):\s+([\w.]+)", (ROOT / page).read_text())
    assert len(places) > 30
    for file in re.findall(r"`((?:\w+/)+\w+\.py)", (ROOT / page).read_text()):
        at_hand = [(top / file).is_file() for top in (ROOT / "sweeper", ROOT)]
        assert any(at_hand) or "NAME" in file, f"{page}: {file}"
    for file, name in places:
        (path,) = [path for path in (ROOT / "sweeper" / file, ROOT / file) if path.is_file()]
        last = name.rpartition(".")[2]
        there = rf"^\s*(?:class|def) {last}\b|^{last}\b.*="
        assert re.search(there, path.read_text(), re.MULTILINE), f"{page}: {file}: {name}"


def test_the_glossary_has_every_word_once() -> None:
    rows = re.findall(r"^\| (.+?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    words = [word for row in rows if row not in ("word", "---") for word in row.split(", ")]
    assert len(words) == len(set(words)) > 50


def test_every_test_that_a_page_names_is_there() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = {
        name
        for page in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"`(test_\w+)`", page.read_text())
    }
    assert len(named) > 10
    assert not {name for name in named if f"def {name}(" not in tests}


def test_screens_pages_and_docs_have_one_word_for_a_thing() -> None:
    gone = {
        "rung": "a size, a budget or a step",
        "basin": "the range within 1 %",
        "regret": "the loss gap",
        "relative gap": "the gap of the loss",
    }
    texts = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    texts += [*ROOT.glob("conf/**/*.yaml"), *ROOT.glob("tests/golden/**/*.txt")]
    found = [
        f"{path.relative_to(ROOT)}: {word}: say {better}"
        for path in texts
        for word, better in gone.items()
        if re.search(rf"(?<!py: )\b{word}s?\b", path.read_text(), re.IGNORECASE)
    ]
    assert len(texts) > 50 and not found
