"""Validate the engine on a GPU: one call of at most 570 s, on a machine that has no network.

    python scripts/bench/gpu.py --out gpu                    # where sweeper is installed
    python scripts/bench/gpu.py --wheels .wheels --out gpu   # `make gpu-wheels`; torch is there
    python scripts/bench/gpu.py --fake --out gpu             # its logic on a CPU, nothing validated

Every stage is a process of its own with a deadline of its own, and its results are written as they
come: `results.jsonl`, a log for each stage, and at the end `table.md`. "Compiled" is said of what
was compiled, whole. The exit status is 1 when a GPU test fails or a stage does; a search that
the deadline cuts short is told, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from findings import Findings

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts/bench"
DEADLINE = 570.0
BATCHED = {"s0": 512, "s1": 336, "s2": 64, "s3": 16, "s4": 8}
GOALS = {"s0": 0.010, "s1": 0.045, "s2": 0.55, "s3": 2.2, "s4": 4.0}
"""Milliseconds per trial and step."""
PROFILED = ("s1", "s3", "s4")
SEARCHES = {"lr": 60.0, "default": 150.0, "own": 60.0}
"""Whole searches of `gpu_stages.py`, and the seconds that each may take."""
FAKE_SIZE = "tiny"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A command, the seconds it may take, and what starts after it has ended (`then`)."""

    name: str
    command: Sequence[str]
    limit: float
    then: Stage | None = None


@dataclass
class Running:
    """A stage's process; what it prints goes to its log."""

    stage: Stage
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.started


class Validation:
    """The stages of one call, and what they found."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Time counts from here."""
        self.out: Path = options.out.absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "results.jsonl").unlink(missing_ok=True)
        self.fake: bool = options.fake
        self.skipped = tuple(options.skip)
        self.device = "cpu" if options.fake else "cuda"
        # A test's machine is busy, and what a stage does on a CPU is no measure of anything.
        self.patience = 5.0 if options.fake else 1.0
        self.end = time.monotonic() + options.deadline
        self.started = time.monotonic()
        self.records: list[dict[str, Any]] = []
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        if options.wheels:
            path.insert(0, str(self.out / "site"))
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        # One cache for all of them: what the first stages compile, the timed ones only load. On a
        # CPU it is the user's, which has the compiler's headers already.
        if not options.fake:
            self.env["TORCHINDUCTOR_CACHE_DIR"] = str(self.out / "inductor")
        self.env["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.end - time.monotonic()

    def skips(self, stage: Stage) -> bool:
        """Whether the stage was asked to be left out."""
        return stage.name.startswith(self.skipped)

    def keep(self, record: Mapping[str, Any]) -> None:
        """Write a result now: what comes later may fail."""
        self.records.append(dict(record))
        with (self.out / "results.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def run(self, *stages: Stage) -> None:
        """Run stages at the same time, each to its end or to its limit."""
        running = [self._start(stage) for stage in stages if not self.skips(stage)]
        while running:
            time.sleep(0.1)
            for one in list(running):
                over = one.seconds > one.stage.limit * self.patience or self.left() <= 0
                if one.process.poll() is None and not over:
                    continue
                running.remove(one)
                self._ended(one, killed=one.process.poll() is None)
                if one.stage.then is not None and self.left() > 0:
                    running.append(self._start(one.stage.then))

    def _start(self, stage: Stage) -> Running:
        with (self.out / f"{stage.name}.log").open("wb") as log:
            process = subprocess.Popen(
                stage.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                cwd=self.out,
                start_new_session=True,
            )
        return Running(stage, process)

    def _ended(self, one: Running, *, killed: bool) -> None:
        # The whole group: a stage's own workers must not go on beside the next stage.
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, 9)
        one.process.wait()
        log = (self.out / f"{one.stage.name}.log").read_text(errors="replace")
        record: dict[str, Any] = {
            "stage": one.stage.name,
            "exit": None if killed else one.process.returncode,
            "seconds": round(time.monotonic() - one.started, 1),
        }
        if killed or one.process.returncode:
            record["end of log"] = log[-1500:]
        record["found"] = results_in(log)
        self.keep(record)
        state = "cut at its limit" if killed else f"exit {one.process.returncode}"
        print(f"{one.stage.name}: {state} after {record['seconds']} s", flush=True)


def results_in(log: str) -> list[Any]:
    """A stage's own results: the lines that are JSON; what only begins like it is not."""
    found = []
    for line in log.splitlines():
        with suppress(ValueError):
            found += [json.loads(line)] if line.startswith("{") else []
    return found


def own(stage: str, *words: str) -> list[str]:
    """A stage of `gpu_stages.py`."""
    return [sys.executable, str(BENCH / "gpu_stages.py"), stage, *words]


def batching(
    validation: Validation, size: str, sides: str, seconds: float, out: str, *words: str
) -> Sequence[str]:
    """`batching.py` at one size."""
    count = 2 if validation.fake else BATCHED[size]
    command = [sys.executable, str(BENCH / "batching.py"), "--sizes", size, "--sides", sides]
    command += [
        "--batched",
        str(count),
        "--seconds",
        str(seconds),
        "--out",
        str(validation.out / out),
    ]
    return [*command, "--device", validation.device, *words]


def validate(validation: Validation, wheels: Path | None) -> int:
    """All stages in order; the exit status."""
    if wheels:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
        pip += ["--no-compile", "--target", str(validation.out / "site")]
        files = [str(path) for path in sorted(wheels.absolute().glob("*.whl"))]
        validation.run(Stage(name="wheels", command=[*pip, *files], limit=60))
    sizes = [FAKE_SIZE] if validation.fake else list(BATCHED)
    device = ["--device", validation.device]
    validation.run(Stage(name="machine", command=own("machine", *device), limit=60))
    validation.run(*first_stages(validation, sizes))
    # What a user waits for comes first, while there is time.
    for kind, seconds in SEARCHES.items():
        room = min(seconds, validation.left() - 32)
        words = ["--kind", kind, "--seconds", str(max(1.0, room))]
        # It has ten seconds to save itself, and some to say how far it came.
        command = own("search", *device, *words)
        validation.run(Stage(name=f"search-{kind}", command=command, limit=room + 17))
    words = ["--processes", "2" if validation.fake else "14"]
    validation.run(Stage(name="peer", command=own("peer", *device, *words), limit=110))
    for size in sizes:
        # At s1 fourteen processes begin as well.
        limit = 75 if size == "s1" else 50
        validation.run(Stage(name=f"time-{size}", command=timing(validation, size), limit=limit))
        keep_times(validation, size)
    for size in sizes if validation.fake else PROFILED:
        words = ["--size", size, "--count", "2" if validation.fake else str(BATCHED[size])]
        validation.run(
            Stage(name=f"profile-{size}", command=own("profile", *device, *words), limit=40)
        )
    tell(validation)
    return verdict(validation)


def timing(validation: Validation, size: str) -> Sequence[str]:
    """All that is timed at one size, at s1 many processes as well."""
    sides, words = "compiled,batched,batched-graph,batched-compiled", list[str]()
    if validation.fake or size == "s1":
        sides, words = f"{sides},processes", ["--processes", "2" if validation.fake else "14"]
    seconds = 0.1 if validation.fake else 2.0
    return batching(validation, size, sides, seconds, f"{size}.json", *words)


def first_stages(validation: Validation, sizes: Sequence[str]) -> list[Stage]:
    """The GPU tests, and at the same time what compiles the timed forms into the cache.

    s2 waits for s0: the trials of all sizes at once would not fit into the GPU's memory.
    """
    pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rs", "-p", "no:cacheprovider"]
    tests = ["tests/engine/test_gpu.py"] if validation.fake else ["tests/engine", "tests/models"]
    pytest += [*(str(ROOT / path) for path in tests), f"--rootdir={ROOT}"]
    pytest += [f"-c{ROOT / 'pyproject.toml'}"]
    stages = [Stage(name="tests", command=pytest, limit=150)]

    def warm(size: str, then: Stage | None = None) -> Stage:
        command = batching(validation, size, "compiled,batched-compiled", 0.0, f"warm-{size}.json")
        return Stage(name=f"warm-{size}", command=command, limit=150, then=then)

    if validation.fake:
        return stages
    return [*stages, warm("s0", warm("s2")), *(warm(s) for s in sizes if s not in ("s0", "s2"))]


def keep_times(validation: Validation, size: str) -> None:
    """What `batching.py` wrote, even if it was cut short."""
    try:
        [row] = json.loads((validation.out / f"{size}.json").read_text())["sizes"]
    except (OSError, ValueError, KeyError):
        return
    validation.keep({"times": row})


def verdict(validation: Validation) -> int:
    """1 when a stage failed, a GPU test failed or was not run, or no trials were timed batched."""
    problems = []
    for record in validation.records:
        name, code = record.get("stage", ""), record.get("exit")
        if name.startswith("warm"):
            continue  # the timed stage compiles what is not in the cache
        if "stage" in record and code != 0 and not (name.startswith("search") and code is None):
            problems.append(f"{name}: {'cut at its limit' if code is None else f'exit {code}'}")
        if name == "tests" and not validation.fake and not ran_tests(validation):
            problems.append("tests: none was run on the GPU, or some were skipped")
    timed = [record["times"] for record in validation.records if "times" in record]
    problems += [
        f"{row['size']}: no trials were timed batched and compiled"
        for row in timed
        if not known(row.get("batched-compiled"))
    ]
    for problem in problems:
        print(f"FAILED {problem}", flush=True)
    return int(bool(problems))


def ran_tests(validation: Validation) -> bool:
    """Whether GPU tests passed and none was skipped."""
    closing = closing_line(validation)
    return bool(re.search(r"\d+ passed", closing)) and "skipped" not in closing


def closing_line(validation: Validation) -> str:
    """What pytest says at its end; something may be printed after it."""
    log = (validation.out / "tests.log").read_text(errors="replace").splitlines()
    closing = [line for line in log if re.search(r"\d+ \w+.* in \d+\.\d+s", line)]
    return (closing or log or ["nothing printed"])[-1]


def tell(validation: Validation) -> None:
    """The table: times, ratios, and bytes a second by the committed count of traffic."""
    counted = json.loads((BENCH / "traffic.json").read_text()) if has_traffic() else {}
    found = [record["times"] for record in validation.records if "times" in record]
    rows = [table_row(row, counted.get(row["size"], {})) for row in found]
    notes = [*notes_of(validation), f"{time.monotonic() - validation.started:.0f} s in all"]
    if validation.fake:
        notes.append("--fake: a CPU, and nothing is validated")
    columns = ["size", "ms alone, compiled", "batched", "as a graph", "compiled, as a graph"]
    columns += ["goal", "x alone, compiled", "TB/s"]
    Findings(
        title="per trial and step",
        columns=columns,
        rows=rows,
        notes=notes,
        record={"records": validation.records},
    ).tell(validation.out / "gpu.json", validation.out / "table.md")


def has_traffic() -> bool:
    """Whether the bytes of a step have been counted."""
    return (BENCH / "traffic.json").exists()


def table_row(row: Mapping[str, Any], counted: Mapping[str, Any]) -> list[str]:
    """One size; blank where nothing was measured."""
    size, alone = row["size"], row.get("compiled")
    forms = ("batched", "batched-graph", "batched-compiled")
    batched = [min(known(row.get(form)), default=None) for form in forms]
    best = min((value for value in batched if value), default=None)
    if best is None:
        return [size, "; ".join(row["failures"].values())[:60] or "not measured", *[""] * 6]
    met = ("met" if 1000 * best <= GOALS[size] else "missed") if size in GOALS else ""
    return [
        size,
        *(f"{1000 * value:.4f}" if value else "" for value in (alone, *batched)),
        f"{GOALS.get(size, '')} {met}",
        f"{alone / best:.1f}" if alone and alone == alone else "",
        f"{counted['bytes'] / best / 1e12:.2f}" if counted else "",
    ]


def known(values: Mapping[Any, float | None] | None) -> list[float]:
    """Those that are numbers."""
    return [value for value in (values or {}).values() if value is not None and value == value]


def notes_of(validation: Validation) -> list[str]:
    """What the machine, the tests, the profiles and the search said."""
    notes = []
    for record in validation.records:
        name, found = record.get("stage", ""), record.get("found") or []
        if name == "tests":
            notes.append(f"GPU tests: {closing_line(validation)}")
        elif name.startswith("search"):
            last = found[-1] if found else {}
            done, seconds = last.get("trials"), last.get("seconds")
            end = {0: "to its end", None: "cut by its limit"}.get(last.get("exit"), "it failed")
            notes.append(f"{name}: {done} trials in {seconds} s, {end}")
        elif name == "peer":
            notes += [
                f"{line['trials']} trials of search-{line['peer']} take as many processes as were "
                f"trained ({line['trained']}) {line['seconds']} s"
                for line in found
            ]
        elif name.startswith(("machine", "profile")):
            notes += [f"{name}: {json.dumps(line)}" for line in found]
    return notes


def main(words: list[str] | None = None) -> int:
    """All stages in their order; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="a folder for what is found")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to install first")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds for all of it")
    parser.add_argument("--fake", action="store_true", help="tiny, and on a CPU")
    parser.add_argument(
        "--skip", nargs="+", default=[], help="stages to leave out, such as tests or profile-s3"
    )
    options = parser.parse_args(words)
    return validate(Validation(options), options.wheels)


if __name__ == "__main__":
    raise SystemExit(main())
