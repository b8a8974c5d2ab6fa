"""Studies as they are compared: their ladders over the width, what differs, what each cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.config.compose import read_tree
from sweeper.decide.validation import Validation, newest_validation
from sweeper.errors import BadInput, Call, ConfigError, Keyword, Text, key_prefix
from sweeper.evidence.compare.studies import Ladder, StudyComparison, compare
from sweeper.records import as_number, call_checked
from sweeper.stats.ladder import LadderRule, LadderSize
from sweeper.study.cost import Cost, spent
from sweeper.study.flops import flops_in, relative_flops
from sweeper.study.folder import StudyFolder
from sweeper.study.setup import LADDER_PHASE, trials_of
from sweeper.study.study import Study, check_folder, find_study
from sweeper.trial import TrialSpec, digest

IMMATERIAL = ("accumulate",)
"""Settings of `train` that change how a run is computed, and not what."""

TOO_FEW = ("compare takes two studies or more: ", Call("compare", "STUDY", "STUDY"))


@dataclass(frozen=True, kw_only=True)
class ComparedStudy:
    """A study as it is compared: its ladder, what was trained, and what it cost."""

    folder: Path
    validation: Validation
    ladder: Ladder
    spec: TrialSpec
    tuning: Cost
    validating: Cost
    flops_known: bool = True


@dataclass(frozen=True, kw_only=True)
class ComparedStudies:
    """Studies that were compared; `comparison` is None where `notes` say why there is none."""

    entries: Sequence[ComparedStudy]
    comparison: StudyComparison | None
    notes: Sequence[str | Text]

    @property
    def parameterizations(self) -> dict[str, str]:
        """The parameterization's name, by study."""
        return {e.ladder.name: e.spec.parameterization.name for e in self.entries}

    @property
    def costs(self) -> dict[str, tuple[Cost, Cost]]:
        """What tuning and validation took, by study."""
        return {entry.ladder.name: (entry.tuning, entry.validating) for entry in self.entries}


def named_studies(
    arguments: Sequence[str], asked_root: Path | str | None
) -> tuple[list[str], Path]:
    """The studies and the folder of all, which --root or `root=DIR` among the names may give."""
    names, root = [], Path(DEFAULT_ROOT if asked_root is None else asked_root).expanduser()
    for argument in arguments:
        if argument.startswith("root="):
            root = Path(argument.removeprefix("root=")).expanduser()
        else:
            names.append(argument.removeprefix("study="))
    return names, root


def check_distinct(names: Sequence[str]) -> None:
    """BadInput for a study that is given twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise BadInput(f"{twice[0]} is given twice: name each study once")


def compared(names: Sequence[str], root: Path, *, anyway: bool) -> ComparedStudies:
    """The studies, ranked where they can be; `notes` say why not, or what differs all the same.

    BadInput for a study that is given twice, or that has no ladder over the width.
    """
    check_distinct(names)
    folders = [root / find_study(name, root) for name in names]
    validations = {folder: _validation(folder) for folder in folders}
    if absent := [folder for folder, validation in validations.items() if validation is None]:
        calls = [part for folder in absent for part in (", ", ladder_call(folder))][1:]
        raise BadInput(
            "no validated ladder over width in "
            f"{' and '.join(folder.name for folder in absent)}: run ",
            *calls,
            " first",
        )
    entries = [
        _entry(folder, validation) for folder, validation in validations.items() if validation
    ]
    unlike, comparison = differences({e.ladder.name: e.spec for e in entries}), None
    notes: list[str | Text] = [*unlike]
    if unlike and not anyway:
        notes = [not_comparable(unlike)]
    else:
        try:
            known = all(entry.flops_known for entry in entries)
            ranked = compare([entry.ladder for entry in entries])
            comparison = replace(ranked, flops_known=known)
        except ValueError as error:
            notes = [f"{error}: validate ladders whose widths meet"]
    return ComparedStudies(entries=entries, comparison=comparison, notes=notes)


def _validation(folder: Path) -> Validation | None:
    """The study's newest record of curves of eta over width; BadInput where it is damaged."""
    try:
        return newest_validation(folder, lambda each: each.over("width") is not None, strict=True)
    except BadInput as error:
        raise BadInput(*error.args, ": ", ladder_call(folder)) from error


def _entry(folder: Path, validation: Validation) -> ComparedStudy:
    """What is compared of one study; BadInput where its trials are gone or of another kind."""
    curves = validation.ladder("width")
    if not curves:
        raise BadInput(f"{folder.name}: no curve over width is kept: run ", ladder_call(folder))
    trials = trials_of(Study.read(folder))
    trained: dict[LadderSize, TrialSpec] = {}
    for result in trials.current:
        spec = result.trial.spec
        trained[LadderSize.of_spec(spec)] = spec
    if lost := [curve.size for curve in curves if curve.size not in trained]:
        raise BadInput(f"{folder.name}: the study holds no trial of its ladder's {lost[0]}")
    flops = flops_in(folder)
    work = partial(relative_flops, flops=flops)
    specs = {curve.size.width: trained[curve.size] for curve in curves}
    ladders = [result for result in trials.current if result.trial.phase == LADDER_PHASE]
    ladder = Ladder(
        name=folder.name,
        curves=curves,
        transferred=validation.planned_log2,
        flops={width: work(spec) for width, spec in specs.items()},
    )
    return ComparedStudy(
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


def not_comparable(notes: Sequence[str]) -> Text:
    """What studies that differ by `notes` are told, and how to compare them all the same."""
    unlike = f"the studies are not comparable: {'; '.join(notes)}. "
    return unlike, Call("compare", Keyword("anyway")), " compares them all the same"


def ladder_call(folder: Path, *overrides: str) -> Call:
    """What trains a study's ladder over width, no plugin built; BadInput where no width is said."""
    check_folder(folder)
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
        raise BadInput(f"{path}: ", *error.args) from error
    widths = (*ladder.widths, base)
    if len(set(widths)) == 1:
        overrides = (f"transfer.widths=[{base},{2 * base},{4 * base}]", *overrides)
    target = [Keyword("to_width", max(widths)), Keyword("validate")]
    root = [Keyword("root", folder.parent)] if str(folder.parent) != DEFAULT_ROOT else []
    return Call("transfer", Keyword("study", folder.name), *target, *overrides, *root)


def comparison_folder(names: Sequence[str], root: Path) -> Path:
    """Where a comparison is written to; its name is cut to what a file system takes."""
    name = "+".join(names)
    if len(name) > 120:
        name = f"{name[:100]}+{digest(list(names))[:12]}"
    return root / "comparisons" / name
