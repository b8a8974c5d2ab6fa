"""Records: dataclasses that are made from configs and from JSON by their annotations, and back.

One walk over the annotations serves both. A config's values come from a user: numbers are finite,
a key that there is not has a likely other one. A file's come from `to_json`: what JSON cannot hold
is there as text, and what is read is exactly what was written.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import re
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, TypeVar

from sweeper.errors import BadInput, ConfigError, MissingValue, SweeperError, suggest

T = TypeVar("T")
Reader = Callable[[str, Any], Any]
"""Gives a value, that of the key named first, the type that an annotation wants; or ConfigError."""
Build = Callable[[Mapping[str, Any]], Any]
"""Makes a record of what JSON has; see `from_json`."""

UNKNOWN_KEY = "there is no such key"
WRITTEN_IF_SET: Mapping[str, Any] = types.MappingProxyType({"written_if_set": True})
"""`field(metadata=WRITTEN_IF_SET)`: JSON names the field only where it is not its default."""
NOT_WRITTEN: Mapping[str, Any] = types.MappingProxyType({"not_written": True})
"""`field(metadata=NOT_WRITTEN, compare=False)`: JSON lacks the field, which has a default."""
NAMES_CLASS: Mapping[str, Any] = types.MappingProxyType({"names_class": True})
"""`field(metadata=NAMES_CLASS)`: the value may be of any class, which JSON names as configs do."""
_NOT_FINITE = {text: float(text) for text in ("inf", "-inf", "nan")}
_SEQUENCES: Mapping[Any, Callable[..., Any]] = {list: list, Sequence: tuple}
_MAPPINGS = (dict, Mapping)
_TYPE_NAMES: dict[Any, str] = {
    int: "a whole number of at most 63 bits",
    float: "a finite number",
    str: "a text",
    bool: "true or false",
    Path: "a path",
    type(None): "null",
}


def as_number(value: object) -> object:
    """The number that a value or a text is, whole ones as int: 1e-3 is 0.001; else the value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return value
    whole = math.isfinite(number) and number == int(number) and abs(number) < 2**53
    return int(number) if whole else number if math.isfinite(number) else value


class RecordError(ValueError):
    """A record in a file that cannot be read: `key` is the path of the field within it."""

    def __init__(self, error: ConfigError) -> None:
        self.key, self.value, self.allowed = error.key, error.value, error.allowed
        text = str(error) if error.key else f"it is {error.value!r}, not {error.allowed}"
        super().__init__(text if len(text) <= 300 else f"{text[:299]}…")


def to_json(value: Any) -> Any:
    """`value` as strict JSON: records by their fields, infinities and NaN as text.

    A class that is written otherwise, and never read, has a method `to_json`.
    What is no JSON and no record stays as it is, for json.dumps to refuse.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    if written := getattr(value, "to_json", None):
        return written()
    # For people and other programs; `from_json` passes over them, as they follow from the fields.
    record = {name: to_json(getattr(value, name)) for name in getattr(value, "JSON_SHOWS", ())}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.metadata.get("not_written"):
            continue
        if not field.metadata.get("written_if_set") or item != _default(field):
            record[field.name] = to_json(item)
        if field.metadata.get("names_class"):
            if not dataclasses.is_dataclass(item):
                kind = type(item).__name__
                raise TypeError(f"{kind} is no dataclass: it cannot go to other processes")
            target = f"{type(item).__module__}.{type(item).__qualname__}"
            record[field.name] = {"_target_": target, **record[field.name]}
    return record


def from_json(kind: type[T], record: object) -> T:
    """Inverse of `to_json` for a record of this kind; RecordError names the field at fault.

    A class may have `JSON_SHOWS`, names of properties that JSON has beside the fields and that
    reading passes over, and a class method `read_json(record, build)`, which returns what
    `build(record)` makes, or raises ValueError for a record that contradicts itself.
    """
    try:
        built: T = _reader(typing.cast(Any, kind), True)("", record)
    except ConfigError as error:
        raise RecordError(error) from error
    except BadInput as error:
        raise ValueError(str(error)) from error
    return built


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The range of a number, in an annotation: `steps: Annotated[int, Bounds(least=1)]`.

    `above` and `below` are the ends that are not in the range. `allowed` says it in other words.
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    allowed: str = ""

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float):
            return True
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        ends = {"at least": self.least, "above": self.above}
        ends |= {"at most": self.most, "below": self.below}
        return self.allowed or ", ".join(
            f"{word} {end:g}" for word, end in ends.items() if math.isfinite(end)
        )


AT_LEAST_ONE = Bounds(least=1, allowed="a whole number, at least 1")
AtLeastOne = Annotated[int, AT_LEAST_ONE]
Seconds = Annotated[float, Bounds(above=0, allowed="a positive number of seconds")]
Positive = Annotated[float, Bounds(above=0, allowed="a positive number")]
NotNegative = Annotated[float, Bounds(least=0)]


def check_bounds(record: Any) -> None:
    """ConfigError for a number in a record's fields, or in a tuple there, out of its `Bounds`.

    For `__post_init__`: what Python code makes keeps to the ranges that configs keep to.
    """
    for name, bounds, reader in _bounds(typing.cast(Any, type(record))):
        value = getattr(record, name)
        several = isinstance(value, tuple)
        for i, item in enumerate(value if several else (value,)):
            key = f"{name}[{i}]" if several else name
            if item not in bounds:
                raise ConfigError(key, item, str(bounds))
            if item is None or isinstance(item, str):
                reader(key, item)


class Bounded:
    """A base class of records that have no other checks than `check_bounds`."""

    def __post_init__(self) -> None:
        check_bounds(self)


@cache
def _bounds(kind: type) -> list[tuple[str, Bounds, Reader]]:
    numbers = {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        for name, hint in _hints(kind).items()
    }
    return [
        (name, bounds, _reader(hint, False))
        for name, hint in numbers.items()
        for bounds in getattr(hint, "__metadata__", ())
        if isinstance(bounds, Bounds)
    ]


def call_checked(
    target: Callable[..., Any], config: Mapping[str, Any], offered: Mapping[str, Any]
) -> Any:
    """`target(**given)` with those of `offered` that it takes, each of `given` checked.

    ConfigError names the key that is unknown, missing, of the wrong type or refused by the target.
    """
    return _call(target, config, offered, False)


def check_type(key: str, value: Any, hint: Any) -> Any:
    """`value` as the annotation `hint` wants it, records and tuples built from plain JSON.

    ConfigError when no member of the hint takes it. Hints that are not understood pass.
    """
    return _reader(hint, False)(key, value)


@cache
def arguments(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The target's arguments; ConfigError when they cannot be inspected."""
    try:
        return inspect.signature(target).parameters
    except ValueError as error:
        raise ConfigError("_target_", str(target), "a class that tells its arguments") from error


def import_target(target: object, key: str = "_target_") -> Callable[..., Any]:
    """The class or function that the dotted path `target` names; ConfigError when there is none."""
    if not isinstance(target, str) or "." not in target:
        raise ConfigError(key, target, "a dotted path such as package.module.Class")
    module_name, _, name = target.rpartition(".")
    # `train.py` would import, and so run, the script `train` to look for its attribute `py`.
    if name == "py" or "/" in target:
        file = re.sub(r"\.py$", "", target).rpartition("/")[2]
        example = f"{file}.Net" if file.isidentifier() else "package.module.Class"
        raise ConfigError(key, target, f"a dotted path such as {example}, and no file")
    with user_code(key, target, "a class in a module that can be imported; see PYTHONPATH"):
        module = importlib.import_module(module_name)
    attribute = getattr(module, name, None)
    if attribute is None and module_name == "__main__":
        allowed = (
            "what this process has: it was defined in a notebook or a script. Define it there "
            "anew and call sweeper from there, or put it into a module of its own"
        )
        raise ConfigError(key, target, allowed)
    if not callable(attribute):
        raise ConfigError(key, target, f"a class or a function of the module {module_name}")
    return typing.cast(Callable[..., Any], attribute)


@contextmanager
def user_code(key: str, target: object, allowed: str) -> Iterator[None]:
    """Turn whatever a user's own code raises into a ConfigError that says what and where."""
    try:
        yield
    except SweeperError:
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, ImportError) else f", at {last.filename}:{last.lineno}"
        first = next(iter(str(error).splitlines()), "")
        reason = f"{type(error).__name__}: {first[:300]}{place}"
        if isinstance(error, SystemExit):
            allowed += "; what a script runs belongs under if __name__ == '__main__':"
        raise ConfigError(key, target, f"{allowed} ({reason})") from error


def _call(
    target: Callable[..., Any], config: Mapping[str, Any], offered: Mapping[str, Any], file: bool
) -> Any:
    takes = _takes(target, file)
    # What the program offers is right by construction; what was given is checked.
    values = {n: v for n, v in offered.items() if n in takes.names or takes.others}
    for name, value in config.items():
        if name in offered and name in values:
            raise ConfigError(name, value, "it follows from other settings and cannot be given")
        if reader := takes.readers.get(name):
            values[name] = reader(name, value)
        elif name in takes.names or takes.others:
            values[name] = value
        elif name not in takes.properties:  # those may stand in a file, and are made anew
            choices = takes.names - offered.keys()
            raise ConfigError(name, value, f"{UNKNOWN_KEY}; {suggest(name, choices)}")
    for name in takes.required:
        if name not in values:
            raise MissingValue(name)
    return target(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Takes:
    """The names that a target takes, with `others` any, and those that JSON merely shows."""

    names: frozenset[str]
    required: list[str]
    others: bool
    readers: dict[str, Reader]
    properties: tuple[str, ...]


@cache
def _takes(target: Callable[..., Any], file: bool) -> _Takes:
    parameters, readers = arguments(target), {}
    variadic = {
        n: p.kind for n, p in parameters.items() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    names = [name for name in parameters if name not in variadic]
    if file and dataclasses.is_dataclass(target):
        unwritten = {f.name for f in dataclasses.fields(target) if f.metadata.get("not_written")}
        names = [name for name in names if name not in unwritten]
    for name, hint in _hints(target).items():
        if name in names and _hashable(hint):
            readers[name] = _reader(hint, file)
    if file and dataclasses.is_dataclass(target):
        for field in dataclasses.fields(target):
            if field.metadata.get("names_class"):
                readers[field.name] = _any_class
    return _Takes(
        names=frozenset(names),
        required=[n for n in names if parameters[n].default is inspect.Parameter.empty],
        others=inspect.Parameter.VAR_KEYWORD in variadic.values(),
        readers=readers,
        properties=getattr(target, "JSON_SHOWS", ()) if file else (),
    )


def _hashable(hint: Any) -> bool:
    """Not so is Literal[[1, 2]], which a user may write: such arguments are not checked."""
    try:
        hash(hint)
    except TypeError:
        return False
    return True


def _any_class(key: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, "a mapping with _target_")
    kind: Any = import_target(value.get("_target_"), f"{key}._target_")
    return _reader(kind, True)(key, {n: v for n, v in value.items() if n != "_target_"})


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Type annotations of the target's arguments; empty when they cannot be evaluated.

    A dataclass inherits fields from other modules, whose annotations mean something only there:
    those of the class are evaluated each in its own module, those of `__init__` are not.
    """
    sources = (target, target.__init__) if inspect.isclass(target) else (target,)
    hints: dict[str, Any] = {}
    for source in sources:
        with suppress(NameError, TypeError):
            hints |= typing.get_type_hints(source, include_extras=True)
    return hints


@cache
def _reader(hint: Any, file: bool) -> Reader:
    # A reader is made once for an annotation (cache), and called for every value: a study has
    # thousands of records of a few kinds.
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        inner, bounds = _reader(members[0], file), [m for m in members if isinstance(m, Bounds)]

        def bounded(key: str, value: Any) -> Any:
            number = inner(key, value)
            for each in bounds:
                if number not in each:
                    raise ConfigError(key, number, str(each))
            return number

        return bounded
    if origin in (typing.Union, types.UnionType):
        return _union(members, file)
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint), file)
    if origin is tuple:
        return _tuple(hint, members, file)
    if file and members and origin in _SEQUENCES:
        items = _tuple(hint, (members[0], ...), file)
        return lambda key, value: _SEQUENCES[origin](items(key, value))
    if file and members and origin in _MAPPINGS:
        # JSON has texts alone as names: a number is written as one.
        name = _number_name if members[0] is float else _reader(members[0], file)
        return _mapping(name, _reader(members[1], file))
    if file and isinstance(hint, type) and issubclass(hint, Enum):
        return lambda key, value: _enum(hint, key, value)

    def plain(key: str, value: Any) -> Any:
        if _accepts(hint, value, file):
            return _converted(hint, value, file)
        raise ConfigError(key, value, _describe(hint))

    return plain


def _accepts(option: Any, value: Any, file: bool) -> bool:
    """Whether a value is of a hint that has no parts; one that is not understood takes anything."""
    if typing.get_origin(option) is Literal:
        return bool(value in typing.get_args(option))
    if option is int:
        # bool is a subclass of int; 63 bits are what a tensor and a database hold.
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and (file or abs(value) < 2**63)
    if option is float:
        # A whole number beyond 2^1023 may be no float at all.
        if file and isinstance(value, str):
            return value in _NOT_FINITE
        if isinstance(value, int) and not isinstance(value, bool):
            return abs(value) < (2**1023 if file else 2**63)
        return isinstance(value, float) and (file or math.isfinite(value))
    if option in (str, bool):
        return isinstance(value, option)
    if option in (type(None), None):
        return value is None
    if option is Path:
        return isinstance(value, str) or (not file and isinstance(value, Path))
    return option not in (list, dict) or type(value) is option


def _converted(option: Any, value: Any, file: bool) -> Any:
    """An accepted value with the type of its hint.

    A whole number in a file stays one where a float is wanted: it was one when it was written, and
    a trial's key is a digest of the text.
    """
    if option is float:
        return _NOT_FINITE[value] if isinstance(value, str) else value if file else float(value)
    return Path(value) if option is Path else value


def _record(kind: type, file: bool) -> Reader:
    # Of files alone: what a record must not contradict (keys, versions) no config has.
    special = getattr(kind, "read_json", None) if file else None

    def build(value: Mapping[str, Any]) -> Any:
        return _call(kind, value, {}, file)

    def read(key: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ConfigError(key, value, _describe(kind))
        try:
            return special(value, build) if special else build(value)
        except ConfigError as error:
            raise error.below(key) from error

    return read


def _tuple(hint: Any, members: tuple[Any, ...], file: bool) -> Reader:
    repeated = len(members) == 2 and members[1] is Ellipsis
    readers = [_reader(member, file) for member in (members[:1] if repeated else members)]

    def read(key: str, value: Any) -> Any:
        if not isinstance(value, list | tuple) or not (repeated or len(value) == len(readers)):
            raise ConfigError(key, value, _describe(hint))
        if file and members[0] is float and set(map(type, value)) <= {float}:
            return tuple(value)  # curves, most of what a study's files hold
        each = readers * len(value) if repeated else readers
        pairs = zip(each, value, strict=True)
        return tuple(reader(f"{key}[{i}]", item) for i, (reader, item) in enumerate(pairs))

    return read


def _mapping(name: Reader, item: Reader) -> Reader:
    def read(key: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ConfigError(key, value, "a mapping")
        return {name(key, n): item(f"{key}.{n}" if key else n, v) for n, v in value.items()}

    return read


def _number_name(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(key, value, "numbers as names") from error


def _enum(kind: Any, key: str, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        raise ConfigError(key, value, ", ".join(str(each.value) for each in kind)) from error


def _union(members: tuple[Any, ...], file: bool) -> Reader:
    readers = {member: _reader(member, file) for member in members}

    def read(key: str, value: Any) -> Any:
        # A mapping can only be meant for a record: its error names the field, where trying all
        # members would end in "a mapping with ... or null".
        errors = []
        for option, reader in readers.items():
            if _has_parts(option, value):
                try:
                    return reader(key, value)
                except ConfigError as error:  # of several records, the one that has these fields
                    errors.append(error)
        if errors:
            raise errors[0]
        # In their order, but for whole numbers: `float | int` leaves them alone.
        for option in sorted(readers, key=lambda option: option is float):
            with suppress(ConfigError):
                return readers[option](key, value)
        raise ConfigError(key, value, " or ".join(map(_describe, members)))

    return read


def _has_parts(option: Any, value: Any) -> bool:
    """Whether a value is to be taken apart as this option says; where it is, no other may."""
    if dataclasses.is_dataclass(option):
        return isinstance(value, Mapping)
    origin = typing.get_origin(option)
    if origin is tuple or origin in _SEQUENCES:
        return isinstance(value, list | tuple)
    if origin in _MAPPINGS:
        return isinstance(value, Mapping)
    return option is Path and isinstance(value, str)


def _describe(option: Any) -> str:
    origin, members = typing.get_origin(option), typing.get_args(option)
    if origin is Annotated:
        return _describe(members[0])
    if origin is Literal:
        return ", ".join(str(value) for value in members)
    if origin is tuple:
        return f"a list, each {_describe(members[0])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_describe, members))
    if dataclasses.is_dataclass(option):
        fields = ", ".join(field.name for field in dataclasses.fields(option))
        return f"a mapping with {fields}"
    return _TYPE_NAMES.get(option, str(option))
