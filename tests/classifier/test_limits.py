"""What cannot be decided is named, what the user gives counts, sizes and inputs are checked."""

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sweeper
from sweeper.classifier.classify import compare
from sweeper.classifier.numbers import NumberMode, Numbers
from sweeper.classifier.trace import TooFewRows
from sweeper.errors import BadInput
from tests.classifier.test_uses import BASE, WIDE, Model, classify, facts
from tests.golden import Golden
from tests.refusals import raises_config_error, refused

UNDECIDED = {
    "an operation without a rule": (
        lambda m, x: x @ torch.linalg.inv(m.w),
        "w [32, 32]: it goes through aten.linalg_inv_ex, for which there is no rule",
    ),
    "weights multiplied with each other": (
        lambda m, x: x @ (m.w @ m.w.T),
        "w [32, 32]: it goes through a product with another parameter",
    ),
    "two uses that differ": (
        lambda m, x: x @ m.w + m.w[0],
        "w [32, 32]: it has several uses that differ: hidden in mm; vector in add",
    ),
    "only a statistic": (lambda m, x: x * m.w.norm(), "w [32, 32]: only a statistic of it is used"),
    "a product summed and kept": (
        lambda m, x: (lambda y: y.sum(-1, keepdim=True) * y)(x * m.w[0]),
        "w [32, 32]: its element-wise product is both summed and used as it is",
    ),
    "rows picked by the model itself": (
        lambda m, x: x + m.w[(x @ m.w).argmax(-1)],
        "a bias of one expert of several (vector), or a row of a codebook (embedding)?",
    ),
    "mixed dimensions": (
        lambda m, x: x[..., :8] @ m.w[:, 1:].reshape(-1, 8).T,
        "w [32, 32]: it goes through a reshape that mixes its dimensions",
    ),
}


@pytest.mark.parametrize("case", UNDECIDED)
def test_what_cannot_be_decided_is_named(case: str, golden: Golden) -> None:
    forward, why = UNDECIDED[case]
    with pytest.raises(BadInput) as error:
        classify(forward, lambda w: {"w": (w, w)})
    assert why in str(error.value) and 'roles={"w": "hidden"}' in str(error.value)
    spec = classify(forward, lambda w: {"w": (w, w)}, roles={"w": "readout"})["w"]
    assert (spec.role, spec.fan_in, spec.fan_out) == ("readout", 32, 32)
    golden.says(spec.note)


def test_roles_are_overridden_by_pattern(golden: Golden) -> None:
    def parts(width: int) -> dict[str, Any]:
        return {"router": nn.Linear(width, 4), "up": nn.Linear(width, width)}

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.up(x) + m.router(x).sum(-1, keepdim=True)

    specs = classify(forward, parts, roles={"router.weight": "hidden", "up.*": "fixed"})
    assert [str(spec.role) for spec in specs.values()] == ["hidden", "vector", "fixed", "fixed"]
    golden.says(specs["router.weight"].note)
    assert specs["router.weight"].fan_in == 32
    with raises_config_error("roles[route.weight]", "hidden", golden):
        classify(forward, parts, roles={"route.weight": "hidden"})
    with raises_config_error("roles[up.*]", "hiden", golden):
        classify(forward, parts, roles={"up.*": "hiden"})


def choosing(m: Any, x: Tensor) -> Tensor:
    return m.w(x) if x.sum().item() > 0 else m.w(x) + 1


def test_a_forward_pass_that_looks_at_values_is_run_with_values() -> None:
    specs = classify(choosing, lambda w: {"w": nn.Linear(w, w)})
    assert facts(specs)["w.weight"] == ("hidden", 32, 32, (0, 1))


def looking(m: Any, x: Tensor) -> Tensor:
    return m.p(torch.arange(3)) + int(x.sum().item())


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x + m.p(torch.arange(3)),
        lambda m, x: x + m.p(torch.arange(1, 3)[None].expand(2, 2))[:, :1],
        lambda m, x: looking(m, x) + x,
    ],
)
def test_positions_beyond_a_table_are_counted_and_named(forward: Any) -> None:
    with pytest.raises(TooFewRows) as caught:
        classify(forward, lambda w: {"p": nn.Embedding(2, w)})
    assert (caught.value.rows, caught.value.wanted) == (2, 3)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x + m.p(torch.arange(9)[:2])[:1],
        lambda m, x: x + m.p(torch.arange(9).clamp_(max=1))[:3],
        lambda m, x: x + m.p((torch.arange(9)[:, None] - torch.arange(9)) // 9 + 1)[0, :3],
    ],
)
def test_positions_that_are_cut_or_put_into_buckets_are_let_be(forward: Any) -> None:
    specs = classify(forward, lambda w: {"p": nn.Embedding(2, w)})
    assert facts(specs)["p.weight"][0] == "embedding"


def broken(m: Any, x: Tensor) -> Tensor:
    raise RuntimeError("an image is wanted here")


def test_a_forward_pass_that_cannot_be_traced_says_where_and_what_to_change(golden: Golden) -> None:
    with refused(golden):
        classify(broken, lambda w: {"w": nn.Linear(w, w)})
    roles = {"*.weight": "hidden", "*": "vector"}
    specs = classify(broken, lambda w: {"w": nn.Linear(w, w)}, roles=roles)
    assert specs["w.weight"].fan_in == 32


def test_values_that_follow_from_numbers_are_known_and_those_written_into_are_not() -> None:
    numbers = Numbers()
    with torch.device("meta"), NumberMode(numbers):
        kept, changed = torch.arange(3), torch.arange(3)
        changed[0] = 7
        assert kept[2].item() == 2 and bool(kept[1]) and kept[1:].tolist() == [1, 2]
        rates = torch.linspace(0, 0.1, 3)  # as in code of stochastic depth
        assert [*map(float, rates)] == rates.tolist() == pytest.approx([0, 0.05, 0.1])
        drawn = torch.ones(2)
        drawn.data.normal_()
        for unknown in (changed, drawn):
            with pytest.raises(RuntimeError, match="meta"):
                unknown[0].item()


def test_a_model_too_large_for_values_says_so(golden: Golden) -> None:
    def build(width: int) -> nn.Module:
        return Model(choosing, w=nn.Linear(width, width))

    with pytest.raises(BadInput) as caught:
        sweeper.classify(
            build,
            {"width": 10**4},
            {"width": 2 * 10**4},
            inputs=lambda s: torch.zeros(2, s["width"], device="meta"),
        )
    # What torch says differs from version to version.
    golden.says(re.sub(r"DataDependent.*(?= \(with fake)", "TORCH", str(caught.value)))


def chosen_by_hand(m: Any, x: Tensor) -> Tensor:
    """Experts in a loop over those that were chosen, as people write it."""
    x = x.flatten(0, 1)
    shares, numbers = m.router(x).softmax(-1).topk(2, -1)
    y = torch.zeros_like(x)
    for i, expert in enumerate(m.experts):
        rows, slot = (numbers == i).nonzero(as_tuple=True)
        if len(rows):
            y[rows] += shares[rows, slot][:, None] * expert(x[rows])
    return m.head(y)


def chosen_parts(width: int) -> dict[str, Any]:
    linear = partial(nn.Linear, bias=False)
    sides = [(nn.Linear(width, 2 * width), nn.ReLU(), linear(2 * width, width)) for _ in range(4)]
    experts = nn.ModuleList(nn.Sequential(*layers) for layers in sides)
    return {"router": linear(width, 4), "experts": experts, "head": linear(width, 5)}


def test_experts_chosen_by_value_are_classified_at_any_width(golden: Golden) -> None:
    width = 4096  # the experts hold 268 million weights, which are never made
    comparison = compare(
        lambda width: Model(chosen_by_hand, **chosen_parts(width)),
        base={"width": 16},
        target={"width": width},
        inputs=lambda s: torch.zeros(2, 3, s["width"]),
    )
    assert facts({spec.name: spec for spec in comparison.specs}) == {
        "router.weight": ("readout", width, 4, (1,)),
        **{f"experts.{i}.0.weight": ("hidden", width, 2 * width, (0, 1)) for i in range(4)},
        **{f"experts.{i}.0.bias": ("vector", 1, 2 * width, (0,)) for i in range(4)},
        **{f"experts.{i}.2.weight": ("hidden", 2 * width, width, (0, 1)) for i in range(4)},
        "head.weight": ("readout", width, 5, (1,)),
    }
    golden.says(comparison.cautions[0])


def test_how_it_is_called_is_asked_for(golden: Golden) -> None:
    with refused(golden):
        sweeper.classify(lambda width: nn.Linear(width, width), BASE, WIDE)


def test_sizes_are_checked(golden: Golden) -> None:
    for base, other in (({"width": 16}, {"size": 32}), ({"width": 16}, {"width": 16})):
        with refused(golden):
            sweeper.classify(lambda **sizes: nn.Linear(1, 1), base, other)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compiled_modules_are_seen_through() -> None:
    def build(width: int) -> Any:
        return torch.compile(Model(lambda m, x: m.up(x), up=nn.Linear(width, 2 * width)))

    specs = sweeper.classify(build, BASE, WIDE, inputs=lambda s: torch.zeros(2, s["width"]))
    assert facts(specs) == {
        "up.weight": ("hidden", 32, 64, (0, 1)),
        "up.bias": ("vector", 1, 64, (0,)),
    }


def test_depth_is_told_from_width() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for i in range(len(m.stack)):
            x = x + m.blocks[i](x @ m.stack[i])
        return x

    def build(width: int, n_layers: int) -> nn.Module:
        blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(n_layers))
        return Model(forward, blocks=blocks, stack=(n_layers, width, width))

    specs = sweeper.classify(
        build,
        {"width": 16, "n_layers": 2},
        {"width": 32, "n_layers": 5},
        inputs=lambda s: torch.zeros(2, s["width"]),
    )
    stack, block = specs["stack"], specs["blocks.4.weight"]
    assert (stack.role, stack.fan_in, stack.fan_out) == ("hidden", 32, 32)
    assert (stack.width_dims, stack.depth_dims, stack.shape) == ((1, 2), (0,), (5, 32, 32))
    assert block.residual and not stack.residual
    assert (block.depth, block.base_depth, block.base_fan_in) == (5, 2, 16)


def test_parameters_made_elsewhere_are_moved() -> None:
    def parts(width: int) -> dict[str, Any]:
        return {"w": nn.Linear(width, width, device="cpu"), "v": nn.Linear(width, 5)}

    specs = classify(lambda m, x: m.v(m.w(x)), parts)
    assert [str(specs[n].role) for n in ("w.weight", "v.weight")] == ["hidden", "readout"]


def test_a_parameter_that_changes_its_rank_is_named(golden: Golden) -> None:
    def parts(width: int) -> dict[str, Any]:
        return {"w": (width, width) if width > 16 else (width,)}

    with refused(golden):
        classify(lambda m, x: x * m.w.sum(), parts)


def test_a_parameter_that_changes_its_name_is_named(golden: Golden) -> None:
    def parts(width: int) -> dict[str, Any]:
        return {f"w{width}": (width,)}

    with refused(golden):
        classify(lambda m, x: x * getattr(m, f"w{x.size(-1)}"), parts)
