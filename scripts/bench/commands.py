"""What a command itself costs: CPU seconds, beside those of importing torch alone.

    python scripts/bench/commands.py                     # the rows that take seconds: a minute
    python scripts/bench/commands.py --beside ../other   # another checkout, in turn with this one
    python scripts/bench/commands.py --search            # a whole search too: minutes

A command's seconds are user and system time of its process and of what it starts, the least of
`--repeats` that are taken in turn with all others: unlike seconds on the clock they hardly depend
on what else the machine does. The studies that are read were trained by the same program, two
searches and ladders of runs of two steps, 76 results each.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from findings import Findings

ROOT = Path(__file__).resolve().parents[2]
PAGE = """
import typer
app = typer.Typer()
@app.command()
def one(number: int = 1) -> None: "One verb."
@app.command()
def other(number: int = 1) -> None: "Another."
app()
"""
"""The least program whose --help Typer and rich print."""
PYTHON = {
    "import typer, rich": ["-c", "import typer, rich"],
    "--help of two verbs": ["-c", PAGE, "--help"],
    "import torch": ["-c", "import torch"],
}
SEARCH = ["search=lr", "train.steps=2", "train.batch_size=2", "train.seq_len=16", "model.width=16"]
SEARCH += ["model.depth=1", "data=text", "data.path=text.txt", "launcher=inline"]
SEARCH += ["runner.device=cpu", "runner.compile=off", "runner.batched_trials=16"]
LADDER = ["--to-width", "64", "--validate", "transfer.widths=[16,32,64]", "transfer.check=false"]
LADDER += ["transfer.seeds=4", "transfer.step=1", "transfer.extend=0"]
COMMANDS = {
    "--help": ["--help"],
    "status": ["status", "umup"],
    "explain": ["explain", "--to-width", "256"],
    "report": ["report", "umup"],
    "compare": ["compare", "umup", "mup", "--ignore", "data,model,train"],
}
ALONE = "import torch"
"""What all seconds are compared with."""
FIRST = "search, first trial"


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A checkout of sweeper, and the folder that its studies lie in."""

    name: str
    root: Path
    folder: Path

    def argv(self, words: Sequence[str]) -> list[str]:
        """The command line of `sweeper` with these words."""
        return [sys.executable, "-m", "sweeper", *words]

    @property
    def env(self) -> dict[str, str]:
        """That python finds this checkout, and keeps its bytecode."""
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "PYTHONPATH": str(self.root), "COLUMNS": "100"}

    def cpu(self, argv: Sequence[str]) -> float:
        """CPU seconds of a process and of its children; it must end well."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(argv, capture_output=True, text=True, env=self.env, cwd=self.folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(f"{' '.join(argv)}: {done.returncode}\n{done.stderr}")
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def train(self) -> None:
        """Make the two studies."""
        text = "the quick brown fox jumps over the lazy dog, and so on without an end. " * 200
        (self.folder / "text.txt").write_text(text)
        for rules in ("umup", "mup"):
            words = [f"parameterization={rules}", *SEARCH, "--study", rules]
            self.cpu(self.argv(["search", *words]))
            self.cpu(self.argv(["transfer", *LADDER, "--study", rules]))

    def first_trial(self) -> float:
        """CPU seconds, of all its processes, from typing a search until a trial is recorded."""
        study = f"first-{time.time_ns()}"
        argv = self.argv(["search", *SEARCH, "--study", study])
        process = subprocess.Popen(
            argv,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.env,
            cwd=self.folder,
            start_new_session=True,
        )
        results = self.folder / "runs" / study / "results"
        while not any(file.stat().st_size for file in results.glob("*.jsonl")):
            if process.poll() is not None:
                sys.exit(f"{' '.join(argv)}: it ended before it had trained")
            time.sleep(0.002)
        seconds = _session_cpu(process.pid)
        process.wait()
        return seconds


def _session_cpu(session: int) -> float:
    """CPU seconds so far of all processes of a session, of those that have ended too."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(checkouts: Sequence[Checkout], repeats: int) -> dict[str, dict[str, float]]:
    """CPU seconds by what was measured and by checkout, the least of all repeats."""
    tasks: dict[str, dict[str, Callable[[], float]]] = {}
    for name, words in PYTHON.items():
        tasks[name] = {"": partial(checkouts[0].cpu, [sys.executable, *words])}
    for name, words in COMMANDS.items():
        tasks[name] = {each.name: partial(each.cpu, each.argv(words)) for each in checkouts}
    tasks[FIRST] = {each.name: each.first_trial for each in checkouts}
    least: dict[str, dict[str, float]] = {name: {} for name in tasks}
    for _ in range(repeats):
        for name, by_checkout in tasks.items():
            for checkout, task in by_checkout.items():
                least[name][checkout] = min(least[name].get(checkout, float("inf")), task())
    return least


def main() -> None:
    """Measure, print the table, write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="the least of so many counts")
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--search", action="store_true", help="search.py at width 64, too")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes as Markdown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="commands-") as temporary:
        roots = {"sweeper": ROOT}
        if options.beside:
            roots["beside"] = options.beside.resolve()
        checkouts = []
        for name, root in roots.items():
            folder = Path(temporary) / name
            folder.mkdir()
            checkouts.append(Checkout(name=name, root=root, folder=folder))
            checkouts[-1].train()
        files = list((checkouts[0].folder / "runs/umup/results").glob("*.jsonl"))
        results = sum(len(file.read_text().splitlines()) for file in files)
        least = measure(checkouts, options.repeats)
    alone = least[ALONE][""]
    names = [checkout.name for checkout in checkouts]
    rows = []
    for name, seconds in least.items():
        of = [seconds.get("", seconds.get(each)) for each in names]
        shown = [f"{value:.2f}" for value in of if value is not None]
        rows.append([name, *shown, f"{(of[0] or 0.0) / alone:.2f}"])
    ours = least["--help"]["sweeper"]
    notes = [
        f"--help takes {ours / least['import typer, rich']['']:.2f} times what it takes to import "
        f"typer and rich, and {ours / least['--help of two verbs']['']:.2f} times the --help of a "
        "program of two verbs that Typer prints.",
        f"The studies hold {results} results each; the least of {options.repeats}, all in turn, at "
        f"a load of {os.getloadavg()[0]:.1f}.",
    ]
    seconds_of = [f"{name}, CPU s" for name in names]
    Findings(
        title="What a command itself costs",
        columns=["", *seconds_of, "x import torch"],
        rows=rows,
        notes=notes,
        record={"cpu_s": least, "results": results},
    ).tell(options.out, options.markdown)
    if options.search:
        # In a process of its own: this one holds no torch.
        words = ["--device", "cpu", "--launcher", "local", "--steps", "20", "--processes", "2"]
        script = Path(__file__).with_name("search.py")
        subprocess.run([sys.executable, str(script), *words], check=True)


if __name__ == "__main__":
    main()
