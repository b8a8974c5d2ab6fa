"""`sweeper compare`: studies ranked at equal compute, from what they have recorded."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeper.cli.next import NextCommand
from sweeper.cli.output import DONE, Output
from sweeper.cli.studies import find_study
from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.config.compose import read_tree
from sweeper.errors import BadInput, ConfigError, key_prefix
from sweeper.files import private_folder, try_json, write_json
from sweeper.records import call_checked, to_json
from sweeper.report import comparison as show
from sweeper.report.comparison import Several, write_several
from sweeper.report.cost import Cost, flops_of, spent
from sweeper.report.documents import (
    Document,
    axis_verdict,
    is_curve_of,
    ladder_curves,
    number,
    planned_value,
)
from sweeper.report.drawing import save
from sweeper.report.figures import write_picture
from sweeper.study.setup import LADDER_PHASE, trials_of
from sweeper.study.study import Study, check_folder
from sweeper.trial import Result, TrialSpec, digest
from sweeper.verdict.compare import Comparison, Ladder, compare, seeds_needed
from sweeper.verdict.ladder import LADDER_AXES, LadderRule, LadderSize, Size, SizeCurve

IMMATERIAL = ("accumulate",)
"""Settings of `train` that change how a run is computed, and not what."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A study's folder, and its ladder's widths, as its configuration says: no plugin is built."""

    folder: Path
    widths: tuple[int, ...]

    @classmethod
    def read(cls, name: str, root: Path) -> Place:
        """BadInput for no study, or one whose configuration says no widths."""
        folder = root / find_study(name, root)
        check_folder(folder)
        path = folder / "config.yaml"
        tree = read_tree(path, ())
        try:
            with key_prefix("transfer"):
                ladder: LadderRule = call_checked(LadderRule, tree.get("transfer") or {}, {})
            base = (tree.get("model") or {}).get("width")
            if not isinstance(base, int):
                raise ConfigError("model.width", base, "a whole number")
        except (ConfigError, TypeError, AttributeError) as error:
            raise BadInput(f"{path}: {error}") from error
        return cls(folder=folder, widths=(*ladder.widths, base))

    @property
    def name(self) -> str:
        """The study's."""
        return self.folder.name

    @property
    def root(self) -> Path:
        """The folder of all."""
        return self.folder.parent


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A study as it is compared: its ladder, what was trained, and what it cost."""

    place: Place
    ladder: Ladder
    spec: TrialSpec
    tuning: Cost
    validation: Cost


def named_studies(words: Sequence[str], root_flag: str | None) -> tuple[list[str], Path]:
    """The studies and the folder of all, which --root or `root=DIR` among the names may give."""
    names, root = [], Path(DEFAULT_ROOT if root_flag is None else root_flag).expanduser()
    for word in words:
        if word.startswith("root="):
            root = Path(word.removeprefix("root=")).expanduser()
        else:
            names.append(word.removeprefix("study="))
    return names, root


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Studies that were compared; `comparison` is None where they cannot be ranked: see `notes`."""

    entries: Sequence[Entry]
    validations: Mapping[str, Document]
    comparison: Comparison | None
    notes: Sequence[str]

    @property
    def parameterizations(self) -> dict[str, str]:
        """The parameterization of every study."""
        return {one.ladder.name: one.spec.parameterization.name for one in self.entries}

    @property
    def costs(self) -> dict[str, tuple[Cost, Cost]]:
        """What tuning and validation took, by study."""
        return {one.ladder.name: (one.tuning, one.validation) for one in self.entries}


def compare_studies(
    names: Sequence[str], root: Path, output: Output, *, anyway: bool, out: Path | None
) -> int:
    """Rank the studies; BadInput for too few, for such without a ladder, or not comparable."""
    if len(names) < 2:
        raise BadInput("compare takes two studies or more: sweeper compare STUDY STUDY")
    found = compared(names, root, anyway=anyway)
    if found.comparison is None:
        raise BadInput(found.notes[0])
    _report(found, found.comparison, out or comparison_folder(names, root), root, output)
    return DONE


def compared(names: Sequence[str], root: Path, *, anyway: bool) -> Compared:
    """The studies, ranked where they can be; `notes` say why not, or what differs all the same.

    BadInput for a study that is given twice, or that has no ladder over the width.
    """
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise BadInput(f"{twice[0]} is given twice: name each study once")
    places = [Place.read(name, root) for name in names]
    ladders = {place.name: _validation(place) for place in places}
    if absent := [place for place in places if not ladders[place.name]]:
        commands = ", ".join(f"`{_validate(place)}`" for place in absent)
        raise BadInput(
            f"no validated ladder over width in {' and '.join(place.name for place in absent)}: "
            f"run {commands} first"
        )
    entries = [_entry(place, ladders[place.name]) for place in places]
    notes, comparison = _differences(entries), None
    if notes and not anyway:
        unlike = f"the studies are not comparable: {'; '.join(notes)}. "
        notes = [unlike + "`sweeper compare --anyway` compares them all the same"]
    else:
        try:
            comparison = compare([entry.ladder for entry in entries])
        except ValueError as error:
            notes = [f"{error}: validate ladders whose widths meet"]
    return Compared(entries=entries, validations=ladders, comparison=comparison, notes=notes)


def _report(
    compared: Compared, comparison: Comparison, folder: Path, root: Path, output: Output
) -> None:
    """Write the record and the figure; show tables, what was found, and what to type next."""
    costs, parameterizations = compared.costs, compared.parameterizations
    record = {
        "studies": [
            {
                "study": name,
                "parameterization": parameterizations[name],
                "tuning": to_json(tuning) | {"share": tuning.flops / comparison.flops},
                "validation": to_json(validation),
            }
            for name, (tuning, validation) in costs.items()
        ],
        "differences": list(compared.notes),
        **to_json(comparison),
    }
    found = show.findings(comparison)
    next_commands = after_comparison(comparison, compared.entries)
    if not next_commands:
        why = "to see them on one page"
        next_commands = [NextCommand.of("report", *costs, root=root, why=why)]
    private_folder(folder)
    write_json(folder / "comparison.json", to_json(record))
    picture, _ = save(show.comparison_figure(comparison), folder / "comparison")
    output.notes([f"compared anyway: {note}" for note in compared.notes])
    for table in show.tables(comparison, parameterizations, costs):
        table.print(output.people)
    document = {**record, "found": found, "figure": str(picture)}
    output.end(" ".join(found), {"figure": picture}, document, *next_commands)


def _validation(place: Place) -> Document:
    """The study's newest record of curves of eta over width; empty when there is none."""
    paths = place.folder.glob("transfer/*/validation.json")
    for path in sorted(paths, key=lambda one: one.stat().st_mtime_ns, reverse=True):
        record = try_json(path)
        if axis_verdict(record, "width") and record.get("hyperparameter") == "eta":
            return record
    return {}


def _entry(place: Place, validation: Document) -> Entry:
    """What is compared of one study; BadInput where its trials are gone or of another kind."""
    try:
        curves = [_curve(one, validation) for one in ladder_curves(validation, "width")]
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{place.name}: its validation.json is damaged: run `{_validate(place)}` again"
        ) from error
    trials = trials_of(Study.read(place.folder))
    trained: dict[Size, TrialSpec] = {_size(one): one.trial.spec for one in trials.current}
    if lost := [curve.size for curve in curves if curve.size not in trained]:
        raise BadInput(f"{place.name}: the study holds no trial of its ladder's {lost[0]}")
    specs = {curve.size.width: trained[curve.size] for curve in curves}
    ladders = [one for one in trials.current if one.trial.phase == LADDER_PHASE]
    ladder = Ladder(
        name=place.name,
        curves=curves,
        transferred=planned_value(validation),
        flops={width: _flops(spec) for width, spec in specs.items()},
    )
    return Entry(
        place=place,
        ladder=ladder,
        spec=specs[max(specs)],
        tuning=spent(trials.searched, _flops),
        validation=spent(ladders, _flops),
    )


def _flops(spec: TrialSpec) -> float:
    """Of a whole run; where nobody knows, in proportion to width^2 x depth x tokens."""
    known = flops_of(spec)
    if not math.isnan(known):
        return known
    return float(
        spec.width**2 * spec.depth * spec.train.steps * spec.train.batch_size * spec.train.seq_len
    )


def _size(result: Result) -> LadderSize:
    spec = result.trial.spec
    model = Size(width=spec.width, depth=spec.depth)
    return LadderSize.of(model, spec.model.arguments, asdict(spec.train))


def _curve(curve: Document, validation: Document) -> SizeCurve:
    """A recorded curve, with what a law had planned at its size."""
    size = LadderSize(**{key: int(curve[key]) for key in LADDER_AXES if key in curve})
    judged = axis_verdict(validation, "width").get("sizes") or ()
    planned = [one.get("planned_log2", 0.0) for one in judged if is_curve_of(one["size"], curve)]
    points = curve.get("points") or ()
    losses = {number(p["log2_eta"]): tuple(map(number, p["losses"])) for p in points}
    return SizeCurve(size=size, losses=losses, planned_log2=next(iter(planned), 0.0))


def _differences(entries: Sequence[Entry]) -> list[str]:
    """What keeps the losses of two studies from being compared, a sentence for each."""
    facts = [_facts(entry.spec) for entry in entries]
    keys = dict.fromkeys(key for one in facts for key in one)
    sentences = []
    for key in keys:
        values: dict[str, list[str]] = {}
        for entry, one in zip(entries, facts, strict=True):
            values.setdefault(str(one.get(key, "none")), []).append(entry.ladder.name)
        if len(values) > 1:
            where = (f"{_short(value)} in {' and '.join(ins)}" for value, ins in values.items())
            sentences.append(f"{key} is {', '.join(where)}")
    return sentences


def _facts(spec: TrialSpec) -> dict[str, Any]:
    """What must be the same: data, model, depth and training; not how it is scaled or stepped."""
    train = {key: value for key, value in asdict(spec.train).items() if key not in IMMATERIAL}
    groups: Iterable[tuple[str, Mapping[str, Any]]] = (
        ("data", spec.data),
        ("model", spec.model.arguments),
        ("train", train),
    )
    inner = {f"{group}.{key}": value for group, values in groups for key, value in values.items()}
    runner = spec.runner.get("name", "engine")
    return {"model": spec.model.name, "model.depth": spec.depth, "runner": runner, **inner}


def _short(value: str) -> str:
    return value if len(value) <= 24 else f"{value[:12]}…"


def after_comparison(comparison: Comparison, entries: Sequence[Entry]) -> list[NextCommand]:
    """The best study's plan; with none told apart, seeds that would tell; empty where none do."""
    places = {entry.ladder.name: entry.place for entry in entries}
    leader = comparison.by_transferred[0]
    if leader.last == 1:
        width = 2 * max(w.width for c in comparison.candidates for w in c.widths)
        root, why = places[leader.name].root, "to plan with the best"
        target = ("--to-width", str(width))
        return [NextCommand.of("transfer", *target, study=leader.name, root=root, why=why)]
    seeds = seeds_needed(comparison.by_transferred, comparison.seeds)
    if seeds is None:
        return []
    tied = [rank.name for rank in comparison.by_transferred if rank.first == 1]
    return [_validate(places[name], f"transfer.seeds={seeds}") for name in tied]


def _validate(place: Place, *overrides: str) -> NextCommand:
    """The command that trains a study's ladder over width."""
    widths = place.widths
    if len(set(widths)) == 1:
        overrides = (f"transfer.widths=[{widths[0]},{2 * widths[0]},{4 * widths[0]}]", *overrides)
    return NextCommand.of(
        "transfer",
        *("--to-width", str(max(widths)), "--validate", *overrides),
        study=place.name,
        root=place.root,
        why="to tell them apart by more seeds",
    )


def comparison_folder(names: Sequence[str], root: Path) -> Path:
    """Where a comparison is written to; its name is cut to what a file system takes."""
    name = "+".join(names)
    if len(name) > 120:
        name = f"{name[:100]}+{digest(list(names))[:12]}"
    return root / "comparisons" / name


# `sweeper report A B`: several studies on one page, and the picture of their curves.


def report_several(names: Sequence[str], root: Path, picture: Path | None, output: Output) -> int:
    """Write the page of several studies; of `picture` and NAME-dark.svg, their curves alone."""
    if picture is not None:
        _check_picture(picture)
    ranked = compared(names, root, anyway=False)
    folder = comparison_folder(names, root)
    pages = {name: root / name / "report.html" for name in names}
    found = Several(
        validations=ranked.validations,
        parameterizations=ranked.parameterizations,
        costs=ranked.costs,
        pages={n: os.path.relpath(path, folder) for n, path in pages.items() if path.is_file()},
        comparison=ranked.comparison,
        notes=ranked.notes,
    )
    page = write_several(found, folder)
    places = {"report": page}
    if picture is not None:
        places["picture"], places["picture for dark pages"] = write_picture(found.panels, picture)
    answers = ", ".join(f"{name} {answer}" for name, answer in found.verdicts.items())
    sentence = f"The transfer over width: {answers}."
    if ranked.comparison is None:
        output.notes(ranked.notes)
        why = "to rank them all the same"
        next_commands = [NextCommand.of("compare", *names, "--anyway", root=root, why=why)]
    else:
        sentence += f" {show.findings(ranked.comparison)[0]}"
        next_commands = after_comparison(ranked.comparison, ranked.entries)
    document = {
        "studies": list(names),
        "report": str(page),
        "verdicts": found.verdicts,
        "ranked": ranked.comparison is not None,
        "notes": list(ranked.notes),
        "picture": None if picture is None else str(picture),
    }
    output.end(sentence, places, document, *next_commands)
    return DONE


def _check_picture(path: Path) -> None:
    """BadInput for a picture that cannot be written, before anything is."""
    if path.suffix != ".svg":
        raise ConfigError("--picture", str(path), "a file whose name ends in .svg")
    if not path.parent.is_dir():
        raise ConfigError(
            "--picture", str(path), f"there is no folder {path.parent}: make it first"
        )
