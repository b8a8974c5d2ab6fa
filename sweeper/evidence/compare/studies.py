"""Studies that are variants: which are named, and whether their losses can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweeper.config.command_line import DEFAULT_ROOT
from sweeper.errors import BadInput, Call, ConfigError, Keyword, near_misses
from sweeper.evidence.compare.differences import VariantQuestion
from sweeper.evidence.compare.request import CompareRequest
from sweeper.evidence.flags import fixed_values
from sweeper.records import as_number
from sweeper.study.setup import trials_of
from sweeper.study.study import StudyRecord
from sweeper.trial import TrialSpec

IMMATERIAL = "train.accumulate"
"""A setting that changes how a run is computed, and not what."""
SETTINGS = ("data", "model", "train", "runner")
"""Groups of what studies may differ in; what else may be ignored are columns of their runs."""
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


def question_of(request: CompareRequest, counts: Mapping[str, float]) -> VariantQuestion:
    """What is asked at a target; ConfigError for what the law of the loss does not have."""
    fixed = fixed_values(request.fixed)
    for name, value in fixed.items():
        if name not in ("E", "gamma"):
            raise ConfigError(Keyword("fixed"), name, "E or gamma, of E + c/compute^gamma")
        if name == "gamma" and not 1e-3 <= value <= 1:
            raise ConfigError(Keyword("fixed"), f"gamma={value:g}", "at least 0.001, at most 1")
    return VariantQuestion(
        counts=counts, floor=fixed.get("E"), exponent=fixed.get("gamma"), error=request.error
    )


def check_distinct(names: Sequence[str]) -> None:
    """BadInput for a study that is given twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise BadInput(f"{twice[0]} is given twice: name each study once")


def check_comparable(
    specs: Mapping[str, TrialSpec], ignore: Sequence[str], columns: Sequence[str] = ()
) -> list[str]:
    """What differs between studies; BadInput for what is not in `ignore`, or is no setting."""
    known = [*dict.fromkeys(key for spec in specs.values() for key in _facts(spec))]
    for name in ignore:
        if name not in columns and not any(_is_named(key, [name]) for key in known):
            allowed = f"a setting of the studies{near_misses(name, known)}"
            raise ConfigError(Keyword("ignore"), name, allowed)
    unlike = differences(specs)
    refused = {key: sentence for key, sentence in unlike.items() if not _is_named(key, ignore)}
    if refused:
        keyword = Keyword("ignore", ",".join(dict.fromkeys([*ignore, *refused])))
        what = f"the studies are not comparable: {'; '.join(refused.values())}. "
        raise BadInput(what, Call("compare", keyword), " compares them all the same")
    return [*unlike.values()]


def _is_named(key: str, ignore: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in ignore)


def check_studies(
    folders: Sequence[Path], ignore: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """What studies differ in, and what else of `ignore` is left; BadInput for one named twice."""
    check_distinct([folder.name for folder in folders])
    specs = dict[str, TrialSpec]()
    for folder in folders:
        trials = trials_of(StudyRecord.read(folder, curves=False)).current
        # The widest stands for the study: width is the one thing in which its models differ.
        every = [result.trial.spec for result in trials]
        if every:
            specs[folder.name] = max(every, key=lambda spec: (spec.width, spec.depth))
    if len(specs) < 2:
        return [], tuple(ignore)
    columns = tuple(name for name in ignore if name.partition(".")[0] not in SETTINGS)
    return check_comparable(specs, ignore, columns), columns


def _facts(spec: TrialSpec) -> dict[str, Any]:
    groups = {"data": spec.data, "model": spec.model.arguments, "train": asdict(spec.train)}
    runner = spec.runner.get("name", "engine")
    facts = {"model": spec.model.name, "model.depth": spec.depth, "runner": runner}
    for group, values in groups.items():
        facts |= {f"{group}.{key}": value for key, value in values.items()}
    return facts


def differences(specs: Mapping[str, TrialSpec]) -> dict[str, str]:
    """What keeps the losses of studies, by name, from being compared: a sentence by setting."""
    named: dict[str, dict[str, list[str]]] = {}
    for name, spec in specs.items():
        for key, value in _facts(spec).items():
            named.setdefault(key, {}).setdefault(str(as_number(value)), []).append(name)
    sentences, studies = dict[str, str](), list(specs)
    for key, by_value in named.items():
        with_key = [name for names in by_value.values() for name in names]
        if lacking := [name for name in studies if name not in with_key]:
            # A key that came after a study was made, or that its model does not have.
            by_value["none"] = lacking
        if len(by_value) > 1 and key != IMMATERIAL:
            where = (
                f"{value if len(value) <= 24 else f'{value[:12]}…'} in {' and '.join(names)}"
                for value, names in by_value.items()
            )
            sentences[key] = f"{key} is {', '.join(where)}"
    return sentences
