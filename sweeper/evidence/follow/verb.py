"""Is a run on the course that was predicted? Read once, for cron, or until it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import BadInput, ConfigError, Keyword, MissingValue
from sweeper.evidence.flags import columns_text
from sweeper.evidence.follow.decision import Seen, Watch
from sweeper.evidence.follow.reading import Expected, read_prediction
from sweeper.evidence.follow.request import FollowRequest
from sweeper.evidence.predict.earlier import expectation
from sweeper.evidence.runs.curves import earlier_runs
from sweeper.evidence.runs.log import RunLog
from sweeper.study.watcher import Watcher
from sweeper.verbs.answer import Outcome, VerbAnswer


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
    beside = request.prediction or (request.run / "log" if request.run.is_dir() else request.run)
    folder = request.out or beside.parent

    def answer(seen: Seen) -> FollowAnswer:
        outcome = Outcome.NOT_VALIDATED if seen.off else Outcome.DONE
        return FollowAnswer(outcome=outcome, watch=watch, seen=seen, folder=folder)

    if request.once:
        # Looked at once, a last line without an end counts as well: there is no later look.
        seen = _look(watch, log, ended=True)
        log.check_found()
        return answer(seen)
    watcher.tell(f"Following {request.run}; Ctrl-C ends the view, not the run")
    before: Seen | None = None
    while True:
        seen = _look(watch, log, ended=False)
        # A run logs less often than it is looked at.
        if before is None or (seen.step, seen.state) != (before.step, before.state):
            watcher.look(answer(seen), news=before is None or seen.state != before.state)
        if seen.ended:
            return answer(seen)
        before = seen
        time.sleep(request.every)


def _expected(request: FollowRequest) -> Expected:
    """The prediction, or what earlier runs say: ConfigError for both, or none."""
    if request.prediction is None and request.band is None:
        raise MissingValue(Keyword("prediction"), (", or earlier runs by ", Keyword("band", ...)))
    if request.prediction is not None and request.band is not None:
        allowed = ("given without ", Keyword("band", ...), ": one of the two")
        raise ConfigError(Keyword("prediction"), str(request.prediction), allowed)
    if request.prediction is not None:
        for name in ("columns", "where"):
            if value := getattr(request, name):
                raise ConfigError(Keyword(name), value, ("given with ", Keyword("band", ...)))
        return read_prediction(request.prediction)
    columns, root = columns_text(request.columns), Path(request.root or DEFAULT_ROOT)
    runs = earlier_runs(
        request.band, request.metric, columns=columns, where=request.where, root=root
    )
    name = str(request.band) if isinstance(request.band, str | Path) else "a table in memory"
    return expectation(runs, name, request.steps)


def _look(watch: Watch, log: RunLog, *, ended: bool) -> Seen:
    """Take what is new; BadInput for what cannot be followed."""
    for point in log.read(ended=ended):
        watch.update(point.step, point.loss, point.lr)
        if point.lr is None and point.lr_there is not None:
            watch.rate(point.step, point.lr_there)
        if watch.readings.trouble:
            raise BadInput(*watch.readings.trouble)
    watch.silent = log.silent is not None
    watch.seen = watch.look(whole=watch.readings.ended)  # what the page is drawn of
    return watch.seen
