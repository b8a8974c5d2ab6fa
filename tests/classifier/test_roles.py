"""Roles that ask for more than one use at two widths: shared heads, ties, rounding, groups."""

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mup import set_base_shapes
from mup.optim import MuAdam, MuSGD
from torch import Tensor, nn

from sweeper.classifier.classify import Comparison, compare
from sweeper.scaling.relative import MuP
from sweeper.scaling.spec import ParamSpec, Role, Update
from tests.classifier.test_uses import Model
from tests.golden import Golden
from tests.refusals import refused
from tests.specs import specs_between

DEFAULTS = dict.fromkeys(MuP.hyperparameters, 1.0)


def compared(
    forward: Callable[..., Any],
    parts: Callable[[int], dict[str, Any]],
    inputs: Callable[[int], Any] = lambda w: torch.zeros(2, 3, w),
    base: int = 16,
    target: int = 64,
    **more: Any,
) -> Comparison:
    return compare(
        lambda width: Model(forward, **parts(width)),
        base={"width": base},
        target={"width": target},
        inputs=lambda s: inputs(s["width"]),
        **more,
    )


def by_name(comparison: Comparison) -> dict[str, ParamSpec]:
    return {spec.name: spec for spec in comparison.specs}


def attend(m: Any, x: Tensor, *, heads: Callable[[Tensor], Tensor], fused: bool) -> Tensor:
    q = m.q(x).unflatten(-1, (-1, 8)).transpose(1, 2)
    k, v = (heads(p(x).unflatten(-1, (-1, 8)).transpose(1, 2)) for p in (m.k, m.v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    if fused:
        mixed = F.scaled_dot_product_attention(q, k, v)
    else:
        mixed = (q @ k.transpose(-1, -2) / sqrt(8)).softmax(-1) @ v
    return m.o(mixed.transpose(1, 2).flatten(2))


def projections(kv: Callable[[int], int], q: Callable[[int], int]) -> Any:
    linear = partial(nn.Linear, bias=False)
    return lambda w: {
        "q": linear(w, q(w)),
        "k": linear(w, kv(w)),
        "v": linear(w, kv(w)),
        "o": linear(q(w), w),
    }


@pytest.mark.parametrize(("fused", "turned"), [(True, False), (False, True)])
def test_keys_and_values_of_fixed_heads_are_hidden(
    fused: bool, turned: bool, golden: Golden
) -> None:
    def rotary(t: Tensor) -> Tensor:
        return t * 0.5 + torch.cat([-t[..., 4:], t[..., :4]], -1) * 0.5 if turned else t

    specs = by_name(
        compared(partial(attend, heads=rotary, fused=fused), projections(lambda w: 16, lambda w: w))
    )
    assert {name: str(spec.role) for name, spec in specs.items()} == dict.fromkeys(
        ("q.weight", "k.weight", "v.weight", "o.weight"), "hidden"
    )
    assert (specs["k.weight"].fan_in, specs["k.weight"].fan_out) == (64, 16)
    golden.says(specs["v.weight"].note)


HEADS: dict[str, Callable[[Any, Tensor], Any]] = {
    "module": lambda m, x: m.head(x),
    "function": lambda m, x: F.linear(x, m.table.weight),
    "before": lambda m, x: m.head(x * m.width**-0.5),
    "after": lambda m, x: m.head(x) / (m.width / 16),
    "normed": lambda m, x: m.head(m.norm(x * m.width**-0.5)),
    "tensor": lambda m, x: m.head(x) / torch.sqrt(torch.tensor(float(m.width))),
    "moved": lambda m, x: m.head(x) / torch.FloatTensor([m.width]).to(x.device).sqrt(),
    "gain": lambda m, x: m.gain * m.head(x),
    "alpha": lambda m, x: torch.add(torch.zeros(50), m.head(x), alpha=1 / m.width),
    "value": lambda m, x: torch.addcmul(torch.zeros(50), m.head(x), torch.ones(50), value=0.5),
}


class Tied(nn.Module):
    def __init__(self, width: int, way: str) -> None:
        super().__init__()
        self.way, self.width = way, width
        self.table, self.norm = nn.Embedding(50, width), nn.LayerNorm(width)
        self.gain = nn.Parameter(torch.tensor(1 / width)) if way == "gain" else None
        if way != "function":
            self.head = nn.Linear(width, 50, bias=False)
            self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Any:
        return HEADS[self.way](self, self.norm(self.table(tokens)))


@pytest.mark.parametrize(
    ("way", "name", "own"),
    [
        ("module", "head", 1.0),
        ("function", "table.weight", 1.0),
        ("before", "head", 0.5),
        ("after", "head", 0.25),
        ("normed", "head", 1.0),
        ("tensor", "head", 0.5),
        ("moved", "head", 0.5),
        ("gain", "head", 0.25),
        ("alpha", "head", 0.25),
        ("value", "head", 1.0),
    ],
)
def test_a_tied_head_is_an_operation(way: str, name: str, own: float, golden: Golden) -> None:
    comparison = compare(
        lambda width: Tied(width, way),
        base={"width": 16},
        target={"width": 64},
        inputs=torch.zeros(2, 3, dtype=torch.long),
    )
    (op,) = comparison.tied
    assert (op.name, op.kind) == (name, "tied_readout")
    expected = {"fan_in": 64, "base_fan_in": 16, "built_in": own, "own": op.geometry["own"]}
    at_base = {"before": 0.25, "tensor": 0.25, "moved": 0.25, "gain": 1 / 16, "alpha": 1 / 16}
    at_base |= {"value": 0.5}
    assert op.geometry["own"] == pytest.approx(own * at_base.get(way, 1.0))
    # The plan's factor counts it at every width: nothing is left to mind, but where a norm takes
    # the number away before it comes to the head.
    assert bool(comparison.cautions) == (way == "normed")
    assert op.geometry == pytest.approx({**expected, "parameter": "table.weight", "lookup": True})
    spec = by_name(comparison)["table.weight"]
    assert (spec.role, spec.lookup, spec.fan_in) == (Role.EMBEDDING, True, 50)
    assert (spec.readout_fan_in, spec.base_readout_fan_in) == (64, 16)
    assert spec.at_base().readout_fan_in == 16
    golden.says(spec.note)


def test_a_matrix_that_is_used_both_ways_is_no_tied_table(golden: Golden) -> None:
    comparison = compared(
        lambda m, x: F.linear(x, m.slots).softmax(-1) @ m.slots,
        lambda w: {"slots": nn.Parameter(torch.randn(5, w))},
    )
    (op,), (spec,) = comparison.tied, comparison.specs
    assert op.geometry["parameter"] == "slots" and not op.geometry["lookup"]
    assert spec.role is Role.EMBEDDING and not spec.lookup
    golden.says(spec.note)


def test_tied_tables_of_one_module_go_by_their_names() -> None:
    class Two(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(50, width)) for _ in range(2))

        def forward(self, tokens: Tensor) -> Tensor:
            x = F.embedding(tokens, self.a) + F.embedding(tokens, self.b)
            return F.linear(x, self.a) + F.linear(x, self.b)

    comparison = compare(
        lambda width: nn.Sequential(Two(width)),
        base={"width": 16},
        target={"width": 64},
        inputs=torch.zeros(2, 3, dtype=torch.long),
    )
    assert [op.name for op in comparison.tied] == ["0.a", "0.b"]


def rounded(multiple: int) -> Any:
    def inner(w: int) -> int:
        return -(-3 * w // multiple) * multiple

    return lambda w: {"up": nn.Linear(w, inner(w)), "down": nn.Linear(inner(w), w, bias=False)}


def test_growth_that_rounding_hides_is_seen_at_the_target(golden: Golden) -> None:
    comparison = compared(lambda m, x: m.down(m.up(x)), rounded(256), base=16, target=512)
    specs = by_name(comparison)
    up, down = specs["up.weight"], specs["down.weight"]
    assert (up.role, up.fan_in, up.base_fan_in, up.width_dims) == (Role.HIDDEN, 512, 16, (0, 1))
    assert (down.role, down.fan_in, down.base_fan_in) == (Role.HIDDEN, 1536, 256)
    assert down.width_dims == (0, 1)
    (caution,) = comparison.cautions
    golden.says(caution)


def test_growth_that_the_target_hides_is_seen_at_twice_the_base() -> None:
    comparison = compared(lambda m, x: m.down(m.up(x)), rounded(32), base=16, target=20)
    assert by_name(comparison)["up.weight"].shape == (64, 20)
    assert by_name(comparison)["up.weight"].base_shape == (64, 16)
    assert by_name(comparison)["up.weight"].role is Role.HIDDEN


def test_a_size_that_grows_and_shrinks_is_refused(golden: Golden) -> None:
    def parts(w: int) -> dict[str, Any]:
        return {"up": nn.Linear(w, {16: 8, 32: 12, 64: 4}[w], bias=False)}

    with refused(golden):
        compared(lambda m, x: m.up(x), parts)


def test_a_model_that_ignores_its_width_is_refused(golden: Golden) -> None:
    with refused(golden):
        compared(lambda m, x: m.up(x), lambda w: {"up": nn.Linear(8, 8)}, lambda w: torch.zeros(8))

    def deep(width: int, depth: int) -> nn.Module:
        return nn.Sequential(*(nn.Linear(8, 8) for _ in range(depth)))

    with refused(golden):
        specs_between(deep, base=(16, 1), target=(64, 3), inputs=torch.zeros(2, 8))


class Grouped(nn.Module):
    """Weights of several groups, as many as channels or as blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.few = nn.Conv2d(width, width, 3, padding=1, groups=4, bias=False)
        self.blocks = nn.Parameter(torch.randn(width // 4, 4, 4))
        self.pointwise = nn.Conv2d(width, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pointwise(self.few(self.depthwise(x)))
        mixed = x.mean((2, 3)).unflatten(1, (-1, 4)).transpose(0, 1)
        return torch.bmm(mixed, self.blocks)


def grouped(width: int) -> Sequence[ParamSpec]:
    sizes = {"base": {"width": 16}, "target": {"width": width}}
    return compare(Grouped, **sizes, inputs=lambda s: torch.zeros(2, s["width"], 8, 8)).specs


@pytest.mark.parametrize(
    ("update", "optimizer", "m"), [(Update.SIGN, MuAdam, 8), (Update.GRADIENT, MuSGD, 2)]
)
def test_rates_of_grouped_weights_are_mup_s(update: Update, optimizer: Any, m: int) -> None:
    model = Grouped(16 * m)
    set_base_shapes(model, Grouped(16), delta=Grouped(32))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = optimizer(model.parameters(), lr=1.0).param_groups
    theirs = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
    specs = grouped(16 * m)
    ours = {spec.name: MuP().scale(spec, DEFAULTS, update).lr for spec in specs}
    assert ours == pytest.approx(theirs)


def test_groups_are_counted_where_they_grow() -> None:
    specs = grouped(64)
    assert {s.name: (s.fan_in, s.fan_out, s.groups, s.base_groups) for s in specs} == {
        "depthwise.weight": (9, 9, 64, 16),
        "few.weight": (144, 144, 1, 1),
        "blocks": (4, 4, 16, 4),
        "pointwise.weight": (64, 64, 1, 1),
    }
    # The gradient to an entry falls as 1/width (Adam's eps must too), as a bias's does.
    depthwise = specs[[s.name for s in specs].index("depthwise.weight")]
    assert MuP().scale(depthwise, DEFAULTS).eps == pytest.approx(1 / 4)
    assert depthwise.at_base().groups == 16


def test_embeddings_that_sum_are_told_from_lookups() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.depthwise(m.patches(x)).flatten(2).transpose(1, 2)
        return y + m.positions + m.table(torch.arange(4))

    specs = by_name(
        compared(
            forward,
            lambda w: {
                "patches": nn.Conv2d(3, w, 4, 4),
                "depthwise": nn.Conv2d(w, w, 3, padding=1, groups=w),
                "positions": (1, 4, w),
                "table": nn.Embedding(4, w),
            },
            lambda w: torch.zeros(2, 3, 8, 8),
        )
    )
    sums = {name: spec.projection for name, spec in specs.items() if not name.endswith("bias")}
    assert sums == {
        "patches.weight": True,
        "depthwise.weight": True,
        "positions": False,
        "table.weight": False,
    }
    assert specs["depthwise.weight"].role is Role.UP
    assert {specs[name].role for name in sums} == {Role.EMBEDDING, Role.UP}


def biased_experts(m: Any, x: Tensor) -> Tensor:
    chosen = m.router(x[:, 0]).argmax(-1)
    return torch.bmm(x, m.w[chosen]) + m.b[chosen][:, None]


def test_a_vector_given_by_hand_has_no_fan_in_and_starts_at_zero(golden: Golden) -> None:
    def parts(w: int) -> dict[str, Any]:
        return {"router": nn.Linear(w, 4), "w": (4, w, w), "b": (4, 2 * w // 2)}

    with refused(golden):
        compared(biased_experts, parts)
    spec = by_name(compared(biased_experts, parts, roles={"b": "vector"}))["b"]
    assert (spec.role, spec.fan_in, spec.fan_out, spec.base_fan_out) == (Role.VECTOR, 1, 64, 16)
    assert (spec.init, spec.width_ratio, spec.lookup) == ("zeros", 4.0, False)


def test_frozen_parameters_are_told_and_need_no_role() -> None:
    def parts(w: int) -> dict[str, Any]:
        table = nn.Parameter(torch.zeros(w, w), requires_grad=False)
        return {"w": nn.Linear(w, w, bias=False), "table": table}

    specs = by_name(compared(lambda m, x: m.w(x) @ torch.linalg.inv(m.table), parts))
    assert specs["table"].frozen and specs["table"].role is Role.FIXED
    assert not specs["w.weight"].frozen and specs["w.weight"].role is Role.HIDDEN


EIGHT = "by 8 at width=64 and 11.31 at width=128 (width^0.5)"
FACTORS: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "number": (lambda m, y: y * sqrt(m.width), f"multiplies {EIGHT}"),
    "buffer": (lambda m, y: y * m.root.to(y.dtype), f"multiplies {EIGHT}"),
    "trained": (lambda m, y: y * m.gain, f"multiplies {EIGHT}"),
    "made late": (lambda m, y: y * torch.tensor(m.width**0.5), f"multiplies {EIGHT}"),
    "division": (
        lambda m, y: y / m.width,
        "divides by 64 at width=64 and 128 at width=128 (width^1)",
    ),
    "attention": (
        lambda m, y: F.scaled_dot_product_attention(y, y, y),
        "scales attention by 0.125 at width=64 and 0.08839 at width=128",
    ),
    "over size": (lambda m, y: F.scaled_dot_product_attention(y, y, y, scale=1 / m.width), ""),
    "by hand": (lambda m, y: (y @ y.mT / m.width).softmax(-1) @ y, ""),
    "by hand, root": (lambda m, y: (y @ y.mT / m.width**0.5).softmax(-1) @ y, f"divides {EIGHT}"),
    "constant": (lambda m, y: F.rms_norm(y, (m.width,)) * 0.5 + 1 / m.width, ""),
}
"""Factors as models in use write them: a number, a buffer, a division, a tensor made late."""


class Scaled(nn.Module):
    def __init__(self, width: int, way: str) -> None:
        super().__init__()
        self.way, self.width = way, width
        self.up = nn.Linear(width, width, bias=False)
        self.register_buffer("root", torch.tensor(sqrt(width)), persistent=False)
        self.gain = nn.Parameter(torch.tensor(float(width)).sqrt()) if way == "trained" else None

    def forward(self, x: Tensor) -> Any:
        return FACTORS[self.way][0](self, self.up(x))


@pytest.mark.parametrize("way", FACTORS)
def test_factors_that_depend_on_the_width_are_told_with_their_line(way: str) -> None:
    cautions = compare(
        lambda width: Scaled(width, way),
        base={"width": 64},
        target={"width": 64},
        inputs=lambda s: torch.zeros(2, 3, s["width"]),
    ).cautions
    sentence = FACTORS[way][1]
    assert bool(cautions) == bool(sentence) and len(cautions) <= 1
    for caution in cautions:
        assert sentence in caution and "test_roles.py:" in caution
