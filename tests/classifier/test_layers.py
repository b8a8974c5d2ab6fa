"""Layers of unlike kinds over depth: matched by kind and place, or refused with advice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sweeper.classifier.classify import compare
from sweeper.classifier.roles import LayerMatching, lies_in, repeated_containers
from sweeper.classifier.state import FOREIGN, ParamLayout
from sweeper.scaling.spec import ParamSpec, Role
from tests.golden import Golden
from tests.refusals import refused

transformers = pytest.importorskip("transformers")

IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "vocab_size": 50}


def specs(
    build: Callable[..., Any], base: tuple[int, int], target: tuple[int, int], inputs: Any = None
) -> dict[str, ParamSpec]:
    sizes = [{"width": width, "depth": depth} for width, depth in (base, target)]
    comparison = compare(build, base=sizes[0], target=sizes[1], inputs=inputs)
    return {spec.name: spec for spec in comparison.specs}


@pytest.mark.parametrize(
    ("name", "counterpart"),
    [
        # A layer that the base lacks stands for the nearest one of its kind.
        ("layers.5.attn.q", "layers.2.attn.q"),
        ("layers.4.ssm.a", "layers.1.ssm.a"),
        ("values.0", "values.1"),
        # The number that is not in the base is replaced, not the first one.
        ("stages.1.blocks.3.w", "stages.1.blocks.1.w"),
        ("stages.1.blocks.0.w", "stages.1.blocks.0.w"),
        # What the base's first layer has for its input is no recurrent layer's.
        ("rnn.weight_ih_l3", "rnn.weight_ih_l1"),
        ("rnn.weight_ih_l2_reverse", None),
        # Digits that are no layer's number are part of the name.
        ("fc3.w", None),
    ],
)
def test_counterparts(name: str, counterpart: str | None) -> None:
    base = {
        **{f"layers.{i}.attn.q": (8, 8) for i in (0, 2)},
        **{f"layers.{i}.ssm.a": (8,) for i in (1,)},
        **{f"stages.{s}.blocks.{i}.w": (8 << s, 8) for s in (0, 1) for i in range(2 if s else 6)},
        "rnn.weight_ih_l0": (32, 5),
        "rnn.weight_ih_l1": (32, 8),
        "fc1.w": (8, 8),
        "values.1": (50, 8),
    }
    target = {
        **{f"layers.{i}.attn.q": (16, 16) for i in (0, 2, 3, 5)},
        **{f"layers.{i}.ssm.a": (16,) for i in (1, 4)},
        **{f"stages.{s}.blocks.{i}.w": (16 << s, 16) for s in (0, 1) for i in range(6)},
        "rnn.weight_ih_l0": (64, 5),
        **{f"rnn.weight_ih_l{i}": (64, 16) for i in (1, 2, 3)},
        "rnn.weight_ih_l2_reverse": (64, 32),
        "fc1.w": (16, 16),
        **{f"values.{i}": (50, 16) for i in (0, 2, 4)},
        "fc3.w": (16, 16),
    }
    assert LayerMatching(base, target).counterpart(name) == counterpart


def test_items_of_a_container_that_deepens_are_repeated() -> None:
    base = ["layers.0.mlp.w", "layers.1.experts.0.w", "head.0.w", "stages.0.blocks.0.w"]
    deeper = [*base, "layers.2.experts.0.w", "stages.0.blocks.1.w"]
    containers = repeated_containers(base, deeper)
    inside = {name: lies_in(name, containers) for name in [*base, "stages.1.blocks.0.w"]}
    assert inside == {
        "layers.0.mlp.w": True,
        "layers.1.experts.0.w": True,
        "head.0.w": False,
        "stages.0.blocks.0.w": True,
        "stages.1.blocks.0.w": True,
    }


def deepseek(width: int, depth: int) -> Any:
    config = transformers.DeepseekV3Config(
        **IDS,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 16,
        intermediate_size=3 * width,
        moe_intermediate_size=width,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
    )
    return transformers.DeepseekV3ForCausalLM(config)


def test_dense_layers_first_and_experts_later() -> None:
    by_name = specs(deepseek, (32, 2), (64, 6))
    branches = [s for name, s in by_name.items() if ".mlp." in name or ".self_attn." in name]
    assert branches and all(spec.residual for spec in branches)
    assert (
        not by_name["model.embed_tokens.weight"].residual and not by_name["lm_head.weight"].residual
    )
    dense, expert = "model.layers.0.mlp.gate_proj.weight", "model.layers.5.mlp.experts.down_proj"
    assert (by_name[dense].role, by_name[dense].base_fan_in) == (Role.HIDDEN, 32)
    assert (by_name[expert].role, by_name[expert].base_shape) == (Role.HIDDEN, (4, 32, 32))
    assert by_name["model.layers.5.mlp.gate.weight"].role is Role.READOUT


def test_a_base_without_a_kind_of_layer_is_told_which_depth_has_it(golden: Golden) -> None:
    with refused(golden):
        specs(deepseek, (32, 1), (64, 6))


class Recurrent(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, width, depth, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.rnn(x)[0])


def test_recurrent_layers(golden: Golden) -> None:
    by_name = specs(Recurrent, (16, 2), (32, 4), torch.zeros(2, 3, 5))
    roles = {name: (str(s.role), s.base_fan_in) for name, s in by_name.items() if "weight" in name}
    assert roles == {
        "rnn.weight_ih_l0": ("embedding", 5),
        **{f"rnn.weight_ih_l{i}": ("hidden", 16) for i in (1, 2, 3)},
        **{f"rnn.weight_hh_l{i}": ("hidden", 16) for i in (0, 1, 2, 3)},
        "head.weight": ("readout", 16),
    }
    with refused(golden):
        specs(Recurrent, (16, 1), (32, 4), torch.zeros(2, 3, 5))


@pytest.mark.parametrize(("base", "target"), [(1, 3), (2, 4), (3, 6), (4, 2)])
def test_what_goes_on_inside_is_no_readout_at_the_end(base: int, target: int) -> None:
    def build(width: int, depth: int) -> Any:
        pairs = ((nn.Linear(5, width), nn.Linear(width, 5)) for _ in range(depth))
        return nn.Sequential(*(nn.Sequential(*pair) for pair in pairs))

    by_name = specs(build, (16, base), (64, target), torch.zeros(2, 5))
    roles = [by_name[f"{i}.{side}.weight"].role for i in range(target) for side in (0, 1)]
    assert roles == ["embedding", *["down", "up"] * (target - 1), "readout"]


STEPS = ("transpose", "narrow", "select", "split", "merge", "copy", "expand")


def step(x: Tensor, name: str, draw: st.DrawFn) -> Tensor:
    dim = draw(st.integers(0, x.dim() - 1)) if x.dim() else 0
    if name == "transpose" and x.dim() > 1:
        return x.transpose(dim, (dim + 1) % x.dim())
    if name == "narrow" and x.dim() and x.size(dim) > 1:
        return x.narrow(dim, 1, x.size(dim) - 1)
    if name == "select" and x.dim() > 1:
        return x.select(dim, 0)
    if name == "split" and x.dim() and x.size(dim) % 2 == 0:
        return x.unflatten(dim, (2, -1))
    if name == "merge" and x.dim() > 1:
        return x.flatten(0, 1)
    if name == "copy":
        return x.clone(memory_format=torch.contiguous_format)
    return x.unsqueeze(dim).expand(*x.shape[:dim], 3, *x.shape[dim:]) if name == "expand" else x


def cut_anew(steps: list[str]) -> bool:
    """Whether a merged dimension may have been cut elsewhere than where it was joined."""
    after = steps[steps.index("merge") :] if "merge" in steps else []
    return "narrow" in after or "split" in after


@settings(max_examples=100)
@given(st.data())
def test_views_are_read_back(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=3))
    names = data.draw(st.lists(st.sampled_from(STEPS), max_size=5))
    # Every entry holds its own number, so its place in the parameter can be worked out.
    x = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
    layout = ParamLayout.of_parameter("w", x)
    for place, name in enumerate(names):
        y = step(x, name, data.draw)
        if y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
            mapping = layout.mapping(x)
            if mapping is None:
                assert cut_anew(names[:place]), (shape, names)
                return
            if y.shape != x.shape:  # a merge that had to copy: as its clone, then the view
                z = x.clone(memory_format=torch.contiguous_format)
                layout = ParamLayout("w").placed(mapping, z)
            else:
                layout = ParamLayout("w").placed(mapping, y)
        x = y
    mapping = layout.mapping(x)
    if mapping is None:
        assert cut_anew(names), (shape, names)
        return
    places = torch.stack(torch.unravel_index(x, shape)) if x.dim() else None
    for i, components in enumerate(mapping):
        stems = {dim for dim, _ in components} - {FOREIGN}
        for dim in range(len(shape)):
            along = places.movedim(i + 1, 0)[:, dim]
            moves = bool((along != along[:1]).any())
            assert moves == (dim in stems), (shape, names, mapping, i, dim)
