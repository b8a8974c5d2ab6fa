"""Any change of a study's records leaves what a command says as it was, or is named."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
from collections import Counter
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


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workplace of a study that was searched, validated and checked; not to be changed."""
    place = make_workplace(tmp_path_factory.mktemp("validated"))
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


@pytest.fixture
def expected(validated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What each command says of the study as it is, which is told once."""
    if not EXPECTED:
        sys.addaudithook(_opened)
        place = tmp_path / "place"
        for verb, argv in COMMANDS.items():
            EXPECTED[verb] = _facts(_said(capsys, validated, place, *argv), place, verb)
            READ[verb] = {os.path.relpath(path, place) for path in OPENED}
    return EXPECTED


EXPECTED: dict[str, str] = {}
READ: dict[str, set[str]] = {}
"""The files that each command opens: what it does not read cannot change what it says."""
OPENED: list[str] = []


def _opened(event: str, facts: tuple[Any, ...]) -> None:
    """Keep what is opened; from the first attack on, as a hook stays, and sees all that is done."""
    if event == "open" and isinstance(facts[0], str | bytes | Path):
        OPENED.append(os.path.abspath(os.fsdecode(facts[0])))


def _said(capsys: pytest.CaptureFixture[str], source: Path, place: Path, *argv: str) -> Answer:
    """What a command says in a copy of a workplace, what it takes as long as it is not there."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    OPENED.clear()
    with chdir(place):
        return call(capsys, *argv)


def _facts(answer: Answer, place: Path, verb: str) -> str:
    """What a command told, on the terminal and in what it wrote; without when that was."""
    facts = [str(answer.code), answer.out]
    written = {"report": "report.html", "transfer": "transfer/w32-d1/plan.json"}
    if verb in written and not answer.code:
        text = (place / "runs/a" / written[verb]).read_text()
        if verb == "transfer":
            plan = json.loads(text)
            plan.pop("sum", None)
            plan["source"] = {n: v for n, v in plan["source"].items() if n not in ("date",)}
            text = json.dumps(plan)
        facts.append(text)
    return "\n".join(facts)


def _attack(
    number: int,
    validated: Path,
    expected: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    """Change one file of the study; what each command made of it."""
    draw, place = random.Random(number), tmp_path / "place"
    paths = [p for p in sorted((validated / "runs/a").rglob("*")) if p.is_file()]
    paths += sorted((validated / "runs/.cache").glob("*.json"))  # of its data
    paths = [p for p in paths if p.suffix not in PICTURES and p.stat().st_size]
    path = paths[number % len(paths)].relative_to(validated)
    kind = list(MUTATIONS)[draw.randrange(len(MUTATIONS))]
    data = (validated / path).read_bytes()
    others = [p.read_bytes() for p in paths if p.suffix == path.suffix and p != validated / path]
    others += [p.read_bytes() for p in paths] * (not others)
    changed = MUTATIONS[kind](data, draw, others)
    mutant = tmp_path / "mutant"
    shutil.rmtree(mutant, ignore_errors=True)
    shutil.copytree(validated, mutant)
    (mutant / path).write_bytes(changed)
    outcomes = []
    for verb in (verb for verb in COMMANDS if str(path) in READ[verb]):
        answer = _said(capsys, mutant, place, *COMMANDS[verb])
        facts = _facts(answer, place, verb)
        named = path.name in answer.text or (answer.code == 2 and answer.err.count("Error: ") == 1)
        if "Traceback" in answer.text:
            outcome = "traceback"
        elif facts == expected[verb]:
            outcome = "equal"
        else:
            outcome = "named" if named else "silent"
        outcomes.append(f"{verb}: {outcome}")
        if outcome in ("traceback", "silent"):
            outcomes[-1] += f" (seed {number}: {kind} in {path})"
    return outcomes


def _wrong(outcomes: list[str]) -> list[str]:
    return [line for line in outcomes if "traceback" in line or "silent" in line]


@pytest.mark.long  # in every run rooms read their own damaged files
@pytest.mark.parametrize("number", [0, 1, 2, 13, 14])
def test_some_changes(
    number: int,
    validated: Path,
    expected: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not _wrong(_attack(number, validated, expected, tmp_path, capsys))


@pytest.mark.faults
def test_all_changes(
    validated: Path, expected: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [
        line for n in range(ALL) for line in _attack(n, validated, expected, tmp_path, capsys)
    ]
    with capsys.disabled():
        print(*sorted(Counter(line.partition(" (")[0] for line in outcomes).items()), sep="\n")
        print(*_wrong(outcomes), sep="\n")
    assert not _wrong(outcomes)
