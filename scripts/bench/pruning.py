"""What early stopping saves, and whether it ever loses what a search rests on.

    python scripts/bench/pruning.py record FOLDER OUT   trains small searches, some ten minutes
    python scripts/bench/pruning.py replay [RECORDING]  replays the pruners, prints a table

The recording is tests/search/data/sweeps.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from sweeper.records import to_json
from sweeper.search.independent import IndependentSearch
from sweeper.search.line_search import LearningRateLine
from sweeper.search.optuna.enqueue import UNTRAINED
from sweeper.search.prune import Pruner, RungLosses, losses_at
from sweeper.search.strategy import Conclusion, History, Strategy
from sweeper.stats.line import LineRule
from sweeper.study.study import StudyRecord
from sweeper.trial import Axis, Result, Space, Trial, hps_key

RECORDING = Path(__file__).parents[2] / "tests/search/data/sweeps.json"
STRETCHES = 50
"""Points of a recorded curve."""

LINE = "search=lr search.line.step=0.5 search.line.points=17 search.line.extend=0"
MUP = f"{LINE} parameterization.space.eta.low=-12 parameterization.space.eta.high=-4"
UMUP = f"{LINE} parameterization.space.eta.low=-3 parameterization.space.eta.high=5"
COMMON = "runner.device=cpu train.batch_size=4 train.seq_len=32"
SEARCHES = {
    "line-umup-w32-s200": f"parameterization=umup {UMUP} model.width=32 train.steps=200"
    " search.seeds=2",
    "line-mup-w32-s200": f"parameterization=mup {MUP} model.width=32 train.steps=200"
    " search.seeds=2",
    "line-standard-w32-s400": f"parameterization=standard {MUP} model.width=32 train.steps=400"
    " search.seeds=2",
    "line-standard-w64-s200": f"parameterization=standard {MUP} model.width=64 train.steps=200"
    " search.seeds=2",
    "line-umup-w64-s400": f"parameterization=umup {UMUP} model.width=64 train.steps=400",
    "line-mup-w64-s200": f"parameterization=mup {MUP} model.width=64 train.steps=200"
    " search.seeds=2",
    "line-umup-w32-s400-warm": f"parameterization=umup {UMUP} model.width=32 train.steps=400"
    " train.warmup=0.3 train.final_lr=0",
    "line-mup-w32-s400": f"parameterization=mup {MUP} model.width=32 train.steps=400",
    "line-mup-mlp-s200": f"parameterization=mup model=mlp data=digits {MUP} model.width=32"
    " train.steps=200 train.batch_size=16 search.seeds=2",
    "independent-umup-w32-s200": "parameterization=umup search=independent search.runs=50"
    " search.seeds=1 model.width=32 train.steps=200",
    "random-umup-w32-s200": "parameterization=umup search=random search.runs=60 model.width=32"
    " train.steps=200",
    "random-mup-w32-s200": "parameterization=mup search=random search.runs=60 model.width=32"
    " train.steps=200",
}
"""Searches, by name (its first word says what is checked): overrides beside COMMON."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A search that was trained without early stopping."""

    name: str
    steps: int
    warmup: int
    window: int
    results: tuple[Result, ...]

    @property
    def kind(self) -> str:
        """What was searched: line, independent or random."""
        return self.name.split("-")[0]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a pruner did: the keys it stopped, and the share of all steps that was not trained."""

    stopped: frozenset[str]
    saved: float


def replay(sweep: Sweep, kind: Any, batch: int, order: Sequence[Result], **rule: Any) -> Replay:
    """The search again in batches of `batch` trials, in `order`; each knows those before it."""
    ends = train(sweep, kind, batch, order, [], **rule)
    stopped = frozenset(key for key, end in ends.items() if end < sweep.steps)
    return Replay(stopped=stopped, saved=1 - sum(ends.values()) / (sweep.steps * len(order)))


def train(
    sweep: Sweep,
    kind: Any,
    batch: int,
    order: Sequence[Result],
    earlier: list[RungLosses],
    **rule: Any,
) -> dict[str, int]:
    """Steps that each of `order` trains, in batches of `batch`; adds their losses to `earlier`."""
    found: dict[str, int] = {}
    for start in range(0, len(order), batch):
        part, later = order[start : start + batch], order[start + batch :]
        planned = (_at_rungs(result, ()) for result in later)
        pruner = Pruner(
            kind=kind,
            steps=sweep.steps,
            warmup=sweep.warmup,
            window=sweep.window,
            others=(*earlier, *planned),
            **rule,
        )
        ends = _train(pruner, part)
        for result in part:
            losses = losses_at(result, pruner.rungs, sweep.window)
            reached = sum(rung <= ends[result.key] for rung in pruner.rungs)
            earlier.append(_at_rungs(result, losses[:reached]))
        found |= ends
    return found


def _at_rungs(result: Result, losses: tuple[float, ...]) -> RungLosses:
    return RungLosses(log2_hps=result.trial.log2_hps, seed=result.trial.seed, losses=losses)


def concluded(sweep: Sweep, kind: Any, batch: int) -> tuple[Conclusion, float] | None:
    """The whole search again, the strategy choosing its points: its conclusion, and steps saved.

    None when it asks for a trial that was not recorded, so that it went another way.
    """
    strategy, space = _strategy(sweep)
    recorded = {(hps_key(r.trial.log2_hps), r.trial.seed): r for r in sweep.results}
    history, earlier, trained, total = History(), list[RungLosses](), 0, 0
    while points := strategy.propose(space, history):
        order = [recorded.get(point.id) for point in points]
        results = [result for result in order if result is not None]
        if len(results) < len(order):
            return None
        ends = train(sweep, kind, batch, results, earlier)
        for result in results:
            stopped = ends[result.key] < sweep.steps
            history.add(replace(result, status="pruned") if stopped else result)
        trained, total = trained + sum(ends.values()), total + sweep.steps * len(results)
    return strategy.conclude(space, history), 1 - trained / total


def _strategy(sweep: Sweep) -> tuple[Strategy, Space]:
    """The strategy that could have recorded the sweep, and its space."""
    if sweep.kind == "independent":
        conf = Path(__file__).parents[2] / "conf/parameterization/umup.yaml"
        ranges = yaml.safe_load(conf.read_text())["space"]
        space = {name: Axis(**axis) for name, axis in ranges.items()}
        return IndependentSearch(runs=50, seeds=1, retune=False), space
    etas = [result.trial.log2_hps["eta"] for result in sweep.results]
    seeds = len({result.trial.seed for result in sweep.results})
    axis = Axis(low=min(etas), high=max(etas), default=(min(etas) + max(etas)) / 2)
    return LearningRateLine(line=LineRule(points=11, extend=0), seeds=seeds), {"eta": axis}


def _train(pruner: Pruner, part: Sequence[Result]) -> dict[str, int]:
    """The steps that each trial of a batch trains."""
    trials: list[Trial] = [result.trial for result in part]
    ends = {trial.key: pruner.steps for trial in trials}
    losses = {result.key: losses_at(result, pruner.rungs, pruner.window) for result in part}
    for index, rung in enumerate(pruner.rungs):
        alive = {key: losses[key][index] for key, end in ends.items() if end == pruner.steps}
        ends |= dict.fromkeys(pruner.trials_to_stop(rung, alive, trials), rung)
    return ends


def needed(sweep: Sweep, near: float = 0.0) -> set[str]:
    """Keys that the sweep's conclusion rests on.

    Of a line of one seed its optimum, the point on either side, and every point within `near` of
    it in log2. A random search rests on its best trial.
    """
    if sweep.kind == "random":
        return {min(sweep.results, key=lambda result: result.objective).key}
    found: set[str] = set()
    for name, line in lines(sweep):
        best = min(range(len(line)), key=lambda index: line[index].objective)
        middle = line[best].trial.log2_hps[name]
        found |= {
            result.key
            for index, result in enumerate(line)
            if abs(index - best) <= 1 or abs(result.trial.log2_hps[name] - middle) <= near + 1e-9
        }
    return found


def lines(sweep: Sweep) -> Iterator[tuple[str, list[Result]]]:
    """Every line of at least three trials, sorted: results equal but for one hyperparameter."""
    names = sweep.results[0].trial.log2_hps.keys()
    for name in names:
        groups: dict[Any, list[Result]] = {}
        for result in sweep.results:
            rest = {other: value for other, value in result.trial.log2_hps.items() if other != name}
            groups.setdefault((tuple(rest.items()), result.trial.seed), []).append(result)
        for group in groups.values():
            if len(group) >= 3:
                yield name, sorted(group, key=lambda result: result.trial.log2_hps[name])


def load(path: Path = RECORDING) -> list[Sweep]:
    """The sweeps of a recording."""
    return [_sweep(record) for record in json.loads(path.read_text())]


def _sweep(record: dict[str, Any]) -> Sweep:
    fields = {name: record[name] for name in ("name", "steps", "warmup", "window")}
    results = []
    for hps, seed, status, steps, objective, curve in record["trials"]:
        trial = Trial(
            spec=UNTRAINED, log2_hps=dict(zip(record["axes"], hps, strict=True)), seed=seed
        )
        results.append(
            Result(
                trial=trial,
                status=status,
                objective=float(objective),
                steps=steps,
                curve=tuple(float(loss) for loss in curve),
            )
        )
    return Sweep(results=tuple(results), **fields)


def record(folder: Path, out: Path) -> None:
    """Train SEARCHES into `folder`, where they are not there yet, and write their curves."""
    found = []
    for name, overrides in SEARCHES.items():
        command = [sys.executable, "-m", "sweeper", "search", f"root={folder}", f"study={name}"]
        subprocess.run([*command, *COMMON.split(), *overrides.split()], check=True)
        found.append(_compact(name, folder / name))
    text = ",\n".join(json.dumps(sweep, separators=(",", ":")) for sweep in found)
    out.write_text(f"[{text}]\n")


def _compact(name: str, study: Path) -> dict[str, Any]:
    """A study's results without what the replay does not need; axes never varied are left out."""
    results = StudyRecord.read(study).results()
    train = results[0].trial.spec.train
    hps = [result.trial.log2_hps for result in results]
    axes = [axis for axis in hps[0] if len({values[axis] for values in hps}) > 1]
    trials = [
        [
            [result.trial.log2_hps[axis] for axis in axes],
            result.trial.seed,
            result.status,
            result.steps,
            round(result.objective, 5),
            _coarse(result.curve),
        ]
        for result in results
    ]
    return {
        "name": name,
        "steps": train.steps,
        "warmup": round(train.warmup * train.steps),
        "window": train.window(),
        "axes": axes,
        "trials": to_json(trials),
    }


def _coarse(curve: Sequence[float]) -> list[float]:
    """The curve's means over at most STRETCHES stretches."""
    size = math.ceil(len(curve) / STRETCHES)
    return [round(mean(curve[i : i + size]), 3) for i in range(0, len(curve), size)]


def orders(sweep: Sweep, count: int) -> Iterator[list[Result]]:
    """The order in which the sweep was proposed, then random ones."""
    yield list(sweep.results)
    for seed in range(count):
        yield random.Random(seed).sample(sweep.results, len(sweep.results))


def table(sweeps: Sequence[Sweep], count: int, **rule: Any) -> None:
    """A row for every sweep, kind and batch: steps saved, and what was lost in any order."""
    print(f"{'sweep':28} {'kind':8} {'batch':>4} {'saved':>6}  orders losing: optimum±1, fit±1")
    for sweep in sweeps:
        least, fit = needed(sweep), needed(sweep, near=1.0)
        for kind in ("median", "halving"):
            for batch in (1, 4, len(sweep.results)):
                runs = [replay(sweep, kind, batch, o, **rule) for o in orders(sweep, count)]
                lost = [bool(run.stopped & least) for run in runs]
                unfit = [bool(run.stopped & fit) for run in runs]
                saved = mean(run.saved for run in runs)
                counts = f"{sum(lost)}/{len(runs)}, {sum(unfit)}/{len(runs)}"
                print(f"{sweep.name:28} {kind:8} {batch:4} {saved:6.1%}  {counts}")


def conclusions(sweeps: Sequence[Sweep]) -> None:
    """A row for every line or independent search: what it concludes, pruned and not."""
    print(f"\n{'search':28} {'kind':8} {'batch':>4} {'saved':>6}  best point, and its loss")
    for sweep in sweeps:
        whole = None if sweep.kind == "random" else concluded(sweep, "none", 1)
        if whole is None:
            continue
        for kind in ("median", "halving"):
            for batch in (1, 4, len(sweep.results)):
                found = concluded(sweep, kind, batch)
                same = found is not None and found[0].best_log2 == whole[0].best_log2
                same = same and found[0].objective == whole[0].objective
                saved = f"{found[1]:6.1%}" if found else "     -"
                print(f"{sweep.name:28} {kind:8} {batch:4} {saved}  {'same' if same else 'OTHER'}")


def main() -> None:
    """Record or replay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    recorder = verbs.add_parser("record")
    recorder.add_argument("folder", type=Path)
    recorder.add_argument("out", type=Path)
    player = verbs.add_parser("replay")
    player.add_argument("recording", type=Path, nargs="?", default=RECORDING)
    player.add_argument("--orders", type=int, default=10)
    player.add_argument("--reach", type=int)
    player.add_argument("--near", type=float)
    player.add_argument("--close", type=float)
    chosen = parser.parse_args()
    if chosen.verb == "record":
        record(chosen.folder.absolute(), chosen.out)
        return
    rule = {name: getattr(chosen, name) for name in ("reach", "near", "close")}
    table(
        load(chosen.recording),
        chosen.orders,
        **{name: value for name, value in rule.items() if value is not None},
    )
    conclusions(load(chosen.recording))


if __name__ == "__main__":
    main()
