import dataclasses
import importlib
import json
import math
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sweeper
from sweeper import records, registry
from sweeper.errors import BadInput, ConfigError
from sweeper.launch.job import Task
from sweeper.records import (
    NAMES_CLASS,
    WRITTEN_IF_SET,
    Bounded,
    Bounds,
    RecordError,
    call_checked,
    check_type,
    from_json,
    import_target,
    to_json,
    user_code,
)
from sweeper.registry import build_plugin
from sweeper.scaling.spec import Role
from sweeper.search.line_search import LearningRateLine
from tests.golden import Golden
from tests.refusals import raises_config_error


@dataclass(frozen=True, kw_only=True)
class Rule:
    step: float = 1.0
    points: int = 9

    def __post_init__(self) -> None:
        if self.points < 1:
            raise ConfigError("points", self.points, "at least 1")


@dataclass(frozen=True, kw_only=True)
class Plugin:
    size: int
    rule: Rule = field(default_factory=Rule)
    names: tuple[str, ...] | None = None
    mode: Literal["auto", "on"] | int = "auto"


def takes(*, size: int, classes: int = 0, **others: Any) -> tuple[int, int, dict[str, Any]]:
    return size, classes, others


@dataclass(frozen=True, kw_only=True)
class ByNumber:
    losses: Mapping[float, tuple[float, ...]] = field(default_factory=dict)


def test_numbers_as_names_are_read_back() -> None:
    made = ByNumber(losses={-1.5: (3.0, math.inf), 2.0: (2.5,), 1e-7: ()})
    assert from_json(ByNumber, json.loads(json.dumps(to_json(made)))) == made
    with pytest.raises(RecordError) as caught:
        from_json(ByNumber, {"losses": {"much": [1.0]}})
    assert caught.value.key == "losses"


HERE = f"{__name__}."


class TestLoad:
    @pytest.mark.parametrize(
        "target",
        [
            *(None, "", "Plugin", ["a.b"]),
            *("math.nope", "math.pi", "sweeper.models"),
            *("nope.Plugin", "math.nope.Plugin", "..Plugin", "a b.Plugin"),
        ],
    )
    def test_refuses_what_cannot_be_found_or_called(self, target: object, golden: Golden) -> None:
        with raises_config_error("_target_", target, golden):
            import_target(target)

    @pytest.mark.parametrize("text", ["1 / 0", "x = ("])
    def test_a_module_that_raises_is_one_message(
        self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "plug_that_raises.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        with raises_config_error("_target_", "plug_that_raises.Plugin"):
            import_target("plug_that_raises.Plugin")


class TestBuild:
    def test_makes_records_and_tuples_from_plain_values(self) -> None:
        given = {"size": 3, "rule": {"step": 2}, "names": ["a", "b"], "mode": 4}
        plugin = build_plugin({"_target_": f"{HERE}Plugin", **given})
        assert plugin == Plugin(size=3, rule=Rule(step=2.0), names=("a", "b"), mode=4)
        assert isinstance(plugin.rule.step, float)

    @pytest.mark.parametrize(
        "config",
        [
            {},
            {"size": "3"},
            {"size": True},
            {"size": 2**63},
            {"size": 3, "sise": 1},
            {"size": 3, "rule": 7},
            {"size": 3, "rule": {"stp": 1}},
            {"size": 3, "rule": {"points": 0}},
            {"size": 3, "rule": {"step": float("nan")}},
            {"size": 3, "rule": {"step": 10**400}},
            {"size": 3, "names": "a"},
            {"size": 3, "names": ["a", 1]},
            {"size": 3, "mode": "off"},
        ],
    )
    def test_names_the_key_the_value_and_what_is_allowed(
        self, config: Mapping[str, Any], golden: Golden
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            build_plugin({"_target_": f"{HERE}Plugin", **config})
        golden.says(caught)

    def test_offers_only_what_the_target_takes(self) -> None:
        offered = {"size": 5, "nope": 1}
        assert build_plugin({"_target_": f"{HERE}Plugin"}, offered) == Plugin(size=5)
        taken = build_plugin({"_target_": f"{HERE}takes", "other": 2}, offered)
        assert taken == (5, 0, {"nope": 1, "other": 2})

    def test_what_is_offered_cannot_be_given(self) -> None:
        with raises_config_error("classes", 3):
            build_plugin({"_target_": f"{HERE}takes", "size": 1, "classes": 3}, {"classes": 256})

    @pytest.mark.parametrize("target", ["builtins.dict", "builtins.int"])
    def test_refuses_a_class_that_hides_its_arguments(self, target: str, golden: Golden) -> None:
        with raises_config_error("_target_", golden=golden):
            build_plugin({"_target_": target})

    def test_an_error_that_nobody_foresaw_passes(self) -> None:
        with pytest.raises(ZeroDivisionError):
            call_checked(lambda: 1 / 0, {}, {})


class TestForeign:
    def test_says_what_and_where(self) -> None:
        def fails() -> None:
            raise RuntimeError("no room\nand a tail of internals")

        with (
            pytest.raises(ConfigError) as error,
            user_code("_target_", "a.B", "a class that can be built"),
        ):
            fails()
        assert str(error.value).startswith(
            "_target_='a.B' is refused: a class that can be built (RuntimeError: no room, at "
        )
        assert "tail" not in str(error.value) and __file__ in str(error.value)

    def test_our_own_errors_pass(self, golden: Golden) -> None:
        with pytest.raises(BadInput) as caught, user_code("_target_", "a.B", "a class"):
            raise BadInput("mine")
        golden.says(caught)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, 1.0),
        (1, int | float, 1),
        (None, int | None, None),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([], tuple[int, ...] | None, ()),
        ({"a": 1}, dict[str, int], {"a": 1}),
        ("x", Any, "x"),
        ("auto", int | Literal["auto"], "auto"),
        ({"points": 2}, Rule, Rule(points=2)),
    ],
)
def test_values_become_what_the_annotation_says(value: Any, hint: Any, expected: Any) -> None:
    made = check_type("key", value, hint)
    assert made == expected and type(made) is type(expected)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    role: Role
    value: float
    where: Path | None = None
    pair: tuple[int, str] = (1, "a")

    JSON_SHOWS: ClassVar[tuple[str, ...]] = ("double",)

    @property
    def double(self) -> float:
        return 2 * self.value


@dataclass(frozen=True, kw_only=True)
class Other:
    name: str


@dataclass(frozen=True, kw_only=True)
class Tree:
    leaves: tuple[Leaf, ...]
    by_name: Mapping[str, Leaf]
    either: Leaf | Other
    count: Annotated[int, Bounds(least=1)]
    law: str = field(default="", metadata=WRITTEN_IF_SET)
    plugin: Any = field(default_factory=lambda: Other(name="x"), metadata=NAMES_CLASS)


LEAF = Leaf(role=Role.HIDDEN, value=math.inf, where=Path("a/b"), pair=(2, "b"))
TREE = Tree(leaves=(LEAF,), by_name={"n": LEAF}, either=Other(name="y"), count=2)


def test_a_record_is_strict_json_and_comes_back_as_it_was() -> None:
    record = json.loads(json.dumps(to_json(TREE), allow_nan=False))
    leaf = {"role": "hidden", "value": "inf", "where": "a/b", "pair": [2, "b"], "double": "inf"}
    assert record["leaves"] == [leaf] and "law" not in record
    assert record["plugin"] == {"_target_": f"{HERE}Other", "name": "x"}
    assert from_json(Tree, record) == TREE
    assert from_json(list[Leaf], [leaf, leaf]) == [LEAF, LEAF]
    with_law = replace(TREE, law="a", either=LEAF)
    assert from_json(Tree, to_json(with_law)) == with_law


@given(st.floats() | st.integers(-(2**70), 2**70))
def test_numbers_come_back_as_they_were(value: float) -> None:
    text = json.dumps(to_json(replace(LEAF, value=value)), allow_nan=False)
    assert repr(from_json(Leaf, json.loads(text)).value) == repr(value)


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        (("leaves", 0, "value"), "big", "leaves[0].value"),
        (("leaves", 0, "role"), "none", "leaves[0].role"),
        (("leaves", 0, "pair"), [1], "leaves[0].pair"),
        (("leaves", 0, "pair"), [1, 2], "leaves[0].pair[1]"),
        (("leaves", 0, "new"), 1, "leaves[0].new"),
        (("by_name", "n", "where"), 3, "by_name.n.where"),
        (("leaves",), {}, "leaves"),
        (("either",), 3, "either"),
        (("count",), 0, "count"),
        (("count",), 2.0, "count"),
        (("plugin", "_target_"), "nowhere", "plugin._target_"),
        (("plugin", "name"), 1, "plugin.name"),
    ],
)
def test_what_is_damaged_is_named_by_its_path(path: Any, value: Any, key: str) -> None:
    record = to_json(TREE)
    inner = record
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    with pytest.raises(RecordError) as caught:
        from_json(Tree, record)
    assert caught.value.key == key


def test_a_field_that_is_missing_is_named_and_a_default_is_not_needed() -> None:
    record = to_json(TREE)
    del record["leaves"][0]["where"]
    assert from_json(Tree, record).leaves[0].where is None
    del record["leaves"][0]["role"]
    with pytest.raises(RecordError) as caught:
        from_json(Tree, record)
    assert caught.value.key == "leaves[0].role"


def test_what_is_no_record_cannot_leave_the_process() -> None:
    with pytest.raises(TypeError, match="is no dataclass"):
        to_json(replace(TREE, plugin=object()))


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (Bounds(least=1), (1, 7), (0, math.nan, math.inf)),
        (Bounds(above=0, most=1), (0.1, 1), (0, 1.1)),
        (Bounds(least=0, below=1), (0, 0.9), (-0.1, 1)),
    ],
)
def test_bounds_name_what_is_allowed(
    bounds: Bounds, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    assert all(value in bounds for value in inside)
    for value in outside:
        assert value not in bounds
        with pytest.raises(ConfigError) as caught:
            check_type("steps", float(value), Annotated[float, bounds])
        assert caught.value.key == "steps"


@dataclass(frozen=True, kw_only=True)
class DerivedLine(LearningRateLine):
    """A user's class: the inherited annotations are names of another module."""

    extra: int = 0


def test_inherited_fields_are_checked_as_they_are_where_they_were_written() -> None:
    target = f"{__name__}.DerivedLine"
    made = build_plugin({"_target_": target, "line": {"points": 7}, "extra": 1})
    assert made.line.points == 7
    with raises_config_error("line.points", "many"):
        build_plugin({"_target_": target, "line": {"points": "many"}})


def modules() -> list[ModuleType]:
    """All of sweeper's modules that can be imported here."""
    names = [module.name for module in pkgutil.walk_packages(sweeper.__path__, "sweeper.")]
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def read_kinds() -> set[type]:
    """Every record class that sweeper reads from files or configs."""
    plugins = {target for group in registry.plugins().values() for target in group.values()}
    kinds = {import_target(target) for target in plugins if target.startswith("sweeper.")}
    for module in modules():
        names = re.findall(r"from_json\((\w+),", Path(str(module.__file__)).read_text())
        kinds |= {getattr(module, name) for name in names if hasattr(module, name)}
        kinds |= {
            kind
            for kind in vars(module).values()
            if isinstance(kind, type) and {Bounded, Task} & {*kind.__mro__}
        }
    return {kind for kind in kinds if dataclasses.is_dataclass(kind)}


def parts(hint: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(hint):
        yield cast(type, hint)
    for member in get_args(hint):
        yield from parts(member)


def test_every_field_that_is_read_has_an_annotation_that_means_something_when_it_is_read() -> None:
    """A type that is imported under TYPE_CHECKING alone would leave a plain mapping there."""
    waiting, seen, unknown = list(read_kinds()), set[type](), []
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        hints = records._hints(kind)
        names = {field.name for field in dataclasses.fields(kind) if field.init}
        unknown += [f"{kind.__qualname__}.{name}" for name in sorted(names - hints.keys())]
        waiting += [part for hint in hints.values() for part in parts(hint)]
    assert not unknown and len(seen) > 100
