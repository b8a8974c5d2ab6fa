"""Show that the wing can be taken off: a copy without `sweeper/evidence/` still works.

    python scripts/core_alone.py

A small search, a validated transfer, an export, `status` and `report` run in the copy, and all
tests outside `tests/evidence/` are collected. The first command that fails is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL = [
    *("train.steps=20", "train.batch_size=4", "train.seq_len=32", "search.line.points=3"),
    *("search.seeds=1", "search.fresh_seeds=1", "launcher=inline"),
]
COMMANDS = [
    ["--help"],
    ["search", "experiment=demo", *SMALL],
    ["transfer", "--study", "demo", "--to-width", "64", "--validate", "transfer.seeds=2"],
    ["export", "--study", "demo", "--to", "pytorch"],
    ["status", "demo"],
    ["report", "demo"],
]
WING = ("judge", "compare", "predict", "follow")


def run(copy: Path, *words: str, cwd: Path) -> str:
    """What a command of the copy prints; the script ends where it fails."""
    env = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Delete the wing from a copy, and use what is left."""
    with tempfile.TemporaryDirectory() as folder:
        copy, work = Path(folder, "copy"), Path(folder, "work")
        work.mkdir()
        for name in ("sweeper", "conf", "tests", "scripts", "docs"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        for source in (ROOT / "pyproject.toml", *ROOT.glob("*.md")):
            shutil.copy(source, copy / source.name)
        for room in ("sweeper", "tests"):
            shutil.rmtree(copy / room / "evidence")
        for words in COMMANDS:
            said = run(copy, "-m", "sweeper", *words, cwd=work)
            print(f"sweeper {' '.join(words[:2])}: done", flush=True)
            if words == ["--help"]:
                assert not [verb for verb in WING if f"│ {verb} " in said], said
        collect = ("-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests")
        print(run(copy, *collect, cwd=copy).strip().splitlines()[-1])


if __name__ == "__main__":
    main()
