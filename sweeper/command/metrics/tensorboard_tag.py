"""A tag in TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from sweeper.command.reading import Below, Files, MetricSource, Reading


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
