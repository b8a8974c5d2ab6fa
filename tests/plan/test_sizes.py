"""Which models a comparison builds, under the names that their author gave to sizes."""

from __future__ import annotations

from sweeper.plan.plan_for import SizePair
from sweeper.stats.ladder import Size

HEADS = SizePair.of(
    {"vocab": 50, "n_head": 4, "n_embd": 64, "n_layer": 2},
    {"vocab": 50, "n_head": 16, "n_embd": 256, "n_layer": 8},
)
"""The vocabulary, which stays, and the number of heads come first."""
NAMED = SizePair.of(
    {"n_head": 4, "width": 64, "layers": [2, 2]}, {"n_head": 12, "width": 192, "layers": [2, 6]}
)


def test_one_size_stands_for_all() -> None:
    assert (HEADS.width, HEADS.depth) == ("n_embd", "n_layer")
    assert (NAMED.width, NAMED.depth) == ("width", None)
    assert HEADS.size(HEADS.target) == Size(width=256, depth=8)
    same = {"inner": 8, "n_embd": 4}
    assert SizePair.of(same, same).width == "n_embd"
    assert SizePair.of(same, {"inner": 16, "n_embd": 4}).width == "inner"
    assert NAMED.size(NAMED.target) == Size(width=192, depth=1)


def test_the_base_and_the_target_are_as_given() -> None:
    assert NAMED.at(64, 1) == NAMED.base
    pair = SizePair.of({"width": 8, "depth": 2}, {"width": 16, "depth": 2})
    assert pair.at(16, 2) == pair.target


def test_wider_models_double_all_that_grows_and_deeper_ones_have_a_layer_more() -> None:
    pair = SizePair.of(
        {"width": 64, "n_head": 4, "groups": 2, "dims": [8, 16], "n_layer": 2},
        {"width": 192, "n_head": 12, "groups": 2, "dims": [24, 48], "n_layer": 8},
    )
    wider = {"width": 128, "n_head": 8, "groups": 2, "dims": [16, 32], "n_layer": 2}
    assert pair.at(128, 2) == wider
    assert pair.at(64, 3) == {**pair.base, "n_layer": 3}
    assert pair.at(192, 8) == pair.target
