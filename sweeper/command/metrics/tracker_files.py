"""What trackers write: a tag in TensorBoard's event files, a key in the history of a run of W&B."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from sweeper.command.reading import Below, Files, MetricSource, Reading, RowReader, as_number
from sweeper.errors import BadInput, ConfigError, Keyword


@dataclass(frozen=True)
class TensorBoardTag(Below):
    """The scalars of a tag in event files below the run's folder."""

    form: ClassVar[str] = "tensorboard:TAG"
    files, file, place = "**/*tfevents*", "event file", "an event file"
    called, library = "tags", "tensorboard"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """Every file, the older one first."""
        others = frozenset(folder.glob(self.files) if fresh else ())
        return Files(folder, self.files, partial(Scalars, self.name), others=others)

    def names(self, path: Path) -> list[str]:
        """The tags of a file."""
        return tags(path)


class Scalars(MetricSource):
    """Scalars of a tag in one event file."""

    def __init__(self, tag: str, path: Path) -> None:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        self.tag, self._loader = tag, EventFileLoader(str(path))

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """The loader turns the simple values of older writers into tensors."""
        for event in self._loader.Load():
            for value in event.summary.value:
                of_tag = value.tag == self.tag and value.HasField("tensor")
                if of_tag and value.tensor.float_val:
                    yield Reading(event.step, float(value.tensor.float_val[0]))


def hparams(path: Path) -> dict[str, Any]:
    """Hyperparameters in an event file, as the HParams plugin of TensorBoard keeps them."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    settings: dict[str, Any] = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag == "_hparams_/session_start_info":
                data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                for name, setting in data.session_start_info.hparams.items():
                    settings[name] = getattr(setting, setting.WhichOneof("kind") or "null_value")
    return settings


def tags(path: Path) -> list[str]:
    """Tags of an event file, one a value."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        value.tag for event in EventFileLoader(str(path)).Load() for value in event.summary.value
    ]


@dataclass(frozen=True)
class WandbKey(Below):
    """The values of a key in an offline run below the run's folder."""

    form: ClassVar[str] = "wandb:KEY"
    files, file, place = "**/*.wandb", "offline run", "an offline run"

    def open(self, folder: Path, log: Path, *, fresh: bool = False) -> MetricSource:
        """Every file, the older one first; W&B writes them in a process of its own."""
        others = frozenset(folder.glob(self.files) if fresh else ())
        return Files(folder, self.files, partial(OfflineRun, self.name), is_whole, others)

    def names(self, path: Path) -> list[str]:
        """The keys of the history."""
        return history_keys(path)


@dataclass
class OfflineRun(MetricSource):
    """Values of a key in the history of an offline run of W&B."""

    key: str
    path: Path
    _seen: int = 0

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """The file is read anew each time: its records cannot be taken up in their middle."""
        rows = [row for row in history(self.path) if as_number(row.get(self.key)) is not None]
        new, self._seen = rows[self._seen :], len(rows)
        reader = RowReader(self.key)
        yield from (reading for row in new if (reading := reader.reading(row)) is not None)


@dataclass
class Online(MetricSource):
    """Values of `key` in the history of a run on a server of W&B, "entity/project/run".

    Each look asks for the steps behind the last. ConfigError for a run that the server does not
    show; `flag` is the one that names it.
    """

    flag: str | Keyword
    run: str
    key: str
    _next: int = 0

    def read(self, *, ended: bool = False) -> Iterator[Reading]:
        """Rows that have the key."""
        import wandb

        rows = RowReader(self.key)
        try:
            history = (
                wandb.Api()
                .run(self.run)
                .scan_history(keys=["_step", self.key], min_step=self._next)
            )
            for row in history:
                self._next = max(self._next, int(row["_step"]) + 1)
                if (reading := rows.reading(row)) is not None:
                    yield reading
        except (wandb.errors.Error, ValueError) as error:
            allowed = f"a run that W&B shows you ({error})"
            raise ConfigError(self.flag, f"wandb:{self.run}:{self.key}", allowed) from error


# W&B has no function that reads its offline runs. They are logs as LevelDB writes them: blocks of
# 32 KiB, in each of them records with a checksum, a length and a kind that says whether it is whole
# or a part; a record is a protobuf message.


BLOCK, HEADER = 32768, 7
WHOLE, FIRST, LAST = 1, 2, 4


def history(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of the run's history so far, values by key; its step as `_step`."""
    for record in _parsed(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {".".join(i.nested_key) or i.key: _value(i.value_json) for i in items}
            yield {"_step": record.history.step.num, **row}


def _value(text: str) -> Any:
    """What a file that may be anybody's says of a key; None where it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_whole(path: Path) -> bool:
    """Whether the run has ended in its file: W&B's own process writes it a moment later."""
    return any(record.WhichOneof("record_type") == "exit" for record in _parsed(path))


def facts(path: Path) -> tuple[str, dict[str, Any], str]:
    """The run's name, its configuration by key, and whether it is finished, crashed or running."""
    name, config, state = path.stem, dict[str, Any](), "running"
    for record in _parsed(path):
        kind = record.WhichOneof("record_type")
        if kind == "exit":
            state = "crashed" if record.exit.exit_code else "finished"
        elif kind in ("run", "config"):
            if kind == "run":
                name = record.run.display_name or record.run.run_id or name
            changes = record.run.config if kind == "run" else record.config
            for item in changes.update:
                config[".".join(item.nested_key) or item.key] = _value(item.value_json)
            for item in changes.remove:
                config.pop(".".join(item.nested_key) or item.key, None)
    config.pop("_wandb", None)
    return name, config, state


def _parsed(path: Path) -> Iterator[Any]:
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    try:
        yield from map(Record.FromString, _records(path.read_bytes()))
    except DecodeError as error:
        raise BadInput(f"{path} is damaged ({error}): take its run out of the folder") from error


def _records(data: bytes) -> Iterator[bytes]:
    """Whole records; a last one that is still being written is left out."""
    # The file begins with W&B's own seven bytes, ":W&B", a magic number and a version. Checksums
    # are not compared: what is still being written is known by its length.
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        # A rest of a block that holds no header is padding.
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


def history_keys(path: Path) -> list[str]:
    """Keys of a run's history, one a value; W&B's own, which begin with a line below, left out."""
    return [key for row in history(path) for key in row if not key.startswith("_")]
