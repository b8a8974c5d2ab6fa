"""Measure the package: files, lines, functions, comments, and what a command passes through.

    python scripts/structure.py              # what the source says
    python scripts/structure.py --trace      # and how many functions a small search enters before
                                             # its first trained step, a validated transfer in all

The numbers are a mirror, no limit: they show where one subject lies in many pieces.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import statistics
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sweeper"
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


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods, those within functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def comment_lines(text: str) -> tuple[int, int]:
    """Lines that hold a comment, and those that hold nothing else; docstrings are none."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    alone = sum(not token.line[: token.start[1]].strip() for token in comments)
    return len(comments), alone


def is_record(node: ast.AST) -> bool:
    """Whether a class is a dataclass by its decorator."""
    return isinstance(node, ast.ClassDef) and any(
        "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def measure() -> None:
    """Print what the source says, and lines by room."""
    texts = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for tree in trees.values()
        for node in functions(tree)
    )
    records = sum(is_record(node) for tree in trees.values() for node in ast.walk(tree))
    imports = sum(
        (node.end_lineno or 0) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    comments = {path: comment_lines(text) for path, text in texts.items()}
    total = sum(lines.values())
    roots = [path.name for path in texts if path.parent == PACKAGE]
    print(f"{len(texts)} files, {total} lines, {len(roots)} modules at the root")
    small = sum(count < 80 for path, count in lines.items() if path.name != "__init__.py")
    print(f"median file {statistics.median(lines.values()):g} lines, {small} under 80")
    ninety = lengths[len(lengths) * 9 // 10]
    median = statistics.median(lengths)
    print(f"{len(lengths)} functions: p50 {median:g}, p90 {ninety}, longest {lengths[-1]} lines")
    print(f"{records} dataclasses, {imports} lines of imports")
    commented, alone = (sum(counts) for counts in zip(*comments.values(), strict=True))
    by_themselves = f"{alone} by themselves, {100 * alone / total:.1f} %"
    print(f"comments on {commented} lines, {100 * commented / total:.1f} %; {by_themselves}")
    rooms: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    remarks: Counter[str] = Counter()
    for path, count in lines.items():
        parts = path.relative_to(PACKAGE).parts
        room = parts[0] if len(parts) > 1 else "(root)"
        rooms[room] += count
        counts[room] += 1
        remarks[room] += comments[path][1]
    for room, count in sorted(rooms.items()):
        share = f"{100 * remarks[room] / count:.1f} % comments"
        print(f"  {room:<12}{counts[room]:>4} files {count:>6} lines, {share}")


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
    options = parser.parse_args()
    measure()
    if options.trace:
        trace()


if __name__ == "__main__":
    main()
