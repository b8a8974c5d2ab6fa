import dataclasses
import types
import typing

import pytest

from sweeper.config.completion import values_of
from sweeper.records import import_target
from sweeper.registry import plugins
from sweeper.trial import TrainSettings

TARGETS = sorted({path for classes in plugins().values() for path in classes.values()})


def literals(annotation: object) -> set[str]:
    """The values that a resolved annotation names, as they are typed."""
    if annotation is bool:
        return {"true", "false"}
    if typing.get_origin(annotation) is typing.Literal:
        return set(map(str, typing.get_args(annotation)))
    if annotation is type(None):
        return {"null"}
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return {word for one in typing.get_args(annotation) for word in literals(one)}
    return set()


@pytest.mark.parametrize("target", TARGETS)
def test_the_source_says_what_the_class_says(target: str) -> None:
    found = import_target(target)
    if not dataclasses.is_dataclass(found):
        pytest.skip("a model: its arguments are those of a function")
    hints = typing.get_type_hints(found)
    wanted = {field.name: literals(hints[field.name]) for field in dataclasses.fields(found)}
    wanted = {name: words for name, words in wanted.items() if words - {"null"}}
    assert {name: set(words) for name, words in values_of(target).items()} == wanted


def test_a_section_and_what_is_not_ours() -> None:
    found = values_of(f"{TrainSettings.__module__}.TrainSettings")
    assert found["objective"] == ["training", "heldout"]
    assert values_of("os.path.join") == values_of("sweeper.nope.X") == values_of("") == {}
