"""How many random one-line mutations the tests catch: how strong they are.

    python scripts/mutate.py                      # 100 mutations, two at a time; about an hour
    python scripts/mutate.py --count 20 --seed 1
    python scripts/mutate.py --under decide/      # of one room
    python scripts/mutate.py --list               # which, without running a test

A mutation turns a comparison, moves a constant, or drops a branch, in one line of `sweep/`,
`plan/`, `decide/`, `launch/`, `study/` or the wing. A place is drawn by a hash of the seed, its
function and its line, so the same lines are drawn after a file moved or another was edited. The
tests that import the file and those of its folder run, the nearest first, in a copy of the tree; a
mutation is caught where one fails. One whose tests do not end within `--limit` seconds is caught
where they do without it, in half that time.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
UNDER = ("sweep/", "plan/", "decide/", "launch/", "study/", "evidence/")
TREE = ("sweeper", "tests", "conf", "scripts", "docs", "pyproject.toml", "README.md",
        "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "mkdocs.yml", "structure.json",
        "constraints.txt")  # fmt: skip
TURNED = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True)
class Mutation:
    """One line of a file, and what stands there instead."""

    path: Path
    line: int
    function: str
    kind: str
    before: str
    after: str

    def key(self, seed: int) -> str:
        """What places are drawn by: it stays where other lines or files change."""
        text = f"{seed} {self.function} {self.kind} {self.before.strip()} {self.after.strip()}"
        return hashlib.sha256(text.encode()).hexdigest()


class _Places(ast.NodeVisitor):
    """Every mutation of a file's functions; texts and annotations are left alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.read_text().splitlines()
        self.function = ""
        self.found: list[Mutation] = []

    def _add(self, node: ast.expr, kind: str, text: str) -> None:
        if not self.function or node.lineno != node.end_lineno:
            return
        before = self.lines[node.lineno - 1]
        raw = before.encode()
        after = (raw[: node.col_offset] + text.encode() + raw[node.end_col_offset :]).decode()
        self.found.append(Mutation(self.path, node.lineno, self.function, kind, before, after))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self.function = self.function, node.name
        for part in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if part is not None:
                self.visit(part)
        self.function = outer

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Format specifications hold constants that are no numbers of the program."""

    def visit_Compare(self, node: ast.Compare) -> None:
        operator = TURNED.get(type(node.ops[0]))
        if len(node.ops) == 1 and operator:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            self._add(node, "comparison", f"{left} {operator} {right}")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._add(node, "constant", str(node.value + 1))
        elif type(node.value) is float:
            self._add(node, "constant", repr(node.value * 1.5 if node.value else 1.0))

    def visit_If(self, node: ast.If) -> None:
        self._add(node.test, "branch", "False")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add(node.test, "branch", "False")
        self.generic_visit(node)


def mutations(root: Path, under: tuple[str, ...]) -> list[Mutation]:
    """All one-line mutations of the package below `under`."""
    places: list[Mutation] = []
    for path in sorted((root / "sweeper").rglob("*.py")):
        if str(path.relative_to(root / "sweeper")).startswith(under):
            visitor = _Places(path)
            visitor.visit(ast.parse(path.read_text()))
            places += visitor.found
    return places


@cache
def _imports(path: Path, root: Path) -> frozenset[str]:
    """The modules of the package that a test file names, also through helpers below tests/."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        else:
            continue
        for name in names:
            modules.add(name)
            helper = root / (name.replace(".", "/") + ".py")
            if name.startswith("tests.") and helper.exists() and helper != path:
                modules |= _imports(helper, root)
    return frozenset(modules)


def _tests(mutation: Mutation, root: Path) -> list[str]:
    """The test files that import the file, then its folder's; of the wing, its command line's."""
    inside = mutation.path.relative_to(root / "sweeper").with_suffix("")
    module = "sweeper." + ".".join(inside.parts)
    tests = root / "tests"
    files = [path for path in sorted(tests.rglob("test_*.py")) if "faults" not in path.parts]
    wing = inside.parts[0] == "evidence"
    folder = tests.joinpath(*inside.parts[: 2 if wing else 1])

    def distance(path: Path) -> tuple[int, int]:
        if path == tests / inside.parent / f"test_{inside.name}.py":
            near = 0
        elif module in _imports(path, root):
            near = 1 if folder in path.parents else 2
        elif folder in path.parents:
            near = 3
        else:
            near = 4 if wing and tests / "evidence/cli" in path.parents else 5
        return near, path.stat().st_size

    nearest = sorted(files, key=distance)
    return [str(path.relative_to(root)) for path in nearest if distance(path)[0] < 5]


def _run(copy: Path, tests: list[str], limit: float) -> tuple[str, float]:
    """Whether tests caught it, missed it or were late, and the seconds that they took."""
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        answer = "missed" if process.wait(limit) in (0, 5) else "caught"
    except subprocess.TimeoutExpired:
        answer = "late"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()
    return answer, time.monotonic() - start


def _copy(into: Path) -> Path:
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
            shutil.copytree(source, into / name, ignore=ignored)
        else:
            shutil.copy(source, into / name)
    return into


def measured(chosen: list[Mutation], jobs: int, limit: float) -> Iterator[tuple[Mutation, str]]:
    """Each mutation with what its tests said, as they end."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: Queue[Path] = Queue()
        all_tests = {mutation: _tests(mutation, ROOT) for mutation in chosen}
        for job in range(jobs):
            copies.put(_copy(Path(folder) / str(job)))

        def tried(mutation: Mutation) -> tuple[Mutation, str]:
            copy = copies.get()
            tests = all_tests[mutation]
            file = copy / mutation.path.relative_to(ROOT)
            whole = file.read_text()
            lines = whole.splitlines(keepends=True)
            lines[mutation.line - 1] = mutation.after + "\n"
            file.write_text("".join(lines))
            try:
                answer, seconds = _run(copy, tests, limit)
            finally:
                file.write_text(whole)
            if answer == "late":
                without, needed = _run(copy, tests, limit)
                answer = "caught" if without == "missed" and needed < limit / 2 else "missed"
            copies.put(copy)
            place = f"{mutation.path.relative_to(ROOT)}:{mutation.line}"
            print(
                f"{answer}  {place}  {mutation.kind}  {seconds:.0f} s, {len(tests)} files\n"
                f"    - {mutation.before.strip()}\n    + {mutation.after.strip()}",
                flush=True,
            )
            return mutation, answer

        yield from pool.map(tried, chosen)


def main() -> None:
    """Draw places, try them, and print what was caught by room."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--limit", type=float, default=300, help="seconds a mutation")
    options.add_argument("--under", nargs="+", default=list(UNDER), help="folders of sweeper/")
    options.add_argument("--list", action="store_true")
    options.add_argument("--json", type=Path, help="keep the answers there")
    given = options.parse_args()
    places = mutations(ROOT, tuple(given.under))
    chosen = sorted(places, key=lambda place: place.key(given.seed))[: given.count]
    print(f"{len(places)} places, {len(chosen)} drawn with seed {given.seed}", flush=True)
    if given.list:
        for place in chosen:
            tests = _tests(place, ROOT)
            where = f"{place.path.relative_to(ROOT)}:{place.line}"
            print(f"{where} {place.kind}: {place.after.strip()}  ({len(tests)} test files)")
        return
    answers = list(measured(chosen, given.jobs, given.limit))
    counted = Counter(answer for _, answer in answers)
    rooms: dict[str, Counter[str]] = {}
    for mutation, answer in answers:
        room = mutation.path.relative_to(ROOT / "sweeper").parts[0]
        rooms.setdefault(room, Counter())[answer] += 1
    for room, split in sorted(rooms.items()):
        print(f"{room}: {split['caught']} of {split.total()} caught")
    print(f"caught {counted['caught']} of {len(answers)}")
    if given.json:
        kept = [
            {"file": str(m.path.relative_to(ROOT)), "line": m.line, "kind": m.kind,
             "before": m.before.strip(), "after": m.after.strip(), "answer": answer}
            for m, answer in answers
        ]  # fmt: skip
        given.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
