"""The rules that keep the house: rooms in an order, few modules at the root, no circles."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import yaml

from tests.golden import messages
from tests.scripts import load_script

ROOT = Path(__file__).parent.parent
structure = load_script("structure.py")
OPTUNA = ("enqueue", "mapping", "recording", "sampling", "storage")
ONLY = {
    "typer": {"cli.app", "cli.options", "cli.verb"},
    "hydra": {"config.compose"},
    "omegaconf": {"config.compose"},
    "submitit": {"launch.pool", "launch.slurm"},
    "wandb": {"study.logs.wandb", "command.metrics.tracker_files", "evidence.runs.trackers"},
    "optuna": {
        *(f"search.optuna.{name}" for name in OPTUNA),
        "search.random_grid",
        "report.optuna",
    },
    "jinja2": {"export.exporter", "report.page"},
    "IPython": {"api.bar"},
    "tokenizers": {"data.text"},
    "sklearn": {"data.arrays"},
    "torchvision": {"data.arrays"},
}
"""The only modules that may know these libraries."""
TORCH = (
    *("models.", "classifier.", "engine.", "plan."),
    *("command.", "launch.machine", "data.arrays", "study.logs.tensorboard"),
)
"""Who may know torch: all else must start fast; which GPUs a machine has only torch can say,
torchvision's transforms, where they are asked for, take its tensors, and it has TensorBoard's
writer."""


TABLES = {"__init__", "report.present", "verbs.listed"}
"""Where modules of the wing stand by name: the face, and two tables that find what is there."""
TRAINS = "evidence.compare."
"""Of the wing: `compare --settle` trains."""
COUNTS = {"evidence.predict.reading", "evidence.predict.verb"}
"""Of the wing: `predict --study` builds a study's models, to count their parameters."""
TRAINING = {"sweep", "engine", "launch", "classifier", "models"}


def is_wing(name: str) -> bool:
    """Whether a module answers from runs that are there."""
    return name.split(".")[0] == "evidence"


# Read when they are asked for: whoever collects tests alone does without.
files = cache(structure.sources)


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return structure.imports_within(files())


def test_imports_point_downwards_and_libraries_stay_in_their_rooms() -> None:
    wrong = structure.arrows_up(imports())
    for name, file in files().items():
        for target in file.imports:
            library = target.split(".")[0]
            if name not in ONLY.get(library, {name}):
                wrong.append(f"{name} imports {library}, which only {ONLY[library]} may")
            if library == "matplotlib" and file.room not in ("report", "evidence"):
                wrong.append(f"{name} imports matplotlib, which only pages may")
            if library == "torch" and not name.startswith(TORCH):
                wrong.append(f"{name} imports torch")
    assert not wrong, "\n".join(wrong)


def test_no_module_lies_loose_at_the_root_and_nothing_imports_itself_by_way_of_others() -> None:
    assert {path.stem for path in structure.PACKAGE.glob("*.py")} <= {*structure.ROOMS}
    assert not structure.circles(imports())
    assert not structure.circles(structure.between_rooms(imports()))


def test_no_room_is_over_its_budget() -> None:
    assert not structure.over_budget(structure.sizes_of(files()))


def test_no_name_stands_twice_and_docstrings_need_no_caller() -> None:
    assert not structure.names_twice(files())
    assert not [name for file in files().values() for name in file.needing_their_caller()]


def test_nothing_imports_the_wing() -> None:
    wrong = {
        name: sorted(filter(is_wing, targets))
        for name, targets in imports().items()
        if not is_wing(name) and any(map(is_wing, targets))
    }
    assert not wrong
    named = {
        name
        for name, file in files().items()
        if not is_wing(name)
        and any(
            is_wing(text.removeprefix("sweeper.")) for text in file.strings if "sweeper." in text
        )
    }
    assert named <= TABLES


def test_what_only_reads_imports_nothing_that_trains() -> None:
    wrong = {
        name: found
        for name, targets in imports().items()
        if is_wing(name) and not name.startswith(TRAINS) and name not in COUNTS
        if (found := sorted(t for t in targets if t.split(".")[0] in TRAINING))
    }
    assert not wrong


def test_the_command_line_is_read_in_one_room() -> None:
    assert not structure.argv_uses(files())


def test_one_file_spells_a_study_s_files() -> None:
    for name in structure.STUDY_FILES:
        assert structure.spelling(name, files()) == ["study.folder"], name


def test_plugins_of_a_kind_do_not_know_each_other() -> None:
    """What one config names uses no class that another config of the same group names."""
    groups: dict[str, set[str]] = {}
    for path in (ROOT / "conf").glob("*/*.yaml"):
        if target := (yaml.safe_load(path.read_text()) or {}).get("_target_"):
            groups.setdefault(path.parent.name, set()).add(str(target))
    for group, classes in groups.items():
        for module in {target.rpartition(".")[0] for target in classes}:
            tree = files()[module.removeprefix("sweeper.")].tree
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


def test_contributing_s_map_has_every_room_in_its_order() -> None:
    map_ = (ROOT / "CONTRIBUTING.md").read_text().partition("## The map")[2].split("```")[1]
    rooms = [row.split()[0] for row in map_.splitlines() if row[:1].strip()]
    assert [room.removesuffix("/").removesuffix(".py") for room in rooms] == [
        room for room in structure.ROOMS if not room.startswith("__")
    ]


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
