"""`sweeper transfer --validate --dry-run`: what ladders would train, and what that would take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweeper.commands.cost import cost_record, run_time, say_command
from sweeper.commands.laws import finished
from sweeper.commands.output import Output
from sweeper.replay import replay_ladder
from sweeper.report import console as show
from sweeper.settings import Experiment, Settings
from sweeper.study import Study
from sweeper.transfer.ladder import JOINT_AXIS, LadderSize, describe_size, size_record
from sweeper.trial import Log2Hps, Trial, defaults


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The curve of a size: its values of eta (log2), how many runs it has, and those it lacks."""

    name: str
    size: LadderSize
    values: Sequence[float]
    missing: Sequence[Trial]
    cost: show.PlannedRuns

    def to_json(self, seeds: int) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "size": size_record(asdict(self.size)),
            "values_log2": list(self.values),
            "runs": seeds * len(self.values),
            "missing": len(self.missing),
            **cost_record(self.cost),
        }


def show_ladder_cost(
    experiment: Experiment, study: Study, best: Log2Hps, following: str, output: Output
) -> None:
    """Say what the ladders around `best` lack; `following` is the command that trains it."""
    settings, rule = experiment.settings, experiment.settings.transfer
    named = _named(settings.transfer.ladders(settings.ladder_base), settings.ladder_base)
    rows = [_planned(experiment, study, best, size, name) for size, name in named.items()]
    ranges = {(f"{row.values[0]:g}", f"{row.values[-1]:g}") for row in rows}
    where = "around what the law plans there"  # for each size another range
    if len(ranges) == 1:
        where = "from {} to {}".format(*ranges.pop())
    facts = (
        f"Each size: {len(rows[0].values)} values of log2 {rule.along}, {rule.step:g} apart, "
        f"{where}, {_counted(rule.seeds, 'seed')} each; a curve whose lowest point is at its end "
        f"grows there by up to {rule.extend}. {_known(settings, rows)}"
    )
    costs = [row.cost for row in rows]
    show.dry_run(output.people, "This would train", ["size", "runs"], costs, facts)
    record = {
        "study": settings.name,
        "along": rule.along,
        "seeds": rule.seeds,
        "sizes": [row.to_json(rule.seeds) for row in rows],
    }
    trial = experiment.trial(settings.base, defaults(settings.space), 0, "dry run")
    if command := say_command(settings, trial, output, at="at the base's defaults"):
        record["command"] = command
    runs, left = sum(rule.seeds * len(row.values) for row in rows), show.total_runs(costs).runs
    found = f"{left} of {_counted(runs, 'run')} are to be trained; nothing was written."
    output.end(found, {}, following)
    output.document(record)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _known(settings: Settings, rows: Sequence[Planned]) -> str:
    """How the time was found."""
    if math.isnan(show.total_runs([row.cost for row in rows]).seconds):
        return "Time: not known here."
    if settings.raw["runner"].get("command"):
        return (
            "Time: by the runs that the study has finished, as many at once; of a size that has "
            "none, a guess by the root of width^2 x depth x tokens."
        )
    return "Time: measured here."


def _named(ladders: Mapping[str, Sequence[LadderSize]], base: LadderSize) -> dict[LadderSize, str]:
    """All sizes of all ladders with their names, the base first."""
    changed = {
        size: str(size) if axis == JOINT_AXIS else describe_size(size, axis)
        for axis, sizes in ladders.items()
        for size in sizes
    }
    first = next(iter(ladders))
    return {base: f"{describe_size(base, first)} (base)"} | {
        size: name for size, name in changed.items() if size != base
    }


def _planned(
    experiment: Experiment, study: Study, best: Log2Hps, size: LadderSize, name: str
) -> Planned:
    """What the study holds and lacks of a size's curve."""
    settings, along = experiment.settings, experiment.settings.transfer.along
    (curve,), _, missing = replay_ladder(experiment, best, [size], finished(study))
    values = {*curve.losses, *(trial.log2_hps[along] for trial in missing)}
    flops, seconds, count = math.nan, 0.0, len(missing)
    if settings.runner.parameters(spec := experiment.spec(size)) is not None:
        flops = count * (settings.runner.flops(spec) or math.nan)
    if missing:
        seconds = count * run_time(experiment, size, study.results())[1]
    cost = show.PlannedRuns(name=name, runs=count, flops=flops, seconds=seconds)
    return Planned(name=name, size=size, values=sorted(values), missing=missing, cost=cost)
