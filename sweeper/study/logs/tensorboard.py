"""TensorBoard: a folder of event files a trial, a mirror of the study's record."""

from __future__ import annotations

import importlib.util
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.errors import ConfigError
from sweeper.study.folder import TargetFolder
from sweeper.study.logs.log import (
    Ledgers,
    axis_verdicts,
    log_folder,
    loss_curve,
    plan_line,
    result_line,
)
from sweeper.trial import Choice, Result

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """Event files in `tensorboard/PHASE/KEY` of the study's folder, with hyperparameters.

    `tensorboard/logged` says what is there: a folder without its line is written anew.
    """

    _ledgers: Ledgers = field(default_factory=Ledgers, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            need = "it needs the package tensorboard: pip install 'sweeper[tensorboard]'"
            raise ConfigError("_target_", f"{__name__}.TensorBoard", need)

    def log(self, folder: Path, result: Result) -> None:
        """The trial's curve over steps, its outcome at the last step, its hyperparameters."""
        home = log_folder(folder, "tensorboard")
        ledger = self._ledgers.at(home / "logged")
        if (line := result_line(result)) in ledger:
            return
        trial = result.trial
        hps = dict(trial.values) | {"width": trial.width, "depth": trial.depth, "seed": trial.seed}
        scalars = [(step, {"loss": loss}) for step, loss in loss_curve(result)]
        last = {"objective": result.objective, "heldout": result.heldout, "seconds": result.seconds}
        last |= {} if result.accuracy is None else {"accuracy": result.accuracy}
        scalars.append((result.steps, last))
        # TensorBoard joins all event files of a folder into one run: an older outcome must go. By
        # any phase: a trial that two phases share keeps the phase that trained it last.
        for old in home.glob(f"*/{trial.key}"):
            shutil.rmtree(old)
        texts = {"status": result.status, **({"error": result.error} if result.error else {})}
        place = home / (trial.phase or "trial") / trial.key
        _write(place, result.finished_at, hps, scalars, texts)
        # Last: after a kill before it the whole folder is written anew.
        ledger.add(line)

    def plan(self, folder: Path, target: Path) -> None:
        """The plan, and the verdict when there is one, as texts."""
        home = log_folder(folder, "tensorboard")
        ledger = self._ledgers.at(home / "logged")
        if (line := plan_line(target)) in ledger:
            return
        place = home / "plan" / target.name
        shutil.rmtree(place, ignore_errors=True)
        texts = {f"transfer over {axis}": answer for axis, answer in axis_verdicts(target).items()}
        plan = TargetFolder(target).plan
        rows = plan.read_text().splitlines()
        texts["plan"] = "\n".join(f"    {row}" for row in rows)  # as code, to Markdown
        _write(place, plan.stat().st_mtime, {}, [], texts)
        ledger.add(line)


def _write(
    place: Path,
    when: float,
    hps: Mapping[str, Choice],
    scalars: list[tuple[int, dict[str, float]]],
    texts: Mapping[str, str],
) -> None:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(place))
    try:
        if hps:
            _add(writer, _hyperparameters(hps, when), when, 0)
        for step, values in scalars:
            _add(writer, _scalars(values), when, step)
        for name, text in texts.items():
            _add(writer, _text(name, text), when, 0)
    finally:
        writer.close()


def _add(writer: EventFileWriter, summary: Any, when: float, step: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    writer.add_event(Event(wall_time=when, step=step, summary=summary))


def _scalars(values: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    finite = {name: value for name, value in values.items() if not math.isnan(value)}
    return Summary(value=[Summary.Value(tag=t, simple_value=v) for t, v in finite.items()])


def _hyperparameters(hps: Mapping[str, Choice], when: float) -> Any:
    """A summary of the run's hyperparameters, as TensorBoard's HParams plugin reads it."""
    from google.protobuf.struct_pb2 import Value
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    def value(of: Choice) -> Any:
        return Value(string_value=of) if isinstance(of, str) else Value(number_value=of)

    values = {name: value(of) for name, of in hps.items()}
    start = plugin_data_pb2.SessionStartInfo(hparams=values, start_time_secs=when)
    content = plugin_data_pb2.HParamsPluginData(session_start_info=start)
    about = metadata.create_summary_metadata(content)
    # The plugin reads the metadata alone; no summary goes without a tensor.
    tag = metadata.SESSION_START_INFO_TAG
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)])


def _text(name: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
    about = create_summary_metadata(display_name=name, description="")
    # As torch's SummaryWriter names texts.
    tag = f"{name}/text_summary"
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=tensor)])
