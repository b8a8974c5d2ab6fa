"""Is a run on the course that was predicted? Read once, for cron, or until it ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.evidence.flags import columns_text
from sweeper.evidence.follow.decision import Seen, Watch
from sweeper.evidence.follow.reading import Expected, read_prediction
from sweeper.evidence.follow.request import FollowRequest
from sweeper.evidence.predict.earlier import expectation
from sweeper.evidence.runs.curves import earlier_runs
from sweeper.evidence.runs.log import RunLog
from sweeper.files import RECORD_ERRORS, parse_record, read_bounded
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import Outcome, VerbAnswer

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds between two looks: after news, and where there were none for long."""


@dataclass(frozen=True, kw_only=True)
class FollowAnswer(VerbAnswer):
    """What is `seen` of a run, which `watch` has with its losses."""

    watch: Watch
    seen: Seen
    folder: Path


def follow(request: FollowRequest, watcher: Watcher) -> FollowAnswer:
    """Read the run, once or until it ends."""
    expected = _expected(request)
    watch = Watch(expected, steps=request.steps, alarm=request.alarm)
    log = RunLog(metric=request.metric, place=request.run, lr=request.lr)
    # The page goes beside the prediction, or beside the run.
    beside = request.run / "log" if request.run.is_dir() else request.run
    if _is_prediction(request.prediction):
        beside = Path(request.prediction)
    folder = beside.parent

    def answer(seen: Seen) -> FollowAnswer:
        outcome = Outcome.NOT_VALIDATED if seen.off else Outcome.DONE
        return FollowAnswer(outcome=outcome, watch=watch, seen=seen, folder=folder)

    if request.once:
        # Looked at once, a last line without an end counts as well: there is no later look.
        seen = _look(watch, log, ended=True)
        log.check_found()
        return answer(seen)
    watcher.tell(f"Following {request.run}; Ctrl-C ends the view, not the run")
    before, wait = None, FIRST_WAIT  # type: Seen | None, float
    while True:
        seen = _look(watch, log, ended=False)
        # A run logs less often than it is looked at.
        if before is None or (seen.step, seen.state) != (before.step, before.state):
            watcher.look(answer(seen), news=before is None or seen.state != before.state)
            wait = FIRST_WAIT
        if seen.ended:
            return answer(seen)
        before = seen
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


def _expected(request: FollowRequest) -> Expected:
    source = request.prediction
    if isinstance(source, str) and not source.strip():
        raise ConfigError(Keyword("prediction"), source, "a file, a folder or a study")
    if _is_prediction(source):
        for name in ("columns", "where"):
            if value := getattr(request, name):
                raise ConfigError(Keyword(name), value, "given with a table of earlier runs")
        return read_prediction(source)
    columns, root = columns_text(request.columns), Path(request.root or DEFAULT_ROOT)
    runs = earlier_runs(source, request.metric, columns=columns, where=request.where, root=root)
    name = str(source) if isinstance(source, str | Path) else "a table in memory"
    return expectation(runs, name, request.steps)


def _is_prediction(source: Any) -> bool:
    if not isinstance(source, str | Path) or Path(source).suffix != ".json":
        return False
    try:
        record = parse_record(read_bounded(Path(source)))
    except (OSError, *RECORD_ERRORS):
        return True  # what reads it says what is wrong
    return isinstance(record, Mapping) and "band" in record


def _look(watch: Watch, log: RunLog, *, ended: bool) -> Seen:
    for point in log.read(ended=ended):
        watch.update(point.step, point.loss, point.lr)
        if point.lr is None and point.lr_there is not None:
            watch.rate(point.step, point.lr_there)
        if watch.readings.trouble:
            raise BadInput(*watch.readings.trouble)
    watch.silent = log.silent is not None
    watch.seen = watch.look(whole=watch.readings.ended)  # what the page is drawn of
    return watch.seen
