"""Hydra's one place: compose the configuration, or read a study's, and explain what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeper.catalog import groups, home
from sweeper.errors import BadInput, ConfigError, suggest

Tree = dict[str, Any]


def compose_tree(overrides: Sequence[str], config_dir: Path | None = None) -> Tree:
    """The resolved configuration of the defaults and `overrides`; BadInput says what is wrong."""
    words = [_rename_study(word) for word in overrides]
    parsed = parse(words)
    _check_groups(parsed, config_dir)
    return _resolve(_compose(parsed, words, config_dir))


def parse(words: Sequence[str]) -> list[Override]:
    """Hydra's overrides; BadInput for one that is not of the form key=value, or a sweep."""
    parser = OverridesParser.create()
    found = []
    for word in words:
        if not re.match(r"^[+~]*[\w./@-]+(=|$)", word) or ("=" not in word and word[0] != "~"):
            raise BadInput(
                f"{word!r} is not an override: write key=value, as in model.width=128 "
                "or parameterization=mup"
            )
        try:
            override = parser.parse_override(word)
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise BadInput(
                f"{word!r} cannot be read ({reason}); quote special characters: 'key=\"a value\"'"
            ) from error
        if override.is_sweep_override():
            raise BadInput(f"{word!r} is a sweep; a list is written [a,b]: 'key=[32,64]'")
        found.append(override)
    return found


def _rename_study(word: str) -> str:
    """`study=NAME` is short for `study.name=NAME`."""
    return re.sub(r"^study=(?!\{)", "study.name=", word)


def _check_groups(parsed: Sequence[Override], config_dir: Path | None) -> None:
    """Refuse an option that its group does not have."""
    known = groups(config_dir)
    for override in parsed:
        key = str(override.key_or_group)
        if key not in known or override.is_delete():
            continue
        choice = override.value()
        options = known[key]
        if choice not in options and not (key == "experiment" and choice is None):
            raise ConfigError(key, choice, f"one of {', '.join(options)}")


def _compose(
    parsed: Sequence[Override], words: Sequence[str], config_dir: Path | None
) -> DictConfig:
    """Compose once; when Hydra refuses a key, name it with what it may have meant."""
    known = groups(config_dir)
    search_path = [f"hydra.searchpath=[file://{config_dir.resolve()}]"] if config_dir else []
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(home()), version_base="1.3"):
        try:
            return compose("config", [*search_path, *words])
        except (HydraException, OmegaConfBaseException) as error:
            choices = [
                word for word, o in zip(words, parsed, strict=True) if str(o.key_or_group) in known
            ]
            try:
                plain = compose("config", [*search_path, *choices])
            except (HydraException, OmegaConfBaseException):
                raise BadInput(_first_lines(error)) from error
            raise _explain(plain, parsed, known, error) from error


def _explain(
    plain: DictConfig, parsed: Sequence[Override], known: Mapping[str, object], error: Exception
) -> BadInput:
    """The error for the first override whose key the configuration does not have."""
    keys = set(_leaves(cast(Tree, OmegaConf.to_container(plain))))
    for override in parsed:
        key = str(override.key_or_group)
        if key in known or override.is_add():
            continue
        if not any(leaf == key or leaf.startswith(f"{key}.") for leaf in keys):
            allowed = f"there is no such key; {suggest(key, keys | known.keys())}"
            return ConfigError(key, override.value(), allowed)
    return BadInput(_first_lines(error))


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of all leaves."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name


def _resolve(config: DictConfig) -> Tree:
    """Plain values; BadInput for a mandatory value that is missing or a bad interpolation."""
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise BadInput(f"{missing[0]} needs a value: add {missing[0]}=... to the command")
    try:
        tree = cast(Tree, OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        raise BadInput(_first_lines(error)) from error
    tree.pop("experiment", None)
    return tree


def _first_lines(error: Exception) -> str:
    """A library's message without its tail of internals."""
    return " ".join(str(error).split("\n\n")[0].split())


def read_tree(path: Path, overrides: Sequence[str], config_dir: Path | None = None) -> Tree:
    """A study's `config.yaml` with `overrides` on top; groups may be exchanged as a whole."""
    try:
        config = OmegaConf.load(path)
    except (OSError, OmegaConfBaseException, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {_first_lines(error)}") from error
    tree = cast(Tree, OmegaConf.to_container(config))
    words = [_rename_study(word) for word in overrides]
    parsed = parse(words)
    _check_groups(parsed, config_dir)
    known = groups(config_dir)
    for word, override in zip(words, parsed, strict=True):
        key = str(override.key_or_group)
        if key in known:
            tree[key] = compose_tree([word], config_dir)[key]
            continue
        _set(tree, key, override.value(), override.is_add())
    return tree


def _set(tree: Tree, key: str, value: Any, add: bool) -> None:
    """Set a dotted key that exists (or, with `add`, may not)."""
    *path, last = key.split(".")
    node: Any = tree
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict) or (last not in node and not add):
        raise ConfigError(key, value, f"there is no such key; {suggest(key, set(_leaves(tree)))}")
    node[last] = value


def to_yaml(tree: Mapping[str, Any]) -> str:
    """The tree as YAML, as it is kept in a study's folder."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(tree)))
