"""Hydra's one place: compose the configuration, or read a study's, and explain what is invalid.

`compose_tree` goes from the words of a command line to a resolved tree of plain values: the words
are rewritten and parsed, checked, composed by Hydra, and cut to what the user's classes take.
`read_tree` does so for a study's `config.yaml`, which `to_yaml` wrote. A `DictConfig` never leaves
this file. Hydra's own errors seldom name the key as typed, and never what it may have meant: the
second half of the file is about these.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, lru_cache
from io import StringIO
from pathlib import Path
from typing import Any, cast

import yaml  # type: ignore[import-untyped]
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeper.config.command_line import FROM, literal_metric, missing_dashes
from sweeper.errors import BadInput, Call, ConfigError, Keyword, key_prefix, suggest
from sweeper.files import MOST_YAML, check_summed, parse_yaml, read_bounded
from sweeper.gone import gone
from sweeper.records import arguments
from sweeper.registry import (
    OVERLAYS,
    TARGET,
    classes_in,
    classes_of_configs,
    conf_folder,
    groups,
    import_plugin,
    is_shipped,
    name_classes,
    with_names,
    with_targets,
)
from sweeper.scaling.gamma import GAMMAS
from sweeper.scaling.spec import RULE_KEYS
from sweeper.trial import FORMAT

Tree = dict[str, Any]

GAMMA_ENDS = {"low": -3, "high": 3}
"""The ends of a gamma's range where a config has null; without an alignment they are 0."""

_INTERPOLATION = re.compile(r"(?<!\\)(?:\\\\)*\$\{[^}]*\}?")
_CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError)


def compose_tree(overrides: Sequence[str], config_dir: Path | None = None) -> Tree:
    """The resolved configuration of the defaults and `overrides`; BadInput says what is wrong."""
    for word in overrides:
        if word.startswith(f"{FROM}="):
            allowed = ("left out: where a search begins is said to ", Call("search"), " alone")
            raise ConfigError(FROM, word.partition("=")[2], allowed)
    # Overrides are parsed and checked before Hydra composes them: see above.
    hydra_overrides = [_for_hydra(text) for text in overrides]
    parsed = parse_overrides(hydra_overrides, overrides)
    # Hydra takes the first config of a name on its search path, the primary folder first: it would
    # pass over the user's. An identical copy does no harm.
    for path in config_dir.glob("**/*.yaml") if config_dir else ():
        shipped = conf_folder() / path.relative_to(cast(Path, config_dir))
        if shipped.is_file() and shipped.read_bytes() != path.read_bytes():
            raise BadInput(f"{path} has the name of one of sweeper's own configs: rename it")
    _check_groups(parsed, config_dir)
    tree = _resolve(_compose(parsed, hydra_overrides, config_dir))
    keys = {str(override.key_or_group) for override in parsed}
    if keys & {*OVERLAYS}:
        # What an experiment says of its own choice in a group is not meant for another choice.
        for group in keys & tree.keys() & groups(config_dir).keys():
            chosen = [at for at, override in enumerate(parsed) if override.key_or_group == group]
            choices, texts = [parsed[at] for at in chosen], [hydra_overrides[at] for at in chosen]
            plain = _compose(choices, texts, config_dir).get(group) or {}
            values = tree[group].items()
            tree[group] = {k: v for k, v in values if k in plain or f"{group}.{k}" in keys}
    name_classes(classes_in(tree))
    # The config's arguments are those of its own model: a class of the user's (`model._target_=`)
    # need not take them. Those that it takes, and what the command line itself gives to the model,
    # stay and are checked like everything else.
    model = tree.get("model")
    if f"model.{TARGET}" in keys and isinstance(model, dict):
        with key_prefix("model"):
            accepted = arguments(import_plugin(model.get(TARGET)))
        for_any_model = (TARGET, "width", "depth", *RULE_KEYS)
        tree["model"] = {
            name: value
            for name, value in model.items()
            if name in for_any_model or name in accepted or f"model.{name}" in keys
        }
        # A model that says how deep it is, is as deep, unless somebody asks for another depth.
        own = accepted["depth"].default if "depth" in accepted else None
        if isinstance(own, int) and "model.depth" not in keys:
            tree["model"]["depth"] = own
    data = tree.get("data")
    if (
        f"data.{TARGET}" in keys
        and isinstance(data, dict)
        and not is_shipped(str(data.get(TARGET)))
    ):
        # Likewise: what another source holds out is not what this one does.
        typed = {".".join(key.split(".")[:2]) for key in keys}
        tree["data"] = {name: value for name, value in data.items() if f"data.{name}" in typed}
    return tree


def read_tree(path: Path, overrides: Sequence[str], config_dir: Path | None = None) -> Tree:
    """A study's `config.yaml` with `overrides` on top; groups may be exchanged as a whole."""
    config = _load_settings(path)
    name_classes(classes_of_configs(config_dir))
    hydra_overrides = [_for_hydra(text) for text in overrides]
    parsed = parse_overrides(hydra_overrides, overrides)
    _check_groups(parsed, config_dir)
    keys = [str(override.key_or_group) for override in parsed]
    # A kept configuration is no longer made of groups, so Hydra cannot exchange one: a new option
    # is composed alone, with the overrides of its own keys, and put in the place of the old.
    exchanged = set(keys) & groups(config_dir).keys()
    for group in exchanged:
        pairs = zip(hydra_overrides, keys, strict=True)
        of_group = [text for text, key in pairs if key.split(".")[0] == group]
        config[group] = compose_tree(of_group, config_dir).get(group)
    for key, override in zip(keys, parsed, strict=True):
        name_classes(classes_in({key.rpartition(".")[2]: override.value()}))
        if key.split(".")[0] in exchanged:
            continue
        if override.is_delete():
            raise BadInput(f"~{key}: a key of a study cannot be taken away; give it another value")
        # Struct: a key that is not there is an error, but for + and ++.
        OmegaConf.set_struct(config, not override.is_add() and not override.is_force_add())
        try:
            OmegaConf.update(config, key, override.value(), merge=True)
        except OmegaConfBaseException as error:
            tree = cast(Tree, OmegaConf.to_container(config))
            raise ConfigError(key, override.value(), _no_such_key(key, tree)) from error
    return _resolve(config)


def _load_settings(path: Path) -> DictConfig:
    try:
        check_summed(content := read_bounded(path, MOST_YAML))
        parse_yaml(content)  # omegaconf's own reader has no bounds
        tree = _loaded(content)
    except _CONFIG_ERRORS as error:
        raise BadInput(f"{path} cannot be read: {_message(error)}") from error
    if not isinstance(tree, dict) or not tree:
        raise BadInput(f"{path} cannot be read: it holds no settings")
    # `to_yaml` writes none: what a file from elsewhere asks of this machine, such as a variable of
    # the environment, is none of its business.
    if interpolation := next(filter(None, map(_INTERPOLATION.search, _texts(tree))), None):
        raise BadInput(
            f"{path} cannot be read: {interpolation[0]} is an interpolation, and no value"
        )
    settings: Tree = {}
    for group, value in tree.items():
        try:
            with key_prefix(str(group)):
                named = isinstance(value, dict)
                settings[str(group)] = with_targets(str(group), value) if named else value
        except ConfigError as error:
            raise BadInput(f"{path}: {error}") from error
    settings.pop("format", None)
    return OmegaConf.create(settings)


@lru_cache(maxsize=8)
def _loaded(content: bytes) -> Any:
    """What OmegaConf reads, which takes long and is asked for by several; not to be written to."""
    return OmegaConf.to_container(OmegaConf.load(StringIO(content.decode())))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.items() if isinstance(value, dict) else ():
        yield from _texts(list(item))
    for item in value if isinstance(value, list) else ():
        yield from _texts(item)


def to_yaml(tree: Mapping[str, Any]) -> str:
    """The tree as a study's folder keeps it: with its format, plugins by their stable name."""
    settings: Tree = {}
    for group, value in tree.items():
        with key_prefix(group):
            settings[group] = with_names(group, value) if isinstance(value, dict) else value
    return OmegaConf.to_yaml(OmegaConf.create(_literal({"format": FORMAT, **settings})))


def _literal(value: Any) -> Any:
    """The value with texts that OmegaConf reads back as they are: `${` begins no interpolation."""
    if isinstance(value, str):
        # Backslashes before it are halved when it is read: \${ is ${, and \\${ an interpolation.
        return re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + "\\${", value)
    if isinstance(value, Mapping):
        return {key: _literal(item) for key, item in value.items()}
    return [_literal(item) for item in value] if isinstance(value, list | tuple) else value


def override_value(key: str, value: object) -> Any:
    """What `value`, as an override gives it for `key`, stands for: interpolations resolved."""
    return _resolve(OmegaConf.create({key: value}))[key]


def _for_hydra(text: str) -> str:
    """An override as Hydra takes it.

    `study=NAME` is short for `study.name=NAME`, `metric=PATTERN` for `runner.metric`. What may be
    said of any model need not be in its config, and a mapping of the user's names or the arguments
    of one of Optuna's samplers have not their keys there: for all Hydra wants ++.
    """
    text = literal_metric(re.sub(r"^study=(?!\{)", "study.name=", text))
    of_model = rf"model\.({'|'.join(RULE_KEYS)}|dropout|attention_dropout)="
    mappings = r"(parameterization\.(groups|constants)|data\.augment|launcher\.submitit)[=.]"
    return re.sub(rf"^(?={of_model}|{mappings}|search\.sampler\.)", "++", text)


def parse_overrides(overrides: Sequence[str], typed: Sequence[str] = ()) -> list[Override]:
    """Hydra's overrides; BadInput, in the words as `typed`, for what is no key=value."""
    try:
        return [_parse(*both) for both in zip(overrides, typed or overrides, strict=True)]
    except BadInput as error:
        if advice := missing_dashes(typed or overrides):
            raise BadInput(f"{error}.{advice}") from error
        raise


def _parse(text: str, typed: str) -> Override:
    # Hydra's grammar takes much that is no override of ours, as a file's name for a group.
    if not re.match(r"^[+~]*[\w./-]+(=|$)", text) or ("=" not in text and text[0] != "~"):
        raise BadInput(
            f"{typed!r} is not an override: write key=value, as in model.width=128 "
            "or parameterization=mup"
        )
    try:
        override = _parser().parse_override(text)
    except (HydraException, ValueError) as error:
        reason = str(error).splitlines()[0]
        advice = "quote special characters: 'key=\"a value\"'"
        if "model.roles={" in text:
            advice = """give roles as a list: 'model.roles=["*.bias=vector"]'"""
        raise BadInput(f"{typed!r} cannot be read ({reason}); {advice}") from error
    if override.is_sweep_override():
        raise BadInput(f"{typed!r} is a sweep; a list is written [a,b]: 'key=[32,64]'")
    return override


_parser = cache(OverridesParser.create)
"""Made once: to make it takes longer than to parse a word."""


def _check_groups(parsed: Sequence[Override], config_dir: Path | None) -> None:
    """ConfigError for an option that its group does not have, and for Hydra's own settings."""
    options = groups(config_dir)
    for override in parsed:
        key, choice = str(override.key_or_group), override.value()
        if re.match(r"hydra[./]", key):
            instead = gone(f"{key.removeprefix('hydra/')}={choice}")
            raise ConfigError(key, choice, f"Hydra's own settings have no use here{instead}")
        if key not in options or override.is_delete():
            continue
        if override.is_add():
            raise BadInput(f"+{key}: the group is there already; write {key}={choice}")
        if choice not in options[key] and not (key in OVERLAYS and choice is None):
            went = gone(f"{key}={choice}")
            raise ConfigError(key, choice, f"one of {', '.join(options[key])}{went}")


def _compose(
    parsed: Sequence[Override], overrides: Sequence[str], config_dir: Path | None
) -> DictConfig:
    """Hydra's composition; an error names the key that it does not know and what was meant.

    For that the choices of groups are composed alone: they have all keys that there are.
    """
    names = groups(config_dir)
    pairs = list(zip(overrides, parsed, strict=True))
    if config_dir is None:
        # Hydra takes 0.1 s to read and merge the same files, and then sets values as here.
        chosen = [(text, o) for text, o in pairs if str(o.key_or_group) in names]
        if all(isinstance(o.value(), str) and _sets(o) for _, o in chosen):
            with suppress(*_CONFIG_ERRORS):  # which are Hydra's to tell
                config: DictConfig = pickle.loads(
                    _choices_composed(tuple(text for text, _ in chosen))
                )
                for _, override in pairs:
                    if str(override.key_or_group) in names:
                        continue
                    if not _sets(override):
                        break
                    added = override.is_force_add()
                    key, value = str(override.key_or_group), override.value()
                    OmegaConf.update(config, key, value, merge=True, force_add=added)
                else:
                    return config
    try:
        return _hydra_compose(overrides, config_dir)
    except _CONFIG_ERRORS as error:
        choices = [text for text, override in pairs if str(override.key_or_group) in names]
        try:
            plain = (
                _hydra_compose(choices, config_dir)
                if config_dir
                else pickle.loads(_choices_composed(tuple(choices)))
            )
            tree = cast(Tree, OmegaConf.to_container(plain))
        except _CONFIG_ERRORS:
            where = (Keyword("config_dir", str(config_dir)), ": ") if config_dir else ()
            raise BadInput(*where, _message(error)) from error
        raise _key_error(tree, parsed, names, error) from error


def _sets(override: Override) -> bool:
    return (override.type is OverrideType.CHANGE or override.is_force_add()) and not (
        override.package
    )


@cache
def _choices_composed(choices: tuple[str, ...]) -> bytes:
    """Hydra's choices of groups, pickled: to copy that takes a quarter of `deepcopy`'s time."""
    return pickle.dumps(_hydra_compose(choices, None))


def _hydra_compose(overrides: Sequence[str], config_dir: Path | None) -> DictConfig:
    quoted = str(config_dir and config_dir.resolve()).replace("\\", r"\\").replace("'", r"\'")
    search_path = [f"hydra.searchpath=['file://{quoted}']"] if config_dir else []
    # Hydra is a singleton of the process, and fails where it was initialized before: by us, or by a
    # program of its own that calls us.
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        return compose("config", [*search_path, *overrides])


def _resolve(config: DictConfig) -> Tree:
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        tree = cast(Tree, OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        raise BadInput(_message(error)) from error
    if missing:
        raise BadInput(f"{missing[0]} needs a value: add {missing[0]}=... to the command")
    rules = tree.get("parameterization")
    if isinstance(rules, dict) and "alignment" in rules and isinstance(rules.get("space"), dict):
        for axis in map(rules["space"].get, GAMMAS):
            for name, end in GAMMA_ENDS.items():
                if isinstance(axis, dict) and axis.get(name, end) is None:
                    axis[name] = 0 if rules["alignment"] is None else end
    # An overlay's file sets keys of the root, and leaves nothing under its own group's name.
    for group in OVERLAYS:
        if tree.pop(group, None):
            raise BadInput(
                f"the {group} sets nothing: its file must begin with the line '# @package _global_'"
            )
    return tree


def _message(error: Exception) -> str:
    # OmegaConf appends "full_key: ..., object_type=..." to what it says, Hydra a traceback.
    key = getattr(error, "full_key", None)
    text = " ".join(re.split(r"\n\n|\n +(?:full_key|object_type)", str(error))[0].split())
    text = re.sub(r'^\w+ raised while resolving interpolation: "?(.*?)"?$', r"\1", text)
    return f"{key}: {text}" if key else text


def _key_error(
    tree: Tree, parsed: Sequence[Override], names: Container[str], error: Exception
) -> BadInput:
    classes = {f"{group}.{TARGET}" for group, value in tree.items() if isinstance(value, Mapping)}
    keys = {*_dotted_keys(tree), *classes}
    user_model = any(override.key_or_group == f"model.{TARGET}" for override in parsed)
    for override in parsed:
        key = str(override.key_or_group)
        if key in names or override.is_add() or override.is_force_add():
            continue
        if not any(leaf == key or leaf.startswith(f"{key}.") for leaf in keys):
            allowed = _no_such_key(key, tree)
            if user_model and key.startswith("model."):
                allowed += f" An argument of a class of your own is added: +{key}=..."
            return ConfigError(key, override.value(), allowed)
    return BadInput(_message(error))


def _no_such_key(key: str, tree: Mapping[str, Any]) -> str:
    return f"there is no such key{gone(key) or f'; {suggest_key(key, tree)}'}"


def suggest_key(key: str, tree: Mapping[str, Any]) -> str:
    """What the unknown `key` may have meant: a near miss of its kind, or all that stands beside it.

    A dotted key is one that differs by a letter or two beside it, or the key of another group with
    the same last name, or else a near miss within its own group, where there is such a group. A
    plain one is compared with the groups of the `tree`, then with last names.
    """
    if key.rpartition(".")[2] in ("lr", "learning_rate", "eta"):
        space = "parameterization.space.eta={low:-12,high:-5}"
        return f"the learning rate is eta, which is searched; its range, in log2: {space}"
    dotted = {name for name in _dotted_keys(tree) if "." in name}
    keys = dotted if "." in key else set(tree)
    group, (place, _, last) = key.partition(".")[0], key.rpartition(".")
    # modle.width has no siblings; model.widht has model.width.
    siblings = {name for name in dotted if place and name.rpartition(".")[0] == place}
    twins = get_close_matches(last, [name.rpartition(".")[2] for name in siblings], cutoff=0.8)
    if twins:
        return f"did you mean {place}.{twins[0]}?"
    # model.steps and steps are train.steps.
    near = get_close_matches(key, keys, cutoff=0.7)
    lasts = {name.rpartition(".")[2] for name in dotted}
    alike = get_close_matches(last, lasts, n=1, cutoff=1 if "." in key else 0.8)
    namesakes = {name for name in dotted if name.rpartition(".")[2] in alike}
    if namesakes and ("." in key or not near):
        return f"did you mean {' or '.join(sorted(namesakes)[:4])}?"
    if isinstance(tree.get(group), Mapping):
        keys = {name for name in keys if name.startswith(f"{group}.")}
    return suggest(key, keys)


def _dotted_keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _dotted_keys(value, f"{name}.")
        elif key != TARGET:
            yield name
