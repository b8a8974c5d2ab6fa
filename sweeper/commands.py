"""What the verbs do: words in, tables and files out; each returns its exit code."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from sweeper.config import Tree, compose_tree, parse, read_tree, to_yaml
from sweeper.errors import BadInput, ConfigError, SweeperError
from sweeper.files import private_folder, read_json, write_atomically, write_json
from sweeper.lock import StudyLock, holder
from sweeper.report import console as show
from sweeper.report.page import write_report
from sweeper.report.plots import learning_rate_figure, save
from sweeper.report.progress import SweepProgress, duration
from sweeper.report.provenance import provenance
from sweeper.search.strategy import Conclusion
from sweeper.settings import Bench, Settings, resolve
from sweeper.study import Study, check_name, latest, redact
from sweeper.sweep import Sweep, replay_search
from sweeper.training.pack import Pack
from sweeper.training.packing import choose_size
from sweeper.training.recipe import prepare
from sweeper.transfer.ladder import Size, SizeCurve
from sweeper.transfer.plan import TransferPlan, make_plan
from sweeper.transfer.verdict import Verdict, judge
from sweeper.trial import Trial, encode

DONE, FAILED, NOT_PROVEN = 0, 1, 3
"""Exit codes beside 2 (bad input) and 130 (interrupted)."""


@dataclass(frozen=True)
class Output:
    """Where things go: tables and sentences to `people`, one JSON document to stdout if asked."""

    people: Console
    json: bool = False

    def document(self, value: object) -> None:
        """Print the command's one JSON document, under `--json`."""
        if self.json:
            print(json.dumps(encode(value), indent=2))


def search(
    words: Sequence[str], config_dir: Path | None, output: Output, *, dry_run: bool = False
) -> int:
    """Search at the base size; continue whatever the study already holds."""
    settings = resolve(compose_tree(words, config_dir))
    if dry_run:
        return _dry_run(settings, output)
    bench = open_bench(settings)
    bench.recipe(settings.base)
    with StudyLock(settings.folder):
        with Study.open(settings.folder, settings.storage) as study:
            write_atomically(settings.folder / "config.yaml", _kept_config(settings))
            found = _run_search(bench, study, output)
            _tell(output, study.notices)
        write_report(settings.folder)
    show.conclusion(output.people, found, settings.space)
    _next_step(settings, found, output)
    output.document(_search_record(settings, found, finished=True))
    return DONE if math.isfinite(found.objective) else FAILED


def open_bench(settings: Settings, cache: Path | None = None) -> Bench:
    """Prepare the corpus; BadInput when it cannot serve the training."""
    corpus = settings.source.prepare(cache or settings.cache)
    train = settings.raw["train"]
    corpus.check(train["batch_size"], train["seq_len"])
    return Bench(settings=settings, corpus=corpus, precision=settings.launcher.precision())


def _kept_config(settings: Settings) -> str:
    """The resolved configuration as it is kept: under the study's name, without a password."""
    tree: Tree = dict(settings.raw)
    storage = None if settings.storage is None else redact(settings.storage)
    tree["study"] = {"name": settings.name, "storage": storage}
    return to_yaml(tree)


def _run_search(bench: Bench, study: Study, output: Output) -> Conclusion:
    settings = bench.settings
    planned = sum(phase.runs for phase in settings.search.plan(settings.space))
    record = settings.folder / "search.json"

    def after_batch(found: Conclusion, finished: bool) -> None:
        write_json(record, _search_record(settings, found, finished=finished))

    with _progress(settings, output, "search", planned) as monitor:
        return Sweep(bench, study, settings.launcher, monitor, settings.logger).search(after_batch)


def _progress(settings: Settings, output: Output, job: str, planned: int) -> SweepProgress:
    def cost(trial: Trial) -> float:
        return prepare(trial.setup).flops()

    return SweepProgress(settings.folder, output.people, job, planned=planned, cost=cost)


def _search_record(settings: Settings, found: Conclusion, *, finished: bool) -> dict[str, Any]:
    """The content of `search.json`."""
    record = asdict(found)
    combination = record["combination"]
    if found.combination is not None:
        combination["finding"] = found.combination.finding
    return {
        "study": settings.name,
        "parameterization": settings.raw["parameterization"]["_target_"],
        "search": settings.raw["search"]["_target_"],
        "finished": finished,
        "base": asdict(settings.base),
        "space": {name: asdict(axis) for name, axis in settings.space.items()},
        "best": {name: 2.0**value for name, value in found.best.items()},
        "best_log2": dict(found.best),
        **{key: value for key, value in record.items() if key != "best"},
        "provenance": provenance(),
    }


def _next_step(settings: Settings, found: Conclusion, output: Output) -> None:
    """The command that comes after a search."""
    people = output.people
    if not math.isfinite(found.objective):
        people.print("Every trial diverged or failed: lower parameterization.space.eta.")
        return
    width = settings.base.width * 4
    root = "" if str(settings.root) == "runs" else f" root={settings.root}"
    command = f"sweeper transfer --study {settings.name} --to-width {width} --validate{root}"
    people.print(f"Report: {settings.folder / 'report.html'}", highlight=False, soft_wrap=True)
    people.print(f"Next: {command}", highlight=False, soft_wrap=True)


def _tell(output: Output, notices: Sequence[str]) -> None:
    for notice in notices:
        output.people.print(f"Note: {notice}", highlight=False, markup=False, soft_wrap=True)


def _dry_run(settings: Settings, output: Output) -> int:
    """What a search would run; the corpus goes to a folder that is removed again."""
    with tempfile.TemporaryDirectory() as temporary:
        bench = open_bench(settings, Path(temporary))
        recipe, phases = bench.recipe(settings.base), settings.search.plan(settings.space)
        hps = {name: axis.default for name, axis in settings.space.items()}
        trials = tuple(bench.trial(settings.base, hps, seed, "dry run") for seed in range(16))
        pack, seconds = choose_size(Pack(trials=trials, corpus=bench.corpus), "cpu")
    seconds *= recipe.train.steps
    flops = recipe.flops()
    facts = (
        f"{recipe.parameters():,} parameters a trial, {recipe.train.steps} steps; trials share "
        f"points, so fewer may be trained. Time: measured here, {pack} trials a pack."
    )
    show.dry_run(output.people, phases, flops, seconds, facts)
    rows = [
        {"phase": p.name, "trials": p.runs, "flops": p.runs * flops, "seconds": p.runs * seconds}
        for p in phases
    ]
    output.document({"study": settings.name, "phases": rows, "pack": pack})
    return DONE


def find_study(name: str | None, root: Path) -> str:
    """`name` if that study exists, else the latest; BadInput when there is none."""
    if name is not None:
        if not (root / check_name(name) / "config.yaml").is_file():
            raise BadInput(f"there is no study {name!r} in {root}; `sweeper status` lists them")
        return name
    found = latest(root)
    if found is None:
        raise BadInput(f"there is no study in {root} yet: run `sweeper search` first")
    return found


def split_root(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The root folder that the overrides give (default runs), and the other overrides."""
    root, others = "runs", []
    for word, override in zip(words, parse(words), strict=True):
        if override.key_or_group == "root":
            root = str(override.value())
        else:
            others.append(word)
    return Path(root).expanduser(), others


def load_study(name: str | None, words: Sequence[str], config_dir: Path | None) -> Settings:
    """A study's settings with overrides on top; BadInput for what a study cannot change."""
    root, others = split_root(words)
    found = find_study(name, root)
    for override in parse(others):
        key = str(override.key_or_group)
        if key.split(".")[0] == "parameterization" or key in ("study", "study.name"):
            raise BadInput(
                f"{key} belongs to the study {found!r}: search anew, or choose one with --study"
            )
    tree = read_tree(root / found / "config.yaml", others, config_dir)
    tree["root"] = str(root)
    tree["study"]["name"] = found
    return resolve(tree)


@dataclass(frozen=True, kw_only=True)
class Target:
    """What `sweeper transfer` is asked for."""

    width: int
    depth: int | None = None
    validate: bool = False
    strict: bool = False


def transfer(
    study_name: str | None,
    target: Target,
    words: Sequence[str],
    config_dir: Path | None,
    output: Output,
) -> int:
    """The plan for the target from the study's optimum and, if asked, the proof that it holds."""
    settings = load_study(study_name, words, config_dir)
    size = Size(width=target.width, depth=target.depth or settings.base.depth)
    bench = open_bench(settings)
    found = _optimum(bench, output)
    plan = _plan(bench, size, found)
    folder = settings.folder / "transfer" / f"w{size.width}-d{size.depth}"
    private_folder(folder)
    write_json(folder / "plan.json", plan.to_json())
    show.plan(output.people, plan)
    verdicts: list[Verdict] = []
    if target.validate:
        with_depth = size.depth != settings.base.depth or bool(settings.transfer.depths)
        verdicts = _validate(bench, found, folder, output, with_depth=with_depth)
    write_report(settings.folder)
    output.people.print(f"Plan: {folder / 'plan.json'}", highlight=False, soft_wrap=True)
    output.people.print(
        f"Report: {settings.folder / 'report.html'}", highlight=False, soft_wrap=True
    )
    answers = [verdict.to_json() for verdict in verdicts] if verdicts else None
    output.document({"study": settings.name, "plan": plan.to_json(), "verdicts": answers})
    proven = all(verdict.answer == "holds" for verdict in verdicts)
    return NOT_PROVEN if target.strict and not proven else DONE


def _optimum(bench: Bench, output: Output) -> Conclusion:
    """The study's conclusion; BadInput when it has no trial of this configuration."""
    settings = bench.settings
    study = Study.read(settings.folder)
    history, missing = replay_search(bench, study.get)
    if not history.results:
        raise BadInput(
            f"the study {settings.name!r} has no finished trial of this configuration: "
            f"run `sweeper search study={settings.name}` with it first"
        )
    if missing:
        output.people.print(
            f"Note: the search is not finished; this is its best of {len(history.results)} trials.",
            highlight=False,
        )
    found = settings.search.conclude(settings.space, history)
    if not math.isfinite(found.objective):
        raise SweeperError(f"every trial of {settings.name!r} diverged: there is no optimum")
    return found


def _plan(bench: Bench, size: Size, found: Conclusion) -> TransferPlan:
    settings = bench.settings
    try:
        recipe = bench.recipe(size)
    except ConfigError as error:
        flag = {"model.width": "--to-width", "model.depth": "--to-depth"}.get(error.key)
        raise BadInput(f"{flag} {error.value}: {error.allowed}") if flag else error from error
    source = {
        "study": settings.name,
        "search": settings.raw["search"]["_target_"],
        "objective": found.objective,
        "runs": found.runs,
        "seeds": found.seeds,
        "data": bench.corpus.identity(),
        **provenance(),
    }
    hps = {name: 2.0**value for name, value in found.best.items()}
    return make_plan(recipe, settings.base, size, hps, source)


def _validate(
    bench: Bench, found: Conclusion, folder: Path, output: Output, *, with_depth: bool
) -> list[Verdict]:
    """Train the ladders and judge them."""
    settings, rule = bench.settings, bench.settings.transfer
    ladders = rule.ladders(settings.base, depth=with_depth)
    sizes = sorted({size for ladder in ladders.values() for size in ladder})
    with StudyLock(settings.folder), _reopen(settings) as study:
        planned = len(sizes) * rule.points_per_line() * rule.seeds
        with _progress(settings, output, "validate", planned) as monitor:
            sweep = Sweep(bench, study, settings.launcher, monitor, settings.logger)
            curves = {c.size: c for c in sweep.ladder(found.best, sizes)}
        _tell(output, study.notices)
    eta = found.best["eta"]
    verdicts = [
        judge(axis, [curves[size] for size in ladder], eta, settings.base, rule)
        for axis, ladder in ladders.items()
    ]
    record = _validation_record(eta, verdicts, list(curves.values()))
    write_json(folder / "validation.json", record)
    for verdict in verdicts:
        save(learning_rate_figure(encode(record), verdict.axis), folder / f"curves-{verdict.axis}")
        show.verdict(output.people, verdict)
        picture = folder / f"curves-{verdict.axis}.png"
        output.people.print(f"Curves: {picture}", highlight=False, soft_wrap=True)
    return verdicts


def _reopen(settings: Settings) -> Study:
    """The study for writing; BadInput when its storage's password was not kept."""
    if settings.storage is not None and "***" in settings.storage:
        raise BadInput(
            "the storage's password is not kept: give study.storage=... again "
            f"(it was {settings.storage})"
        )
    return Study.open(settings.folder, settings.storage)


def _validation_record(
    eta: float, verdicts: Sequence[Verdict], curves: Sequence[SizeCurve]
) -> dict[str, Any]:
    """The content of `validation.json`."""
    return {
        "transferred_log2_eta": eta,
        "axes": [verdict.to_json() for verdict in verdicts],
        "curves": [
            {
                **asdict(curve.size),
                "points": [
                    {"log2_eta": value, "losses": list(losses)}
                    for value, losses in sorted(curve.losses.items())
                ],
            }
            for curve in curves
        ],
    }


def status(name: str | None, words: Sequence[str], output: Output, *, watch: bool = False) -> int:
    """Where a study stands; with `watch`, until its driver ends."""
    root, _ = split_root(words)
    found = find_study(name, root)
    while True:
        state = study_state(root / found)
        if watch:
            output.people.clear()
        _show_state(found, state, output.people)
        if not watch or state["driver"] is None:
            break
        time.sleep(2)
    others = sorted(p.parent.name for p in root.glob("*/config.yaml") if p.parent.name != found)
    if others and name is None:
        output.people.print(f"Other studies: {', '.join(others)}", highlight=False)
    output.document({"study": found, **state})
    return DONE


def study_state(folder: Path) -> dict[str, Any]:
    """Trials by status, the live driver, and the last progress, of one study."""
    results = Study.read(folder).results()
    driver = holder(folder)
    return {
        "folder": str(folder),
        "trials": dict(Counter(result.status for result in results)),
        "phases": dict(Counter(result.trial.phase for result in results)),
        "best": min((r.objective for r in results if r.objective == r.objective), default=math.inf),
        "driver": None if driver is None else str(driver),
        "progress": _try_json(folder / "progress.json"),
        "search_finished": bool((_try_json(folder / "search.json") or {}).get("finished")),
    }


def _try_json(path: Path) -> dict[str, Any] | None:
    """A JSON object that may not be there yet."""
    try:
        found = read_json(path)
    except (OSError, ValueError, BadInput):
        return None
    return found if isinstance(found, dict) else None


def _show_state(name: str, state: dict[str, Any], people: Console) -> None:
    say: Callable[[str], None] = lambda text: people.print(text, highlight=False, markup=False)  # noqa: E731
    say(f"Study {name}: {show.counts(state['trials'])}")
    for phase, count in state["phases"].items():
        say(f"  {phase}: {count} trials")
    if math.isfinite(state["best"]):
        say(f"Best training loss: {state['best']:.4f} nats")
    progress = state["progress"]
    if state["driver"] is None:
        say(f"No driver is running; the search is {_finished(state)}.")
    elif progress is not None:
        left = progress.get("left")
        words = "" if left is None else f", about {duration(float(left))} left"
        count = f"{progress['done']}/{progress['total']} trials"
        say(f"Running ({state['driver']}): {progress['job']}: {progress['phase']}: {count}{words}")
    else:
        say(f"Running ({state['driver']}): starting")


def _finished(state: dict[str, Any]) -> str:
    if state["search_finished"]:
        return "finished"
    return "not finished: run the same `sweeper search` command again to go on"


def report(name: str | None, words: Sequence[str], output: Output) -> int:
    """Write the study's page anew."""
    root, _ = split_root(words)
    path = write_report(root / find_study(name, root))
    output.people.print(f"Report: {path}", highlight=False, soft_wrap=True)
    output.document({"study": path.parent.name, "report": str(path)})
    return DONE
