from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.config.settings import read_space
from sweeper.trial import Axis, Choice, in_use, named, split
from tests.refusals import raises_config_error

OWN = "sweeper.scaling.relative.ScaledByUser"
ETA = {"low": -12, "high": -5, "default": -8}
CHOICES = st.text(max_size=3) | st.integers(-2, 2) | st.booleans() | st.floats(-1, 1)


def read(**axes: Any) -> Axis:
    space = {"eta": ETA} | axes
    return list(read_space({"_target_": OWN, "space": space}, ()).values())[-1]


def test_choices_are_places_and_the_first_is_the_default() -> None:
    kind = read(kind={"choices": ["adamw", "lion", 0.5]})
    assert (kind.low, kind.high, kind.default) == (0, 2, 0)
    assert kind.grid(16) == [0, 1, 2]
    assert read(kind={"choices": ["a", "b"], "default": "b"}).default == 1


@given(st.lists(CHOICES, min_size=1, unique_by=lambda value: (type(value), value)), st.data())
def test_whatever_is_chosen_is_what_is_used(choices: list[Choice], data: st.DataObject) -> None:
    axis = read(kind={"choices": choices})
    place = data.draw(st.sampled_from(axis.grid(1)))
    space = {"eta": Axis(**ETA), "kind": axis}
    point = {"eta": -3.0, "kind": place}
    expected = choices[int(place)]
    for found in (in_use(space, point), named(space, point), split(space, point)[1]):
        assert found["kind"] == expected and type(found["kind"]) is type(expected)
    assert split(space, point)[0] == {"eta": -3.0}
    assert in_use(space, point)["eta"] == 0.125 and named(space, point)["eta"] == -3.0


@pytest.mark.parametrize(
    ("axis", "key"),
    [
        *(
            ({"choices": choices}, "kind.choices")
            for choices in ("adamw", [], ["a", None], ["a", ["b"]], [1.0, float("inf")], ["a", "a"])
        ),
        ({"choices": ["a", "b"], "default": "c"}, "kind.default"),
        ({"choices": [0, 1], "default": False}, "kind.default"),
        ({"choices": ["a", "b"], "low": 0}, "kind.low"),
    ],
)
def test_what_is_no_list_of_choices_is_refused(axis: dict[str, Any], key: str) -> None:
    with raises_config_error(f"space.{key}"):
        read(kind=axis)


def test_the_learning_rate_and_a_parameterization_s_hyperparameters_have_ranges() -> None:
    with raises_config_error("space.eta.choices", [0.1, 0.2]):
        read(eta={"choices": [0.1, 0.2]})
    parameterization = {
        "_target_": "sweeper.scaling.relative.MuP",
        "space": {"eta": {"choices": [1]}},
    }
    with raises_config_error("space.eta.choices", [1]):
        read_space(parameterization, ())
