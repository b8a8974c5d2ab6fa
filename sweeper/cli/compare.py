"""`sweeper compare`: studies ranked at equal compute, from what they have recorded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.decide.compare import Ladder, StudyComparison, compare, seeds_needed
from sweeper.decide.speed import speed_ups
from sweeper.decide.validation import Validation, newest_validation
from sweeper.errors import BadInput, ConfigError, Keyword, key_prefix
from sweeper.files import private_folder, write_json
from sweeper.records import as_number, call_checked, to_json
from sweeper.report import comparison as show
from sweeper.report.comparison import Several, write_several
from sweeper.report.drawing import save
from sweeper.report.figures import write_picture
from sweeper.report.index import write_index
from sweeper.report.next import NextCommand, validated_by
from sweeper.report.output import DONE, Output
from sweeper.stats.ladder import LadderRule, LadderSize, Size
from sweeper.study.cost import Cost, flops_in, spent
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import LADDER_PHASE, trials_of
from sweeper.study.study import Study, check_folder, check_not_saved, find_study, is_saved
from sweeper.trial import TrialSpec, digest

IMMATERIAL = ("accumulate",)
"""Settings of `train` that change how a run is computed, and not what."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A study as it is compared: its ladder, what was trained, and what it cost."""

    folder: Path
    validation: Validation
    ladder: Ladder
    spec: TrialSpec
    tuning: Cost
    validating: Cost
    flops_known: bool = True


def named_studies(arguments: Sequence[str], root_flag: str | None) -> tuple[list[str], Path]:
    """The studies and the folder of all, which --root or `root=DIR` among the names may give."""
    names, root = [], Path(DEFAULT_ROOT if root_flag is None else root_flag).expanduser()
    for argument in arguments:
        if argument.startswith("root="):
            root = Path(argument.removeprefix("root=")).expanduser()
        else:
            names.append(argument.removeprefix("study="))
    return names, root


@dataclass(frozen=True, kw_only=True)
class Compared(Several):
    """Studies that were compared, with what was compared of each."""

    entries: Sequence[Entry]


def compare_studies(
    names: Sequence[str],
    root: Path,
    output: Output,
    *,
    anyway: bool,
    out: Path | None,
    to_width: int | None = None,
) -> int:
    """Rank the studies; BadInput for too few, for such without a ladder, or not comparable."""
    if len(names) < 2:
        raise BadInput("compare takes two studies or more: sweeper compare STUDY STUDY")
    ranked = compared(names, root, anyway=anyway)
    comparison, costs, kinds = ranked.comparison, ranked.costs, ranked.parameterizations
    if comparison is None:
        raise BadInput(ranked.notes[0])
    # Of the best over each other one: does what wins small win large?
    ladders = {entry.ladder.name: entry.ladder for entry in ranked.entries}
    faster = speed_ups([ladders[rank.name] for rank in comparison.by_transferred], to_width)
    record = {
        "studies": [
            {
                "study": name,
                "parameterization": kinds[name],
                "tuning": to_json(tuning) | {"share": tuning.flops / comparison.flops},
                "validation": to_json(validating),
            }
            for name, (tuning, validating) in costs.items()
        ],
        "differences": list(ranked.notes),
        "speed_up": to_json(faster),
        **to_json(comparison),
    }
    next_commands = after_comparison(comparison, ranked.entries)
    if not next_commands:
        why = "to see them on one page"
        next_commands = [NextCommand.of("report", *costs, root=root, why=why)]
    folder = out or comparison_folder(names, root)
    private_folder(folder)
    write_json(folder / "comparison.json", record)
    picture, _ = save(show.comparison_figure(comparison), folder / "comparison")
    output.notes([f"compared anyway: {note}" for note in ranked.notes])
    output.within(folder)
    places, *others = show.tables(comparison, kinds, costs)
    output.show(places)
    for table in [show.speed_table(faster)] * bool(faster) + others:
        output.show(replace(table, detail=True))
    sentences = show.findings(comparison)
    document = {**record, "found": sentences, "figure": str(picture)}
    output.end(" ".join(sentences), {"figure": picture}, document, *next_commands)
    return DONE


def compared(names: Sequence[str], root: Path, *, anyway: bool) -> Compared:
    """The studies, ranked where they can be; `notes` say why not, or what differs all the same.

    BadInput for a study that is given twice, or that has no ladder over the width.
    """
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise BadInput(f"{twice[0]} is given twice: name each study once")
    folders = [root / find_study(name, root) for name in names]
    validations = {folder: _validation(folder) for folder in folders}
    if saved := [f.name for f, found in validations.items() if found is None and is_saved(f)]:
        raise BadInput(
            f"{saved[0]} was saved from a table without a ladder over width, and compare ranks by "
            "the losses over width"
        )
    if absent := [folder for folder, validation in validations.items() if validation is None]:
        commands = ", ".join(f"`{_validate(folder)}`" for folder in absent)
        raise BadInput(
            "no validated ladder over width in "
            f"{' and '.join(folder.name for folder in absent)}: run {commands} first"
        )
    entries = [
        _entry(folder, validation) for folder, validation in validations.items() if validation
    ]
    notes, comparison = differences({e.ladder.name: e.spec for e in entries}), None
    if notes and not anyway:
        notes = [not_comparable(notes)]
    else:
        try:
            known = all(entry.flops_known for entry in entries)
            ranked = compare([entry.ladder for entry in entries])
            comparison = replace(ranked, flops_known=known)
        except ValueError as error:
            # No ranking, but no error: `report A B` shows the curves beside each other all the
            # same.
            notes = [f"{error}: validate ladders whose widths meet"]
    return Compared(
        entries=entries,
        validations={entry.ladder.name: entry.validation for entry in entries},
        parameterizations={e.ladder.name: e.spec.parameterization.name for e in entries},
        costs={entry.ladder.name: (entry.tuning, entry.validating) for entry in entries},
        comparison=comparison,
        notes=notes,
    )


def _validation(folder: Path) -> Validation | None:
    """The study's newest record of curves of eta over width; BadInput where it is damaged."""
    try:
        return newest_validation(folder, lambda each: each.over("width") is not None, strict=True)
    except BadInput as error:
        raise BadInput(f"{error}: `{_validate(folder)}`") from error


def _entry(folder: Path, validation: Validation) -> Entry:
    """What is compared of one study; BadInput where its trials are gone or of another kind."""
    curves = validation.ladder("width")
    if not curves:
        raise BadInput(f"{folder.name}: no curve over width is kept: run `{_validate(folder)}`")
    trials = trials_of(Study.read(folder))
    trained: dict[LadderSize, TrialSpec] = {}
    for result in trials.current:
        spec = result.trial.spec
        model = Size(width=spec.width, depth=spec.depth)
        trained[LadderSize.of(model, spec.model.arguments, asdict(spec.train))] = spec
    if lost := [curve.size for curve in curves if curve.size not in trained]:
        raise BadInput(f"{folder.name}: the study holds no trial of its ladder's {lost[0]}")
    flops = flops_in(folder)

    def work(spec: TrialSpec) -> float:
        """FLOPs of a whole run; where nobody knows, what is in proportion to them."""
        known, train = flops(spec), spec.train
        tokens = train.steps * train.batch_size * train.seq_len
        return float(spec.width**2 * spec.depth * tokens) if math.isnan(known) else known

    specs = {curve.size.width: trained[curve.size] for curve in curves}
    ladders = [result for result in trials.current if result.trial.phase == LADDER_PHASE]
    ladder = Ladder(
        name=folder.name,
        curves=curves,
        transferred=validation.planned_log2,
        flops={width: work(spec) for width, spec in specs.items()},
    )
    return Entry(
        folder=folder,
        validation=validation,
        ladder=ladder,
        # The widest stands for the study: width is the one thing in which its models differ.
        spec=specs[max(specs)],
        tuning=spent(trials.searched, work),
        validating=spent(ladders, work),
        flops_known=not any(math.isnan(flops(spec)) for spec in specs.values()),
    )


def differences(specs: Mapping[str, TrialSpec]) -> list[str]:
    """What keeps the losses of two studies from being compared, a sentence for each.

    `specs` are by study.

    Data, model, depth and training must be the same; not how it is scaled or stepped.
    """
    named: dict[str, dict[str, list[str]]] = {}
    for name, spec in specs.items():
        train = {key: value for key, value in asdict(spec.train).items() if key not in IMMATERIAL}
        groups = {"data": spec.data, "model": spec.model.arguments, "train": train}
        facts = {"model": spec.model.name, "model.depth": spec.depth}
        facts["runner"] = spec.runner.get("name", "engine")
        for group, values in groups.items():
            facts |= {f"{group}.{key}": value for key, value in values.items()}
        for key, value in facts.items():
            named.setdefault(key, {}).setdefault(str(as_number(value)), []).append(name)
    sentences, studies = [], list(specs)
    for key, by_value in named.items():
        known = [name for names in by_value.values() for name in names]
        if lacking := [name for name in studies if name not in known]:
            # A key that came after a study was made, or that its model does not have.
            by_value["none"] = lacking
        if len(by_value) > 1:
            where = (
                f"{value if len(value) <= 24 else f'{value[:12]}…'} in {' and '.join(names)}"
                for value, names in by_value.items()
            )
            sentences.append(f"{key} is {', '.join(where)}")
    return sentences


def not_comparable(notes: Sequence[str]) -> str:
    """What is said of studies that differ by `notes`, and how to compare them nevertheless."""
    unlike = f"the studies are not comparable: {'; '.join(notes)}. "
    return unlike + "`sweeper compare --anyway` compares them all the same"


def after_comparison(comparison: StudyComparison, entries: Sequence[Entry]) -> list[NextCommand]:
    """The best study's plan; with none told apart, seeds that would tell; empty where none do.

    None for studies that were saved from tables: nothing in them can be continued.
    """
    folders = {entry.ladder.name: entry.folder for entry in entries if not is_saved(entry.folder)}
    leader = comparison.by_transferred[0]
    # A place is an interval, `first` to `last`: of this study the seeds leave only one.
    if leader.last == 1:
        if leader.name not in folders:
            return []
        width = 2 * max(w.width for c in comparison.candidates for w in c.widths)
        root, why = folders[leader.name].parent, "to plan with the best"
        target = ("--to-width", str(width))
        return [NextCommand.of("transfer", *target, study=leader.name, root=root, why=why)]
    seeds = seeds_needed(comparison.by_transferred, comparison.seeds)
    if seeds is None:
        return []
    first = [rank.name for rank in comparison.by_transferred if rank.first == 1]
    tied = [name for name in first if name in folders]
    return [_more_seeds(folders[name], seeds) for name in tied]


def _more_seeds(folder: Path, seeds: int) -> NextCommand:
    """The command of the study's verdict over width, with as many seeds.

    Where no record keeps it, the one that trains the ladder of the study's configuration.
    """
    override, why = f"transfer.seeds={seeds}", "to tell them apart by more seeds"
    command = validated_by(folder, "width")
    if command is None:
        return _validate(folder, override)
    # A ladder that settles takes its seeds by itself.
    return command.without("--settle", "--budget", "--hours").with_arguments(override, why=why)


def _validate(folder: Path, *overrides: str) -> NextCommand:
    """The command that trains a study's ladder over width, by its configuration.

    BadInput for a configuration that says no widths. No plugin is built.
    """
    check_folder(folder)
    check_not_saved(folder)
    from sweeper.config.compose import read_tree  # it brings Hydra

    path = StudyFolder(folder).config
    # Plain values: to name a command, no class that the study's configuration names is imported.
    tree = read_tree(path, ())
    try:
        with key_prefix("transfer"):
            ladder: LadderRule = call_checked(LadderRule, tree.get("transfer") or {}, {})
        base = (tree.get("model") or {}).get("width")
        if not isinstance(base, int):
            raise ConfigError("model.width", base, "a whole number")
    except (ConfigError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: {error}") from error
    widths = (*ladder.widths, base)
    if len(set(widths)) == 1:
        overrides = (f"transfer.widths=[{base},{2 * base},{4 * base}]", *overrides)
    return NextCommand.of(
        "transfer",
        *("--to-width", str(max(widths)), "--validate", *overrides),
        study=folder.name,
        root=folder.parent,
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
    if picture is not None and picture.suffix != ".svg":
        raise ConfigError(Keyword("picture"), str(picture), "a file whose name ends in .svg")
    if picture is not None and not picture.parent.is_dir():
        allowed = f"there is no folder {picture.parent}: make it first"
        raise ConfigError(Keyword("picture"), str(picture), allowed)
    ranked = compared(names, root, anyway=False)
    folder = comparison_folder(names, root)
    paths = {name: StudyFolder(root / name).report for name in names}
    pages = {n: os.path.relpath(path, folder) for n, path in paths.items() if path.is_file()}
    faster = []
    if ranked.comparison is not None:
        ladders = {entry.ladder.name: entry.ladder for entry in ranked.entries}
        faster = speed_ups([ladders[rank.name] for rank in ranked.comparison.by_transferred])
    page = write_several(ranked, pages, folder, faster)
    places = {"report": page, "all studies": write_index(root)}
    if picture is not None:
        places["picture"], places["picture for dark pages"] = write_picture(ranked.panels, picture)
    answers = ", ".join(f"{name} {answer}" for name, answer in ranked.verdicts.items())
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
        "verdicts": ranked.verdicts,
        "ranked": ranked.comparison is not None,
        "notes": list(ranked.notes),
        "picture": None if picture is None else str(picture),
    }
    output.end(sentence, places, document, *next_commands)
    return DONE
