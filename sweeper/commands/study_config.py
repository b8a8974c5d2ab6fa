"""The configuration of a study that exists, with overrides on top; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweeper.catalog import OVERLAYS
from sweeper.commands.output import find_study
from sweeper.config import Tree, compose_tree, override_value, parse_overrides, read_tree
from sweeper.errors import BadInput
from sweeper.overrides import DEFAULT_ROOT
from sweeper.study import check_config_format, read_root

_STUDY_KEYS = ("study", "study.name")


def split_root(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The root folder that the overrides give (default runs), and the other overrides."""
    root, others = Path(DEFAULT_ROOT), []
    for word, override in zip(words, parse_overrides(words), strict=True):
        if override.key_or_group == "root":
            root = read_root(override_value("root", override.value()))
        else:
            others.append(word)
    return root, others


def study_tree(name: str | None, words: Sequence[str], config_dir: Path | None) -> Tree:
    """A study's settings with overrides on top; BadInput for what a study cannot change."""
    root, others = split_root(words)
    study = find_study(name, root)
    for override in parse_overrides(others):
        key = str(override.key_or_group)
        if key.split(".")[0] in ("parameterization", *OVERLAYS) or key in _STUDY_KEYS:
            raise BadInput(
                f"{key} cannot be changed for the study {study!r}: search anew with it, or choose "
                "another study with --study"
            )
    check_config_format(root / study)
    tree = read_tree(root / study / "config.yaml", others, config_dir) | {"root": str(root)}
    if isinstance(tree.get("study"), dict):
        tree["study"]["name"] = study
    return tree


def tree_of(study: str | None, words: Sequence[str], config_dir: Path | None) -> Tree:
    """The configuration of a study where one is named, else of the defaults and the overrides."""
    if study is None:
        return compose_tree(words, config_dir)
    return study_tree(study, words, config_dir)
