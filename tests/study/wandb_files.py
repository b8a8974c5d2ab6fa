"""Reading an offline W&B run back from the disk: its file is a LevelDB log of protobuf records."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

SETTLE_SECONDS = 10.0
BLOCK, HEADER = 32768, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class Run:
    """What a run's file says."""

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
    """All runs in the W&B folder `folder`, one a run folder."""
    return [read_whole(path) for path in sorted(folder.glob("*run-*/run-*.wandb"))]


def read_whole(path: Path) -> Run:
    """A run once its end is written: W&B's own process writes on after `finish` has returned."""
    end = time.monotonic() + SETTLE_SECONDS
    while (run := read_run(path)).exit_code is None and time.monotonic() < end:
        time.sleep(0.05)
    return run


def read_run(path: Path) -> Run:
    run = Run()
    for data in log_records(path.read_bytes()):
        record = Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found = record.run
            run.id, run.group, run.job_type = found.run_id, found.run_group, found.job_type
            run.name, run.project = found.display_name, found.project
            run.config |= json_items(found.config.update)
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


def log_records(data: bytes) -> Iterator[bytes]:
    """The log's records, checked; what is cut off at the end is left out."""
    assert data[:4] == b":W&B"
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        checksum, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        payload = data[place + HEADER : place + HEADER + length]
        if kind == 0 or len(payload) < length:
            return
        assert zlib.crc32(bytes([kind]) + payload) == checksum
        place += HEADER + length
        parts = payload if kind in (WHOLE, FIRST) else parts + payload
        if kind in (WHOLE, LAST):
            yield parts
