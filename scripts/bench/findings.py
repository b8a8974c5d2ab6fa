"""What the benchmarks share: the machine, and one table for the terminal, Markdown and JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def machine() -> dict[str, Any]:
    """The machine, and how busy it is: a load above the cores makes all times rough."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A table of words, sentences under it, and the record it was made from."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    record: Mapping[str, Any]

    def markdown(self) -> str:
        """The table and the sentences as Markdown."""
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n".join([table, "", *(f"- {note}" for note in self.notes), ""])

    def tell(self, out: Path | None, markdown: Path | None) -> None:
        """Print the table, and write JSON and Markdown where they are wanted."""
        first, *rest = self.columns
        table = Table(first, title=self.title)
        for name in rest:
            table.add_column(name, justify="right")
        for row in self.rows:
            table.add_row(*row)
        console = Console()
        console.print(table)
        for note in self.notes:
            console.print(f"- {note}", highlight=False, markup=False)
        for path, text in (
            (out, json.dumps({"machine": machine(), **self.record}, indent=1) + "\n"),
            (markdown, self.markdown()),
        ):
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
