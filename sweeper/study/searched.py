"""What a search left in its study's folder: the settings that it had, and what it found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from sweeper.files import MOST_YAML, check_summed, note_record, parse_yaml, read_bounded
from sweeper.records import from_json
from sweeper.search.strategy import Conclusion
from sweeper.stats.ladder import Size
from sweeper.study.folder import StudyFolder, read_document
from sweeper.trial import Axis, Space


def config_text(folder: Path) -> str:
    """The settings of the study in `folder` as they are kept; empty where they cannot be read."""
    try:
        return read_bounded(StudyFolder(folder).config, MOST_YAML).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def config_tree(folder: Path) -> dict[str, Any]:
    """The settings of the study in `folder`, group by group; none where they cannot be read.

    Not Settings: those would import the study's classes.
    """
    text = config_text(folder)
    try:
        check_summed(text.encode())
        return _tree(text)
    except ValueError as error:
        note_record(StudyFolder(folder).config, f"it cannot be read: {error}")
        return {}


@lru_cache(maxsize=8)  # a page asks several times, and YAML is slow to read
def _tree(config: str) -> dict[str, Any]:
    groups = parse_yaml(config)
    return groups if isinstance(groups, dict) else {}


def takes(config: str, name: str) -> bool:
    """Whether a study's trials take a size, by its kept `config`: a command may take no {depth}."""
    try:
        runner = _tree(config)["runner"]
        if not (command := runner.get("command")):
            return True
        names = {name, "trial", *["plan"] * (name in ("width", "depth"))}
        text, uses = f"{command} {runner.get('arguments')}", set(runner.get("uses") or ())
    except (KeyError, TypeError, AttributeError, ValueError):
        return True
    # {depth}, or a term with it, {depth//2}.
    placeholder = re.search(rf"\{{[^{{}}]*\b({'|'.join(names)})\b", text)
    return placeholder is not None or not uses.isdisjoint({*names, "*"})


@dataclass(frozen=True, kw_only=True)
class Searched:
    """`search.json`: what a search found, where, and in which space."""

    study: str
    parameterization: str
    strategy: str
    finished: bool
    conclusion: Conclusion
    space: Space
    base: Size | None
    provenance: Mapping[str, Any]

    @property
    def command(self) -> object:
        """The command line of the search; None where it was not kept."""
        return self.provenance.get("command")

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Searched:
        """One of `READ_ERRORS` for a record of another shape than a search writes.

        People read `search.json`: it is a conclusion with more around it, where a choice stands
        by its value. Strategies know a choice by its place among all.
        """
        space: Space = {str(name): _axis(axis) for name, axis in record["space_log2"].items()}

        def places(log2: Mapping[str, Any]) -> dict[str, Any]:
            choices = {name: space[name].choices for name in log2 if name in space}
            return {n: choices[n].index(v) if choices.get(n) else v for n, v in log2.items()}

        # The record holds more than a conclusion: its fields are picked out.
        names = {each.name for each in fields(Conclusion)}
        parts = {name: value for name, value in record.items() if name in names}
        parts["best_log2"] = places(parts["best_log2"])
        if combination := parts.get("combination"):
            sides = {name: places(combination[name]) for name in ("combined_log2", "single_log2")}
            parts["combination"] = {**combination, **sides}
            parts["combination"].pop("finding", None)
        if retune := parts.get("retune"):
            parts["retune"] = {name: part for name, part in retune.items() if name != "finding"}
        base = record.get("base")
        return cls(
            study=str(record.get("study") or ""),
            parameterization=str(record.get("parameterization")),
            strategy=str(record.get("search")),
            finished=bool(record.get("finished")),
            conclusion=from_json(Conclusion, parts),
            space=space,
            base=from_json(Size, base) if base else None,
            provenance=dict(record.get("provenance") or {}),
        )


def _axis(record: Mapping[str, Any]) -> Axis:
    # As `read_space` makes an axis over places in a list.
    if not (choices := record.get("choices")):
        return from_json(Axis, record)
    place = float(choices.index(record["default"]))
    return Axis(low=0.0, high=len(choices) - 1.0, default=place, choices=tuple(choices))


def read_searched(folder: Path, notes: list[str]) -> Searched | None:
    """What the search of the study in `folder` found; `notes` gets what is damaged."""
    return read_document(StudyFolder(folder).search, Searched.read, notes)
