"""Measure the package: files, lines, functions, comments, and what a command passes through.

    python scripts/structure.py              # what the source says
    python scripts/structure.py --trace      # and how many functions a small search enters before
                                             # its first trained step, a validated transfer in all
    python scripts/structure.py --lower      # and keep what became less in structure.json

`structure.json` is the budget: files and lines that each room may have. A room that is over fails;
a commit that deletes lowers it, and none raises it but one that removes as much elsewhere. All
other numbers are a mirror: they show where one subject lies in many pieces.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import statistics
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sweeper"
BUDGET = ROOT / "structure.json"
PACKAGES = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
TINY = [
    *("data=text", "data.path=a.txt", "model.width=16", "model.depth=1", "model.head_size=8"),
    *("train.steps=4", "train.batch_size=2", "train.seq_len=16", "train.heldout_batches=1"),
    *(
        "search=lr",
        "search.line={points: 3, extend: 0}",
        "runner.batched_trials=1",
        "runner.device=cpu",
    ),
    *("launcher=inline", "transfer.check=false", "study=a"),
]
LADDER = ["transfer", "--study", "a", "--to-width", "32", "--validate", "transfer.widths=[16,32]"]


ROOMS = [
    *("version", "gone", "errors", "expression"),
    *("records", "registry", "schedule", "trial", "files", "stats"),
    *("scaling", "search", "samplers", "data", "launch", "laws", "models", "classifier", "engine"),
    *("table", "study", "plan", "check", "command", "decide"),
    *("config", "sweep"),
    *("export", "verbs", "report", "cli", "api", "evidence", "__init__", "__main__"),
]
"""From the bottom up: a module imports from its own room, or from one before it."""
NO_BEGINNING = {"Of", "That", "As", "By", "With", "Those"}
"""How no docstring begins: what it says would hang on its caller."""
NO_NAMES = {*("one", "told", "held", "given", "words", "said", "found", "known", "left", "shown")}
"""Words that say nothing of what a variable, a parameter or an attribute is."""
STUDY_FILES = ("config.yaml", "plan.json", "validation.json", "search.json")
"""Files of a study, each of which one file alone may spell."""
VERBS = (
    *("search", "transfer", "judge", "compare", "predict", "follow", "check", "explain"),
    *("export", "status", "report", "doctor", "cancel"),
)
Imports = Mapping[str, set[str]]
"""The modules that each module imports, by their dotted names within the package."""


@dataclass(frozen=True)
class Source:
    """A file of the package."""

    name: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """Its folder, or its own name where it lies at the root."""
        return self.name.split(".")[0]

    @property
    def lines(self) -> int:
        """How many it has."""
        return self.text.count("\n")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of its tree, which takes longest to walk."""
        return list(ast.walk(self.tree))

    @cached_property
    def comments(self) -> list[tokenize.TokenInfo]:
        """Its comments; docstrings are none."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [token for token in tokens if token.type == tokenize.COMMENT]

    @property
    def remarks(self) -> int:
        """Lines that hold a comment and nothing else."""
        return sum(not token.line[: token.start[1]].strip() for token in self.comments)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Functions and methods, those within functions too."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def classes(self) -> Iterator[ast.ClassDef]:
        """Classes, those within functions too."""
        yield from (node for node in self.nodes if isinstance(node, ast.ClassDef))

    @cached_property
    def strings(self) -> list[str]:
        """Texts of the program, those within f-strings too; docstrings are none."""
        documents = {
            id(statement.value)
            for node in self.nodes
            if isinstance(body := getattr(node, "body", None), list)
            for statement in body
            if isinstance(statement, ast.Expr)
        }
        return [
            node.value
            for node in self.nodes
            if isinstance(node, ast.Constant) and id(node) not in documents
            if isinstance(node.value, str)
        ]

    @cached_property
    def imports(self) -> list[str]:
        """What it imports, anywhere in it but for type checking alone, as it is written."""
        skipped = {
            child
            for node in self.nodes
            if isinstance(node, ast.If)
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for child in ast.walk(node)
        }
        written = []
        for node in self.nodes:
            if isinstance(node, ast.Import) and node not in skipped:
                written += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node not in skipped:
                assert node.level == 0, f"{self.name}: relative import"
                written += [f"{node.module}.{alias.name}" for alias in node.names]
        return written

    def needing_their_caller(self) -> Iterator[str]:
        """Functions and classes whose docstring is no sentence without the one who calls."""
        for node in (*self.functions(), *self.classes()):
            if (document := ast.get_docstring(node)) and document.split()[0] in NO_BEGINNING:
                yield f"{self.name}.{node.name}"


def sources(room: str = "") -> dict[str, Source]:
    """All files of the package by their dotted names within it, its own `__init__` by that.

    Of one `room` alone, where it is named.
    """
    found = {}
    for path in sorted((PACKAGE / room).rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name, text = ".".join(parts).removesuffix(".__init__"), path.read_text()
        found[name] = Source(name, text, ast.parse(text))
    return found


def imports_within(files: Mapping[str, Source]) -> Imports:
    """Which modules of the package each imports; the package's face is `__init__`."""

    def module(written: str) -> str:
        name = written.removeprefix("sweeper").removeprefix(".")
        while name and name not in files:
            name = name.rpartition(".")[0]
        return name or "__init__"

    return {
        name: {module(each) for each in file.imports if each.split(".")[0] == "sweeper"}
        for name, file in files.items()
    }


def arrows_up(imports: Imports) -> list[str]:
    """Imports of a module that lies in a room above."""
    rank = {room: place for place, room in enumerate(ROOMS)}
    return [
        f"{name} imports {target}, which lies above it"
        for name, targets in imports.items()
        for target in sorted(targets)
        if rank[target.split(".")[0]] > rank[name.split(".")[0]]
    ]


def circles(imports: Imports) -> list[str]:
    """What imports itself by way of others, and whatever lies between."""
    graph = {name: {*targets} - {name} for name, targets in imports.items()}
    while True:
        imported = set[str]().union(*graph.values())
        kept = {n for n, targets in graph.items() if targets & graph.keys() and n in imported}
        if len(kept) == len(graph):
            return sorted(graph)
        graph = {name: graph[name] & kept for name in kept}


def reach(imports: Imports, start: str) -> set[str]:
    """What one must read for a module: all that it imports, within functions too, but the face."""
    found, todo = set[str](), [start]
    while todo:
        name = todo.pop()
        if name not in found and name != "__init__":
            found.add(name)
            todo += imports[name]
    return found


def between_rooms(imports: Imports) -> Imports:
    """Which rooms each room imports from."""
    rooms: dict[str, set[str]] = {}
    for name, targets in imports.items():
        found = {target.split(".")[0] for target in targets}
        rooms.setdefault(name.split(".")[0], set()).update(found)
    return rooms


def argv_uses(files: Mapping[str, Source]) -> list[str]:
    """Files outside the command line's that use `sys.argv`, in code that they hand on too."""
    return [
        name
        for name, file in files.items()
        if file.room != "cli"
        and "argv" in file.text
        and (
            any(
                isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.argv"
                for node in file.nodes
            )
            or any("sys.argv" in text for text in file.strings)
        )
    ]


def spelling(name: str, files: Mapping[str, Source]) -> list[str]:
    """The files that spell a file's name, alone or behind folders."""
    ends = re.compile(rf"(?:^|/){re.escape(name)}$")
    return [file for file, s in files.items() if any(map(ends.search, s.strings))]


def commands_below_report(files: Mapping[str, Source]) -> Counter[str]:
    """Texts that name a flag or a command, by the room below `report/` in which they stand."""
    below = ROOMS[: ROOMS.index("report")]
    pattern = re.compile(rf"(?<![\w-])--[a-z]|\bsweeper (?:{'|'.join(VERBS)})\b")
    return Counter(
        file.room
        for file in files.values()
        if file.room in below
        for text in file.strings
        if pattern.search(text)
    )


def repeated(names: Iterable[str], least: int) -> list[str]:
    """Names that stand so many times or more."""
    counts = Counter(names)
    return sorted(f"{name} {count}x" for name, count in counts.items() if count >= least)


def names_twice(files: Mapping[str, Source]) -> list[str]:
    """Public classes of the package, and files of the core, that share their name with another."""
    classes = (node.name for file in files.values() for node in file.classes())
    folders = {name.rpartition(".")[0] for name in files}
    core = (
        name.split(".")[-1]
        for name in files
        if not name.startswith("evidence.") and name not in folders
    )
    return [
        *repeated((name for name in classes if not name.startswith("_")), 2),
        *repeated((f"{name}.py" for name in core), 2),
    ]


def empty_names(files: Mapping[str, Source]) -> Counter[str]:
    """How often a variable, a parameter, a field or a function is called by one of `NO_NAMES`."""
    counts: Counter[str] = Counter()
    for file in files.values():
        for node in file.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.id if isinstance(node, ast.Name) else node.attr
            elif isinstance(node, ast.arg):
                name = node.arg
            else:
                name = getattr(node, "name", None) or ""
            if name in NO_NAMES:
                counts[name] += 1
    return counts


def share(part: int, whole: int) -> str:
    """In percent."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


JUDGING = ("stats", "decide", "evidence")
"""Rooms in which a number may have been chosen on tables."""


def constants(files: Mapping[str, Source]) -> tuple[int, int]:
    """How many names of modules in these rooms are numbers, and how many numbers they hold."""
    held = []
    for name, file in files.items():
        if name.split(".")[0] in JUDGING:
            for node in file.tree.body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    numbers = [each for each in ast.walk(node.value) if is_number(each)]
                    held += [
                        len(numbers)
                        for target in targets
                        if numbers and ast.unparse(target).strip("()").replace(", ", "").isupper()
                    ]
    return len(held), sum(held)


def flags() -> str:
    """How many flags the help lists: of every verb its own, and once those of all verbs."""
    from sweeper.cli.app import VERBS as COMMANDS
    from sweeper.cli.options import common_options

    names = {
        verb: [each.opts[0] for each in made().params if "--" in each.opts[0] and not each.hidden]
        for verb, made in COMMANDS.items()
    }
    names["of every verb"] = [*common_options()]
    counts = ", ".join(f"{verb} {len(listed)}" for verb, listed in names.items())
    every = [name for listed in names.values() for name in listed]
    return f"flags over all verbs: {len(every)} ({counts}); {len({*every})} names"


def is_number(node: ast.AST) -> bool:
    """Whether an expression is a number, which a truth value is not."""
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def measure() -> None:
    """Print what the source says, and lines by room."""
    files = sources()
    lines = {name: file.lines for name, file in files.items()}
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for file in files.values()
        for node in file.functions()
    )
    total = sum(lines.values())
    print(f"{len(files)} files, {total} lines")
    small = sum(count < 80 for count in lines.values())
    print(f"median file {statistics.median(lines.values()):g} lines, {small} under 80")
    ninety = lengths[len(lengths) * 9 // 10]
    median = statistics.median(lengths)
    print(f"{len(lengths)} functions: p50 {median:g}, p90 {ninety}, longest {lengths[-1]} lines")
    commented = sum(len(file.comments) for file in files.values())
    alone = sum(file.remarks for file in files.values())
    print(
        f"comments on {commented} lines, {share(commented, total)}; "
        f"{alone} by themselves, {share(alone, total)}"
    )
    long = sum(len(line) > 90 for file in files.values() for line in file.text.splitlines())
    print(f"{long} lines longer than 90 characters, {100 * long / total:.1f} of a hundred")
    for room, members in rooms_of(files).items():
        count = sum(file.lines for file in members)
        remarks = share(sum(len(file.comments) for file in members), count)
        print(f"  {room:<12}{len(members):>4} files {count:>6} lines, {remarks} comments")
    rules(files)


def rooms_of(files: Mapping[str, Source]) -> dict[str, list[Source]]:
    """The files of each room; those at the root are one."""
    rooms: dict[str, list[Source]] = {}
    for name, file in sorted(files.items()):
        room = file.room if "." in name or name in PACKAGES else "(root)"
        rooms.setdefault(room, []).append(file)
    return dict(sorted(rooms.items()))


def sizes_of(files: Mapping[str, Source]) -> dict[str, dict[str, int]]:
    """Files and lines of each room, and of all, as the budget has them."""
    rooms = rooms_of(files)
    sizes = {
        room: {"files": len(members), "lines": sum(file.lines for file in members)}
        for room, members in rooms.items()
    }
    every = {unit: sum(size[unit] for size in sizes.values()) for unit in ("files", "lines")}
    return {"(all)": every, **sizes}


def over_budget(sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What has more than its budget; a room that the budget does not know has none."""
    budget = json.loads(BUDGET.read_text())
    return [
        f"{room} has {count} {unit}, its budget is {budget.get(room, {}).get(unit, 0)}"
        for room, size in sizes.items()
        for unit, count in size.items()
        if count > budget.get(room, {}).get(unit, 0)
    ]


def lower(sizes: Mapping[str, Mapping[str, int]]) -> None:
    """Keep what became less; nothing is raised."""
    budget = json.loads(BUDGET.read_text())
    kept = {
        room: {unit: min(size[unit], budget[room][unit]) for unit in size}
        for room, size in sizes.items()
        if room in budget
    }
    BUDGET.write_text(json.dumps(kept, indent=1) + "\n")


def rules(files: Mapping[str, Source]) -> None:
    """Print what breaks the house's rules, or comes near."""

    def tell(what: str, items: Iterable[str]) -> None:
        found = list(items)
        print(f"{what}: {len(found)}{': ' * bool(found)}{', '.join(found)}")

    imports = imports_within(files)
    tell("arrows up", arrows_up(imports))
    tell("modules in circles", circles(imports))
    tell("rooms in circles", circles(between_rooms(imports)))
    tell("sys.argv outside cli/", argv_uses(files))
    named = commands_below_report(files)
    print(f"texts below report/ with a flag or a command: {named.total()} {dict(named)}")
    for name in STUDY_FILES:
        tell(f"files that spell {name}", spelling(name, files))
    print("lines that one must read for a verb:")
    for verb in VERBS:
        start = next(n for n in (f"verbs.{verb}", f"evidence.{verb}.verb", "") if n in {*files, ""})
        if start:
            read = reach(imports, start)
            count = sum(files[name].lines for name in read)
            print(f"  {verb:<12}{len(read):>4} files {count:>6} lines")
    print(flags())
    named, numbers = constants(files)
    print(f"constants of {', '.join(JUDGING)}: {named} names, {numbers} numbers")
    tell("names twice", names_twice(files))
    hanging = sum(len(list(file.needing_their_caller())) for file in files.values())
    print(f"docstrings that need their caller: {hanging}")
    print(f"names that say nothing: {dict(empty_names(files).most_common())}")


class Passed:
    """Functions of the package that were entered, and their files, until `stop` is entered."""

    def __init__(self, stop: str | None) -> None:
        """`stop` is the qualified name of a function."""
        self.stop, self.seen = stop, {}  # type: str | None, dict[tuple[str, int], str]
        self.ended = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """A profile function."""
        code = frame.f_code
        if event != "call" or self.ended or not code.co_filename.startswith(str(PACKAGE)):
            return
        if code.co_name.startswith("<"):
            return
        self.seen[code.co_filename, code.co_firstlineno] = code.co_qualname
        self.ended = code.co_qualname == self.stop

    def tell(self, name: str) -> None:
        """Print how many there were."""
        files = {path for path, _ in self.seen}
        print(f"{name}: {len(self.seen)} functions of {len(files)} files")


def trace() -> None:
    """Run a small search and a validated transfer in this process."""
    from sweeper.cli.app import app

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("a.txt").write_text("tune small, train big. " * 4000)
        for name, words, stop in (
            ("search, to its first step", ["search", *TINY], "BatchedRun.step"),
            ("transfer --validate, to its end", LADDER, None),
        ):
            passed = Passed(stop)
            sys.setprofile(passed)
            try:
                app(words, prog_name="sweeper")
            except SystemExit:
                pass
            finally:
                sys.setprofile(None)
            passed.tell(name)
        os.chdir(ROOT)


def main() -> None:
    """Measure, and trace where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--trace", action="store_true", help="run a small search and transfer")
    parser.add_argument("--lower", action="store_true", help="lower structure.json to what is")
    options = parser.parse_args()
    measure()
    sizes = sizes_of(sources())
    if options.lower:
        lower(sizes)
    if options.trace:
        trace()
    if over := over_budget(sizes):
        sys.exit("over the budget of structure.json:\n" + "\n".join(over))


if __name__ == "__main__":
    main()
