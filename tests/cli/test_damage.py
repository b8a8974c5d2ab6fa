"""Any change of a study's records leaves what a command says as it was, or is named."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cli.driver import TINY, Answer, call, make_workplace, run_in

WING = find_spec("sweeper.evidence") is not None
if WING:
    from tests.evidence.made import prediction, run

Capture = pytest.CaptureFixture[str]
Mutation = Callable[[bytes, random.Random, list[bytes]], bytes]
"""Of a file's content, with those of the others."""
TARGET = "runs/a/transfer/w32-d1"
LOG = ["--metric", "jsonl:log.jsonl:loss", "--once"]
COMMANDS = {
    "status": ["status", "a"],
    "report": ["report", "a"],
    "transfer": ["transfer", "--study", "a", "--to-width", "32"],
    "search": ["search", *TINY, "study=a"],
    "explain": ["explain", "--study", "a", "--to-width", "64"],
    "export": ["export", "--study", "a", "--to", "pytorch"],
}
if WING:
    COMMANDS |= {
        "compare": ["compare", "a", "b"],
        "predict": ["predict", "--study", "a", "--to-width", "64"],
        "judge": ["judge", "runs/a"],
        "follow": ["follow", "--prediction", f"{TARGET}/prediction.json", *LOG],
    }
CHECK = ["check", "--study", "a"]
QUICK = ["check.seeds=2", "check.steps=2", "check.scale_steps=2"]
PICTURES = {".png", ".svg", ".html"}
"""They are drawn anew from the records, and read by nobody."""
ALL = int(os.environ.get("SWEEPER_MUTATIONS", "200"))


def _flip(data: bytes, draw: random.Random, _: list[bytes]) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _truncate(data: bytes, draw: random.Random, _: list[bytes]) -> bytes:
    return data[: draw.randrange(len(data))]


def _paste(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    other, at = draw.choice(others), draw.randrange(len(data))
    begin = draw.randrange(len(other))
    return data[:at] + other[begin : begin + draw.randint(1, len(other))] + data[at:]


def _lines(data: bytes, draw: random.Random, times: int) -> bytes:
    lines = data.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    return b"".join([*lines[:at], *lines[at : at + 1] * times, *lines[at + 1 :]])


def _number(data: bytes, draw: random.Random, _: list[bytes]) -> bytes:
    numbers = list(re.finditer(rb"(?<![\w.])-?\d+(\.\d+)?", data))
    if not numbers:
        return data
    number = draw.choice(numbers)
    other = f"{float(number[0]) * 2 + 1:g}" if b"." in number[0] else str(int(number[0]) + 1)
    return data[: number.start()] + other.encode() + data[number.end() :]


MUTATIONS: dict[str, Mutation] = {
    "flip a bit": _flip,
    "delete a line": lambda data, draw, _: _lines(data, draw, 0),
    "duplicate a line": lambda data, draw, _: _lines(data, draw, 2),
    "paste another file's block": _paste,
    "another file's content": lambda _, draw, others: draw.choice(others),
    "empty": lambda *_: b"",
    "truncate": _truncate,
    "change a number": _number,
}


def validated(place: Path) -> Path:
    """The workplace of a study that was searched, validated and checked."""
    make_workplace(place)
    run_in(place, "search", *TINY, "study=a")
    argv = ["transfer", "--study", "a", "--to-width", "32", "--validate"]
    run_in(place, *argv, "transfer.widths=[16,24,32]")
    run_in(place, *CHECK, *QUICK)
    run_in(place, *CHECK, "--scales", *QUICK)
    if WING:
        prediction().write(place / TARGET)
        losses = enumerate(run(1)[:600].tolist())
        rows = [json.dumps({"step": step, "loss": loss}) for step, loss in losses]
        (place / "log.jsonl").write_text("\n".join(rows))
    shutil.copytree(place / "runs/a", place / "runs/b")
    return place


OPENED: set[str] = set()
"""What a command opens: what it does not read cannot change what it says."""


def _opened(event: str, facts: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(facts[0], str | bytes | Path):
        OPENED.add(os.path.abspath(os.fsdecode(facts[0])))


def _answer(verb: str, source: Path, place: Path, capsys: Capture) -> tuple[Answer, str]:
    """What a command says in a copy of a workplace, and with what it wrote, without when."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    OPENED.clear()
    with chdir(place):
        answer = call(capsys, *COMMANDS[verb])
    facts = [str(answer.code), answer.out]
    written = {"report": "report.html", "transfer": "transfer/w32-d1/plan.json"}
    if verb in written and not answer.code:
        text = (place / "runs/a" / written[verb]).read_text()
        if verb == "transfer":
            plan = json.loads(text)
            plan.pop("sum", None)
            plan["source"].pop("date", None)
            text = json.dumps(plan)
        facts.append(text)
    return answer, "\n".join(facts)


def _changed(number: int, source: Path, mutant: Path) -> tuple[Path, str]:
    """Change one file of the study in a copy: which one, and how."""
    draw = random.Random(number)
    paths = [p for p in sorted((source / "runs/a").rglob("*")) if p.is_file()]
    paths += sorted((source / "runs/.cache").glob("*.json"))  # of its data
    paths = [p for p in paths if p.suffix not in PICTURES and p.stat().st_size]
    path = paths[number % len(paths)]
    kind = list(MUTATIONS)[draw.randrange(len(MUTATIONS))]
    others = [p.read_bytes() for p in paths if p.suffix == path.suffix and p != path]
    others += [p.read_bytes() for p in paths] * (not others)
    changed = MUTATIONS[kind](path.read_bytes(), draw, others)
    shutil.rmtree(mutant, ignore_errors=True)
    shutil.copytree(source, mutant)
    (mutant / path.relative_to(source)).write_bytes(changed)
    return path.relative_to(source), kind


@pytest.mark.faults  # in every run rooms read their own damaged files
def test_a_change_alters_no_answer_unseen(tmp_path: Path, capsys: Capture) -> None:
    source, place = validated(tmp_path / "whole"), tmp_path / "place"
    sys.addaudithook(_opened)
    expected, read = dict[str, str](), dict[str, set[str]]()
    for verb in COMMANDS:
        _, expected[verb] = _answer(verb, source, place, capsys)
        read[verb] = {os.path.relpath(path, place) for path in OPENED}
    wrong = list[str]()
    for number in range(ALL):
        path, kind = _changed(number, source, tmp_path / "mutant")
        for verb in (verb for verb in COMMANDS if str(path) in read[verb]):
            answer, facts = _answer(verb, tmp_path / "mutant", place, capsys)
            one_error = answer.code == 2 and answer.err.count("Error: ") == 1
            is_named = path.name in answer.text or one_error
            if "Traceback" in answer.text or not (facts == expected[verb] or is_named):
                wrong.append(f"{verb} (seed {number}: {kind} in {path})")
    assert not wrong
