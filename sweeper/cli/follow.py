"""`sweeper follow`: is the run on course? Read once, for cron, or again and again in a terminal."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from sweeper.decide.course import UNKNOWN, Seen, Watch, read_prediction
from sweeper.decide.outcome import ledger_line, outcome_of, write_outcome
from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.records import to_json
from sweeper.report.answer import Sentence
from sweeper.report.follow import follow_table, hint_lines, said_of, write_follow
from sweeper.report.output import DONE, NOT_VALIDATED, Output
from sweeper.runs.log import RunLog
from sweeper.schedule import OWN


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to follow, how, and where to write; None: what the prediction says, or beside it."""

    prediction: Path
    metric: str
    run: Path
    lr: str = ""
    steps: int | None = None
    alarm: float = 0.01
    spike_steps: int | None = None
    every: float = 30.0
    measured: float | None = None
    out: Path | None = None
    ledger: Path | None = None


def follow_run(request: Request, output: Output, *, once: bool) -> int:
    """Read the run, show and write what is seen; exit code 3 off the band."""
    if not request.every > 0:
        raise ConfigError(Keyword("every"), request.every, "a positive number of seconds")
    prediction = read_prediction(request.prediction)
    watch = Watch(
        prediction, steps=request.steps, alarm=request.alarm, spike_steps=request.spike_steps
    )
    log = RunLog(metric=request.metric, place=request.run, lr=request.lr)
    if once:
        seen = _look(watch, log, ended=True)
        log.check_found()
        return _report(request, watch, seen, output)
    return _live(request, watch, log, output)


def _look(watch: Watch, log: RunLog, *, ended: bool) -> Seen:
    """Take what is new; BadInput for what cannot be followed."""
    for point in log.read(ended=ended):
        watch.update(point.step, point.loss, point.lr)
        if watch.fault:
            raise BadInput(*watch.fault)
    seen = watch.look()
    watch.seen = watch.finish() if seen.ended else seen  # what the page is drawn of
    return watch.seen


def _live(request: Request, watch: Watch, log: RunLog, output: Output) -> int:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def view(seen: Seen) -> Group:
        lines = [Text(line) for line in (said_of(seen), *hint_lines(seen))]
        return Group(follow_table(seen), *lines)

    output.tell(f"Following {request.run}; Ctrl-C ends the view, not the run")
    seen, before, drawn = watch.seen, "", -1
    terminal = output.people.is_terminal
    with Live(view(seen), console=output.people, auto_refresh=False, transient=True) as live:
        while True:
            seen = _look(watch, log, ended=False)
            if terminal:
                live.update(view(seen), refresh=True)
            elif seen.state != before:
                output.say(said_of(seen))
                output.flush()
            before = seen.state
            if seen.step != drawn:
                drawn = seen.step
                write_follow(watch, request.out or request.prediction.parent, live=not seen.ended)
            if seen.ended:
                break
            time.sleep(request.every)
    return _report(request, watch, seen, output)


def _report(request: Request, watch: Watch, seen: Seen, output: Output) -> int:
    folder = request.out or request.prediction.parent
    prediction = watch.prediction
    outcome = None
    if seen.ended and seen.state != UNKNOWN and (seen.end or request.measured):
        digest = hashlib.sha256(request.prediction.read_bytes()).hexdigest()
        outcome = outcome_of(prediction, digest, seen, request.measured)
    elif request.measured is not None:
        raise ConfigError(Keyword("measured"), request.measured, "given when the run has ended")
    output.within(folder)
    output.show(follow_table(seen))
    places = write_follow(watch, folder, live=not seen.ended)
    for event in seen.events[-10:]:
        said = f"Steps {event.step:,} to {event.until:,}: {event.kind}, {event.text}"
        output.show(Sentence(said))
    for line in hint_lines(seen):
        output.show(Sentence(line))
    output.notes(notes(watch, request))
    if outcome is not None:
        ledger = request.ledger or request.prediction.parent.parent / "predictions.md"
        places |= write_outcome(prediction, outcome, folder, ledger)
        output.say(ledger_line(prediction, outcome), detail=True)
    document = {**to_json(seen), "outcome": to_json(outcome)}
    output.end(said_of(seen), places, document)
    return NOT_VALIDATED if seen.off else DONE


def notes(watch: Watch, request: Request) -> list[str]:
    """What an answer rests on that was not checked."""
    found = []
    if watch.band.schedule == OWN:
        found.append(
            "the ladder's schedule is its script's own, and not known: the run's is taken to be "
            f"the same over its {watch.steps:,} steps"
            + ("; --lr SOURCE cannot check it" if request.lr else "")
        )
    elif not request.lr:
        found.append(
            f"the run's schedule is taken to be the ladder's, {watch.band.schedule} over "
            f"{watch.steps:,} steps; --lr SOURCE checks it"
        )
    if not watch.band.collapse.good:
        found.append(
            "the ladder's curves do not quite fall on one another: the band is as wide as that"
        )
    if watch.prediction.reasons:
        found.append(f"the prediction itself cannot say yet: {watch.prediction.reasons[0]}")
    return found
