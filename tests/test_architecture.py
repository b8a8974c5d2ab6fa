"""The rules that keep the house: rooms in an order, few modules at the root, no circles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.golden import messages

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sweeper"
ROOMS = [
    *("errors", "records", "registry", "schedule", "trial", "files"),
    *(
        "stats",
        "scaling",
        "search",
        "samplers",
        "data",
        "launch",
        "laws",
        "models",
        "classifier",
        "engine",
    ),
    *("table", "plan", "check", "command", "study", "runs", "decide"),
    *("config", "sweep"),
    *("export", "verbs", "report", "cli", "api", "__main__"),
]
"""From the bottom up: a module imports from its own room, or from one before it."""
AT_THE_ROOT = {
    *("__init__", "__main__", "errors", "files", "records", "registry", "samplers", "schedule"),
    *("table", "trial"),
}
ONLY = {
    "typer": {"cli.app", "cli.commands", "cli.options", "cli.verb"},
    "hydra": {"config.compose"},
    "omegaconf": {"config.compose"},
    "submitit": {"launch.local", "launch.slurm"},
    "wandb": {"study.logs.wandb", "command.metrics.wandb", "runs.trackers"},
    "optuna": {
        "study.optuna_copy",
        "search.optuna",
        "search.random_grid",
        "samplers",
        "report.trials",
    },
    "jinja2": {"export.exporter", "report.page"},
    "IPython": {"api.bar"},
    "tokenizers": {"data.text"},
    "sklearn": {"data.arrays"},
}
"""The only modules that may know these libraries."""
TORCH = (
    *("models.", "classifier.", "engine.", "plan."),
    *("command.", "decide.diagnosis", "launch.machine"),
)
"""Who may know torch: all else must start fast; which GPUs a machine has only torch can say."""


def modules() -> dict[str, Path]:
    """All files of the package by their dotted names within it."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


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
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            named = [name for name in inside if name.removeprefix("sweeper.") in MODULES]
            yield from named or [node.module]


def test_imports_point_downwards_and_libraries_stay_in_their_rooms() -> None:
    rank = {room: place for place, room in enumerate(ROOMS)}
    wrong = []
    for name, path in MODULES.items():
        room = name.split(".")[0]
        for target in imports(path) if name != "__init__" else ():
            library, _, inside = target.partition(".")
            other = inside.split(".")[0]
            if library == "sweeper" and other and other != room and rank[other] > rank[room]:
                wrong.append(f"{name} imports {target}, which lies above it")
            if name not in ONLY.get(library, {name}):
                wrong.append(f"{name} imports {library}, which only {ONLY[library]} may")
            if library == "matplotlib" and room != "report":
                wrong.append(f"{name} imports matplotlib, which only report/ may")
            if library == "torch" and not name.startswith(TORCH):
                wrong.append(f"{name} imports torch")
    assert not wrong, "\n".join(wrong)


def test_no_module_lies_loose_at_the_root_and_no_two_import_each_other() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} <= AT_THE_ROOT
    graph = {
        name: {t.removeprefix("sweeper.") for t in imports(path) if t.startswith("sweeper.")}
        for name, path in MODULES.items()
    }
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        graph = {name: targets for name, targets in graph.items() if name not in leaves}
    assert not graph, f"these import each other: {sorted(graph)}"


def test_plugins_of_a_kind_do_not_know_each_other() -> None:
    """What one config names uses no class that another config of the same group names."""
    groups: dict[str, set[str]] = {}
    for path in (ROOT / "conf").glob("*/*.yaml"):
        if target := (yaml.safe_load(path.read_text()) or {}).get("_target_"):
            groups.setdefault(path.parent.name, set()).add(str(target))
    for group, classes in groups.items():
        for module in {target.rpartition(".")[0] for target in classes}:
            tree = ast.parse(MODULES[module.removeprefix("sweeper.")].read_text())
            taken = {
                f"{node.module}.{alias.name}"
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            assert not taken & classes, f"{group}: {module} imports {taken & classes}"


def test_the_readme_s_links_exist() -> None:
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "AGENTS.md",
        *(ROOT / "docs").glob("*.md"),
    ]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_test_asserts_something() -> None:
    """By an `assert`, what it expects to be raised, or a helper of the tests that has these."""
    asserts = re.compile(r"raises|raises_config_error|fail|assert_\w+")
    calls: dict[str, set[str]] = {}
    asserting: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            is_test = function.name.startswith("test_")
            name = f"{path.stem}:{function.lineno}" if is_test else function.name
            called = calls.setdefault(name, set())
            for node in ast.walk(function):
                if isinstance(node, ast.Assert):
                    asserting.add(name)
                elif isinstance(node, ast.Call):
                    called.add(getattr(node.func, "id", getattr(node.func, "attr", "")))
            if any(map(asserts.fullmatch, called)):
                asserting.add(name)
    asserting.discard("says")  # what is kept alone does not show what is proven
    while more := {n for n in calls.keys() - asserting if calls[n] & asserting and n != "says"}:
        asserting |= more
    assert not {name for name in calls.keys() - asserting if ":" in name}


def test_kept_messages_lie_beside_a_test_file() -> None:
    for path in (ROOT / "tests/golden").rglob("*.txt"):
        place = path.relative_to(ROOT / "tests/golden")
        test = ROOT / "tests" / place.with_name(f"test_{place.name}").with_suffix(".py")
        assert not messages(path) or test.is_file(), f"{test} is gone, and {path} is kept"
