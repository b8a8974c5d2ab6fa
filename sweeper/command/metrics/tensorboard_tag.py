"""A tag in TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
        return Files(folder, self.files, scalars(self.name), others=others)

    def names(self, path: Path) -> list[str]:
        """The tags of a file."""
        return tags(path)


def scalars(tag: str) -> Callable[[Path], Callable[[], Iterator[Reading]]]:
    """Scalars of a tag in TensorBoard's event files."""

    def scan(path: Path) -> Callable[[], Iterator[Reading]]:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        loader = EventFileLoader(str(path))

        def readings() -> Iterator[Reading]:
            for event in loader.Load():
                for value in event.summary.value:
                    # A tensor, since the loader turns the simple values of older writers into
                    # tensors.
                    if value.tag == tag and value.HasField("tensor") and value.tensor.float_val:
                        yield Reading(event.step, float(value.tensor.float_val[0]))

        return readings

    return scan


def hparams(path: Path) -> dict[str, Any]:
    """Hyperparameters in an event file, as the HParams plugin of TensorBoard keeps them."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found: dict[str, Any] = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag == "_hparams_/session_start_info":
                data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                for name, one in data.session_start_info.hparams.items():
                    found[name] = getattr(one, one.WhichOneof("kind") or "null_value")
    return found


def tags(path: Path) -> list[str]:
    """Tags of an event file, one a value."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        value.tag for event in EventFileLoader(str(path)).Load() for value in event.summary.value
    ]
