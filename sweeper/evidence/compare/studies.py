"""Studies that are variants: which are named, and whether their losses can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import BadInput, Call, Keyword
from sweeper.records import as_number
from sweeper.study.setup import trials_of
from sweeper.study.study import Study
from sweeper.trial import TrialSpec

IMMATERIAL = ("accumulate",)
"""Settings of `train` that change how a run is computed, and not what."""
TOO_FEW = ("compare takes two studies or more: ", Call("compare", "STUDY", "STUDY"))


def named_studies(sources: Sequence[Any], asked_root: Path | None) -> tuple[list[Any], Path]:
    """The sources and the folder of studies, which --root or `root=DIR` among them may give."""
    names, root = [], Path(DEFAULT_ROOT if asked_root is None else asked_root).expanduser()
    for source in sources:
        if isinstance(source, str) and source.startswith("root="):
            root = Path(source.removeprefix("root=")).expanduser()
        else:
            names.append(source.removeprefix("study=") if isinstance(source, str) else source)
    return names, root


def check_distinct(names: Sequence[str]) -> None:
    """BadInput for a study that is given twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise BadInput(f"{twice[0]} is given twice: name each study once")


def check_comparable(specs: Mapping[str, TrialSpec], anyway: bool) -> list[str]:
    """What differs between the studies; BadInput where anything does, but with `anyway`."""
    notes = differences(specs)
    if notes and not anyway:
        unlike = f"the studies are not comparable: {'; '.join(notes)}. "
        raise BadInput(unlike, Call("compare", Keyword("anyway")), " compares them all the same")
    return notes


def check_studies(folders: Sequence[Path], anyway: bool) -> list[str]:
    """What differs between studies by what they trained; BadInput for one that is given twice."""
    check_distinct([folder.name for folder in folders])
    specs = dict[str, TrialSpec]()
    for folder in folders:
        trials = trials_of(Study.read(folder, curves=False)).current
        # The widest stands for the study: width is the one thing in which its models differ.
        every = [result.trial.spec for result in trials]
        if every:
            specs[folder.name] = max(every, key=lambda spec: (spec.width, spec.depth))
    return check_comparable(specs, anyway) if len(specs) > 1 else []


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
        with_key = [name for names in by_value.values() for name in names]
        if lacking := [name for name in studies if name not in with_key]:
            # A key that came after a study was made, or that its model does not have.
            by_value["none"] = lacking
        if len(by_value) > 1:
            where = (
                f"{value if len(value) <= 24 else f'{value[:12]}…'} in {' and '.join(names)}"
                for value, names in by_value.items()
            )
            sentences.append(f"{key} is {', '.join(where)}")
    return sentences
