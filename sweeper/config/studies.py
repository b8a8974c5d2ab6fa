"""Which study a verb is about, and that study's configuration with overrides on top; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.config.command_line import DEFAULT_ROOT, changed
from sweeper.config.compose import Tree, compose_tree, override_value, parse_overrides, read_tree
from sweeper.errors import BadInput, Call, ConfigError, Keyword
from sweeper.registry import OVERLAYS, classes_in, classes_of_configs, name_classes
from sweeper.search.optuna.url import redact_word
from sweeper.study.folder import StudyFolder
from sweeper.study.study import check_folder, find_study, read_root
from sweeper.study.trust import code_of, remember, remembered


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """How a verb's configuration was given; `study` is one that exists, whose optimum it takes."""

    overrides: Sequence[str] = ()
    config_dir: Path | None = None
    study: str | None = None

    def call(self, verb: str, root: Path, *changes: str, without: Sequence[str] = ()) -> Call:
        """A call of `verb` for the configuration with `changes`; no password is shown."""
        settings = map(redact_word, changed(self.overrides, changes, without=(*without, "root")))
        named: list[Keyword | str] = [Keyword("study", self.study)] if self.study else []
        at = root if str(root) != DEFAULT_ROOT else None
        folders = {"root": at, "config_dir": self.config_dir}
        where = [Keyword(name, folder) for name, folder in folders.items() if folder is not None]
        return Call(verb, *named, *settings, *where)


def split_root(overrides: Sequence[str]) -> tuple[Path, list[str]]:
    """The root folder that the overrides give (default runs), and the other overrides."""
    root, others = Path(DEFAULT_ROOT), []
    for text, override in zip(overrides, parse_overrides(overrides), strict=True):
        if override.key_or_group == "root":
            root = read_root(override_value("root", override.value()))
        else:
            others.append(text)
    return root, others


def study_tree(
    name: str | None,
    overrides: Sequence[str],
    config_dir: Path | None = None,
    *,
    trust: bool | None = False,
) -> tuple[Tree, Invocation]:
    """A study's settings with overrides on top; BadInput for what a study cannot change.

    And for code that the study alone names, unless its user let it run, now by `trust` or before.
    None: the verb does not ask for it.
    """
    root, others = split_root(overrides)
    study = find_study(name, root)
    for override in parse_overrides(others):
        key = str(override.key_or_group)
        if key.split(".")[0] in ("parameterization", *OVERLAYS) or key in ("study", "study.name"):
            allowed = f"it cannot be changed for the study {study!r}: search anew with it, or "
            other = (f"{allowed}choose another study with ", Keyword("study", ...))
            raise ConfigError(key, override.get_value_element_as_str(), other)
    check_folder(root / study)
    path = StudyFolder(root / study).config
    tree = read_tree(path, others, config_dir) | {"root": str(root)}
    _check_code(path, tree, others, config_dir, trust=trust)
    if isinstance(tree.get("study"), dict):
        # The folder's name counts: a study may have been renamed or copied.
        tree["study"]["name"] = study
    return tree, Invocation(overrides=overrides, config_dir=config_dir, study=study)


def _check_code(
    path: Path, tree: Tree, overrides: Sequence[str], config_dir: Path | None, *, trust: bool | None
) -> None:
    code = code_of(tree)
    parsed = parse_overrides(overrides)
    named = set(classes_of_configs(config_dir))
    for override in parsed:
        key = str(override.key_or_group)
        named |= {key, *classes_in({key.rpartition(".")[2]: override.value()})}
    # What this command line names itself, by an override or a config of --config-dir, its user has
    # just chosen: only what the study's record alone names needs trust.
    for key in list(code):
        group, _, target = key.partition(" ")
        if (target or key) in named or group.partition(".")[0] in named:
            del code[key]
    if not code:
        return
    kept = read_tree(path, ())
    if trust:
        remember(path.parent, kept)
    elif not remembered(path.parent, kept):
        add = ("name it here",) if trust is None else ("add ", Keyword("trust"))
        raise BadInput(
            f"the study in {path.parent} would {'; '.join(code.values())}. Its config.yaml names "
            "that, and this command does not: ",
            *add,
            " if it is yours, or you have read it and allow it",
        )
    # From here on the registry may build these; nothing above has imported one.
    name_classes(classes_in(tree))


def tree_of(
    study: str | None, overrides: Sequence[str], config_dir: Path | None, *, trust: bool = False
) -> tuple[Tree, Invocation]:
    """The configuration of a study where one is named, else of the defaults and the overrides."""
    if study is not None:
        return study_tree(study, overrides, config_dir, trust=trust)
    invocation = Invocation(overrides=overrides, config_dir=config_dir)
    return compose_tree(overrides, config_dir), invocation
