import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.command.metrics import tracker_files

SETTLE_SECONDS = 10.0


@dataclass
class Run:
    id: str = ""
    group: str = ""
    job_type: str = ""
    name: str = ""
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, list[str]] = field(default_factory=dict)
    exit_code: int | None = None


def read_runs(folder: Path) -> list[Run]:
    return [read_whole(path) for path in sorted(folder.glob("*run-*/run-*.wandb"))]


def read_whole(path: Path) -> Run:
    """A run once its end is written: W&B's own process writes on after `finish` has returned."""
    end = time.monotonic() + SETTLE_SECONDS
    while (run := read_run(path)).exit_code is None and time.monotonic() < end:
        time.sleep(0.05)
    return run


def read_run(path: Path) -> Run:
    run = Run()
    for record in tracker_files._parsed(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            saved = record.run
            run.id, run.group, run.job_type = saved.run_id, saved.run_group, saved.job_type
            run.name, run.project = saved.display_name, saved.project
            run.config |= json_items(saved.config.update)
        elif kind == "history":
            run.history.append(json_items(record.history.item))
        elif kind == "summary":
            run.summary |= json_items(record.summary.update)
        elif kind == "request" and record.request.HasField("log_artifact"):
            artifact = record.request.log_artifact.artifact
            run.artifacts[artifact.name] = [e.path for e in artifact.manifest.contents]
        elif kind == "artifact":
            run.artifacts[record.artifact.name] = [
                entry.path for entry in record.artifact.manifest.contents
            ]
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def json_items(pairs: Any) -> dict[str, Any]:
    return {".".join(p.nested_key) or p.key: json.loads(p.value_json) for p in pairs}
