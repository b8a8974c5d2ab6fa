"""Which models a comparison builds, under the names that their author gave to sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import sweeper
from sweeper.classifier.classify import widths
from sweeper.errors import BadInput
from sweeper.plan.plan_for import SizePair
from sweeper.scaling.spec import Role
from sweeper.stats.ladder import Size
from tests.refusals import raises_config_error

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


def test_wider_models_double_all_that_grows_and_deeper_ones_have_a_layer_more() -> None:
    pair = SizePair.of(
        {"width": 64, "n_head": 4, "groups": 2, "dims": [8, 16], "n_layer": 2},
        {"width": 192, "n_head": 12, "groups": 2, "dims": [24, 48], "n_layer": 8},
    )
    wider = {"width": 128, "n_head": 8, "groups": 2, "dims": [16, 32], "n_layer": 2}
    assert pair.at(128, 2) == wider
    assert pair.at(64, 5) == {**pair.base, "n_layer": 5}
    assert pair.at(192, 8) == pair.target and NAMED.at(64, 1) == NAMED.base


def test_of_sizes_that_all_stay_those_double_whose_names_say_that_they_grow() -> None:
    """Had an FFN's inner width stayed, its matrices would be projections up and down."""
    same = {"hidden_size": 64, "inner": [8, 9], "heads": 4, "head_dim": 16, "rank": 3, "n_layer": 2}
    pair = SizePair.of(same, {**same, "n_layer": 8})
    assert pair.at(128, 2) == {**same, "hidden_size": 128, "inner": [16, 18], "heads": 8}
    assert "widths=['hidden_size', 'inner', 'heads', 'rank']" in next(pair.cautions())
    named = SizePair.of(same, same, ["hidden_size", "rank"])
    assert named.at(128, 2) == {**same, "hidden_size": 128, "rank": 6} and not [*named.cautions()]


def test_a_width_that_stays_grows_in_the_wider_model_where_the_user_names_it() -> None:
    base, target = {"hidden": 8, "ffn": 16}, {"hidden": 8, "ffn": 32}
    pair = SizePair.of(base, target, ["hidden", "ffn"])
    # Twice the width is the target, which has no other hidden size.
    assert (pair.times, pair.at(48, 1)) == (3, {"hidden": 24, "ffn": 48})
    (caution,) = (*pair.cautions(), *SizePair.of(base, target).cautions())
    assert "hidden stays" in caution and "widths=['ffn', 'hidden']" in caution


# Sizes of the task. Derived: a role is which side of a weight grows *with the width*. A head from
# 64 to 256 features is a readout, whatever number of classes it has at either size: what the plan
# says must be what it says where base and target have the target's classes.


class Net(nn.Module):
    def __init__(self, hidden: int, classes: int, seq_len: int = 4, n_head: int = 2) -> None:
        super().__init__()
        self.seq_len, self.heads = seq_len, n_head
        self.tokens, self.places = nn.Embedding(classes, hidden), nn.Embedding(seq_len, hidden)
        self.mid, self.head = nn.Linear(hidden, hidden), nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places.weight
        out: Tensor = self.head(self.mid(h))
        return out


BASE = {"hidden": 8, "classes": 10, "seq_len": 4, "n_head": 2}


def planned(base: dict[str, int], target: dict[str, int], **more: object) -> sweeper.TransferPlan:
    return sweeper.plan_for(Net, base, target, "mup", {"eta": 2.0**-7}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [True, False])
def test_a_size_of_the_task_changes_no_role(first: bool) -> None:
    target = {"hidden": 32, "classes": 100, "seq_len": 16, "n_head": 8}
    base = BASE if first else dict(reversed(BASE.items()))
    plan, same = planned(base, target), planned({**target, "hidden": 8, "n_head": 2}, target)
    roles = {p.name: p.role for p in plan.parameters}
    assert roles["head.weight"] == Role.READOUT and roles["mid.weight"] == Role.HIDDEN
    assert roles["tokens.weight"] == roles["places.weight"] == Role.EMBEDDING
    assert plan.absorbed() == same.absorbed()
    assert plan.base == Size(width=8, depth=1) and plan.target == Size(width=32, depth=1)
    # What the base is itself is told as it is.
    shapes = {p.name: p.base_shape for p in plan.parameters}
    assert shapes["head.weight"] == (10, 8) and shapes["places.weight"] == (4, 8)
    specs = sweeper.classify(Net, base, target)
    assert {name: spec.role for name, spec in specs.items()} == roles


def test_the_task_alone_may_differ() -> None:
    plan = planned(BASE, {**BASE, "classes": 100})
    assert all(p.target == p.base for p in plan.parameters)
    assert {p.name: p.role for p in plan.parameters}["head.weight"] == Role.READOUT


def test_a_size_that_its_name_does_not_tell() -> None:
    def build(hidden: int, answers: int) -> Net:
        return Net(hidden, answers)

    base, target = {"hidden": 8, "answers": 10}, {"hidden": 32, "answers": 40}
    with pytest.raises(BadInput, match=r"answers differs beside hidden.*widths=\['hidden'\]"):
        sweeper.plan_for(build, base, target, "mup", {"eta": 0.1})
    for names, role in ((["hidden"], Role.READOUT), (["hidden", "answers"], Role.HIDDEN)):
        plan = sweeper.plan_for(build, base, target, "mup", {"eta": 0.1}, widths=names)
        assert {p.name: p.role for p in plan.parameters}["head.weight"] == role
    with raises_config_error("widths", "width"):
        sweeper.plan_for(build, base, target, "mup", {"eta": 0.1}, widths=["width"])
    # A dimension may be of actions, of conditions: only those of a model's parts are widths.
    for name in ("action_dim", "context_dim", "z_dim"):
        pairs = [{name: n, "hidden": w} for n, w in ((10, 8), (40, 32))]
        with pytest.raises(BadInput, match=f"{name} differs beside hidden"):
            sweeper.plan_for(
                lambda hidden, **more: Net(hidden, *more.values()), *pairs, "mup", {"eta": 0.1}
            )
    # A policy's own width is the one to name, wherever it stands among the sizes.
    policy = {"obs_dim": 8, "act_dim": 2, "trunk": 16}
    with pytest.raises(BadInput, match=r"give widths=\['trunk'\], or widths=\['obs_dim'"):
        widths(policy, {name: 2 * size for name, size in policy.items()})
    assert widths(
        {"num_embeddings": 9, "embed_dim": 8}, {"num_embeddings": 99, "embed_dim": 32}
    ) == ["embed_dim"]
    with pytest.raises(BadInput, match="answers differs"):
        sweeper.classify(build, base, target, torch.zeros(2, 4, dtype=torch.long))
