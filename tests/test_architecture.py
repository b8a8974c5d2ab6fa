"""The rules that keep the code small: imports point downwards, plugins know no other plugin."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sweeper"
LAYERS = [
    "errors control own_command own_modules key_values threads",
    "plugin overrides",
    "catalog train_settings",
    "trial",
    "files optuna_storage",
    "scaling data search mirror lock completion laws",
    "study launch",
    "setup",
    "models",
    "training",
    "measure",
    "runner",
    "transfer",
    "trainer in_script",
    "export",
    "diagnosis",
    "report",
    "space",
    "settings config",
    "planned",
    "replay",
    "loop",
    "sweep",
    "commands",
    "verb",
    "cli_studies",
    "cli",
    "__main__",
]
"""From the bottom up: a module imports from its own layer's own package, or from below."""
ONLY = {
    "typer": {"cli", "cli_studies", "verb"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "submitit": {"launch.slurm.launcher"},
    "wandb": {"report.wandb", "trainer.wandb_file"},
    "optuna": {"mirror", "optuna_storage", "search.prune", "search.tpe"},
    "matplotlib": {
        "report.comparison",
        "report.coordinates",
        "report.drawing",
        "report.heatmaps",
        "report.ladders",
        "report.plots",
        "report.steps",
    },
    "jinja2": {"export.render", "report.page", "report.rendering"},
    "tokenizers": {"data.text"},
    "sklearn": {"data.digits"},
}
"""The only modules that may know these libraries."""
TORCH = ("models.", "training.", "measure.", "runner.")
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer.split()}


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return {name: path for name, path in found.items() if name != "__init__"}


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it but for type checking alone."""
    tree = ast.parse(path.read_text())
    skipped = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in skipped:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node not in skipped:
            assert node.level == 0, f"{path}: relative import"
            yield node.module


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_downwards(name: str) -> None:
    own = name.split(".")[0]
    for target in imports(MODULES[name]):
        if target.startswith("sweeper."):
            other = target.split(".")[1]
            assert other == own or RANK[other] < RANK[own], f"{name} imports {target}"
        library = target.split(".")[0]
        assert name in ONLY.get(library, {name}), f"{name} imports {library}"
        if library == "torch":
            assert name.startswith(TORCH), f"{name} imports torch"


@pytest.mark.parametrize("name", MODULES)
def test_the_classifier_is_imported_as_a_whole(name: str) -> None:
    inside = "sweeper.models.classifier."
    if not f"sweeper.{name}.".startswith(inside):
        assert not [target for target in imports(MODULES[name]) if target.startswith(inside)]


def plugins() -> dict[str, set[str]]:
    """Modules that the configs of each group name."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "conf").glob("*/*.yaml"):
        target = (yaml.safe_load(path.read_text()) or {}).get("_target_")
        if target:
            found.setdefault(path.parent.name, set()).add(str(target).rpartition(".")[0])
    return found


@pytest.mark.parametrize(("group", "members"), plugins().items())
def test_plugins_of_a_kind_do_not_know_each_other(group: str, members: set[str]) -> None:
    for member in members:
        known = set(imports(MODULES[member.removeprefix("sweeper.")]))
        assert not known & (members - {member}), f"{group}: {member} imports a sibling"


def test_no_cycles() -> None:
    graph = {
        name: {t.removeprefix("sweeper.") for t in imports(path) if t.startswith("sweeper.")}
        for name, path in MODULES.items()
    }
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        graph = {name: targets for name, targets in graph.items() if name not in leaves}
    assert not graph, f"these import each other: {sorted(graph)}"


@pytest.mark.parametrize("name", MODULES)
def test_files_and_functions_stay_small(name: str) -> None:
    text = MODULES[name].read_text()
    assert text.count("\n") < 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{name}.{node.name} is long"


def test_the_readme_s_links_exist() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
