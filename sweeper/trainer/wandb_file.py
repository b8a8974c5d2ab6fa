"""The history in an offline run of W&B: a LevelDB log of protobuf records.

W&B has no function that reads it. The format is that of LevelDB's logs: blocks of 32 KiB, in each
records with a checksum, a length and a kind that tells whether it is whole or a part.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
WHOLE, FIRST, LAST = 1, 2, 4


def history(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of the run's history so far, values by key; its step as `_step`."""
    for record in _parsed(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            yield {"_step": record.history.step.num, **row}


def kinds(path: Path) -> set[str]:
    """The kinds of records so far; "exit" is the last."""
    return {record.WhichOneof("record_type") for record in _parsed(path)}


def _parsed(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    return map(Record.FromString, _records(path.read_bytes()))


def _records(data: bytes) -> Iterator[bytes]:
    """Whole records; a last one that is still being written is left out."""
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        payload = data[place + HEADER : place + HEADER + length]
        if kind == 0 or len(payload) < length:
            return
        place += HEADER + length
        parts = payload if kind in (WHOLE, FIRST) else parts + payload
        if kind in (WHOLE, LAST):
            yield parts
