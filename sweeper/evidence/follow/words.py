"""What is said of a run that is followed, in sentences and in a table."""

from __future__ import annotations

import math

from sweeper.evidence.follow.decision import DIVERGED, ON, RATE, SILENT, Seen, Watch
from sweeper.evidence.predict.decision import UNDECIDED
from sweeper.schedule import OWN
from sweeper.stats.estimate import Estimate
from sweeper.table import Cell, Column, Table


def unchecked(watch: Watch) -> list[str]:
    """What an answer rests on that was not checked."""
    taken = f"to be the ladder's, {watch.band.schedule}"
    if watch.band.schedule == OWN:
        taken = "the same: the ladder's is its script's own, and not known"
    notes = [f"the run's schedule over its {watch.steps:,} steps is taken {taken}"]
    reasons = watch.prediction.reasons[:1]
    return [*notes, *(f"the prediction itself cannot say yet: {reason}" for reason in reasons)]


def said_of(seen: Seen) -> str:
    """The answer in a sentence or two."""
    where = f"step {seen.step:,} of {seen.steps:,}"
    since = f" since about step {seen.since:,}" if seen.since is not None else ""
    match seen.state:
        case "not enough yet":
            return f"Not enough yet at {where}: the test begins behind the warm-up."
        case "on the band":
            unsaid = ", which the prediction itself cannot be sure of yet" * bool(seen.reasons)
            head = f"On the band at {where}{unsaid}."
        case "above" | "below":
            now = f"{100 * abs(seen.gap):.1f} % {'above' if seen.gap > 0 else 'below'} its middle"
            head = f"{seen.state.capitalize()} the band{since}, now {now} at {where}."
        case "diverged":
            return f"Diverged{since}."
        case "no loss":
            return f"No loss since step {seen.since:,}, though the log goes on."
        case "rate jumped":
            jump = next(event.text for event in seen.events if event.kind == RATE)
            head = f"Off the ladder{since}: {jump}, at {where}."
        case _:
            return f"Cannot say at {where}."
    return f"{head} {_end(seen)}"


def _loss(of: Estimate) -> str:
    return f"{of.value:.4f} ({of.low:.4f} to {of.high:.4f})"


def _end(seen: Seen) -> str:
    predicted = f"predicted {_loss(seen.predicted)}"
    if seen.end is None:
        text = f"Forecast of {seen.end_is}: {_loss(seen.forecast)}; {predicted}"
    else:
        is_inside = seen.predicted.low <= seen.end <= seen.predicted.high
        beside = f"{predicted}, {'which holds it' if is_inside else 'which it misses'}"
        mean = f"The mean of its last {seen.averaged:,} losses is {seen.end:.4f} (the last one "
        mean += f"{seen.last:.4f})"
        text = f"Its last loss is {seen.end:.4f}" if seen.averaged == 1 else mean
        text = f"{text}; {beside}"
    compute = compute_text(seen)
    return f"{text}; {compute}." if compute else f"{text}."


def compute_text(seen: Seen) -> str:
    """What the end is worth in compute, with its interval before the end; a bound as a bound."""
    value, low, high = seen.compute.value, seen.compute.low, seen.compute.high
    if not math.isfinite(value):
        return ""  # earlier runs have no law
    least, most = seen.reach
    if value >= most or value <= least:
        bound = "at least" if value >= most else "at most"
        return f"that is worth {bound} {value:.2g} times the run's compute"
    ends = (
        "at most " * (low <= least) + f"{low:.2g}",
        "at least " * (high >= most) + f"{high:.2g}",
    )
    within = f" ({ends[0]} to {ends[1]})" if high > low else ""
    # Whether it is more or less than the run's is open there: no word says either.
    if low < 1 < high:
        return f"in compute that is {value:.2g} times the run's{within}"
    return f"that is worth {value:.2g} times the run's compute{within}"


def code_of(seen: Seen) -> str:
    """Where the run is, as the answer to whether it holds its course."""
    if seen.state == ON and seen.reasons:
        return UNDECIDED  # to be where nothing was said is no course
    return "fails" if seen.off else "holds" if seen.state == ON else seen.state


def follow_table(seen: Seen) -> Table:
    """Where the run stands, a row a fact."""
    # The answer says what the end is worth, too: what it stands beside is the first to go.
    worth = Column("worth", left=True)
    table = Table("", [Column("", left=True), Column("loss", left=True), worth])
    predicted, forecast = (Cell(of.value, _loss(of)) for of in (seen.predicted, seen.forecast))
    table.add(f"predicted, {seen.end_is}", predicted, "")
    if seen.state in (DIVERGED, SILENT):
        why = "it diverged" if seen.state == DIVERGED else "there is no loss"
        table.add(f"forecast, {seen.end_is}", f"none: {why}", "")
    elif seen.end is None:
        table.add(f"forecast, {seen.end_is}", forecast, compute_text(seen))
    else:
        table.add(f"measured, {seen.end_is}", Cell(seen.end, f"{seen.end:.4f}"), compute_text(seen))
    # By the sum itself, and not by the state, which may be of something that is worse or surer.
    reached = "reached" if seen.evidence >= seen.alarm_at else "not reached"
    text = f"{seen.evidence:.1f}; its alarm at {seen.alarm_at:.1f}: {reached}"
    table.add("highest CUSUM", Cell(seen.evidence, text), "")
    return table


def events_table(seen: Seen) -> Table:
    """The last events."""
    table = Table(
        "Events", [Column("steps", left=True), Column("event", left=True), Column("", left=True)]
    )
    for event in reversed(seen.events):
        steps = f"{event.step:,}"
        steps += f" to {event.until:,}" if event.until != event.step else ""
        table.add(steps, event.kind, event.text)
    return table
