"""Trainers that take groups by name: every parameter in one group, with the plan's numbers.

Each is held to its documented rule, and to its own code where that is installed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sweeper
from sweeper.errors import BadInput
from sweeper.export.groups import patterns, rows
from sweeper.plan.plan import TransferPlan
from tests.export.plans import (
    HPS,
    PARAMETERIZATIONS,
    Settings,
    decoder,
    executed,
    made,
    names_of,
    plan,
    planned_settings,
    settings_of,
)
from tests.golden import Golden
from tests.toy_models import TOKENS, NanoDecoder


def assert_planned(settings: Settings, planned: TransferPlan, *, over_lr: bool = True) -> None:
    expected = planned_settings(planned, over_lr=over_lr)
    assert settings.keys() == expected.keys()
    for name, numbers in expected.items():
        assert settings[name] == pytest.approx(numbers, rel=1e-12), name


# Patterns ---------------------------------------------------------------------------------------

PARTS = st.sampled_from(["h", "0", "1", "12", "norm", "weight", "out"])
NAMES = st.sets(st.lists(PARTS, min_size=1, max_size=4).map(".".join), min_size=1, max_size=12)


@given(NAMES, st.randoms(use_true_random=False))
def test_every_name_matches_its_own_row_alone(names: set[str], random: Any) -> None:
    split: dict[int, list[str]] = {}
    for name in sorted(names):
        split.setdefault(random.randrange(3), []).append(name)
    rows = {key: patterns(members, sorted(names)) for key, members in split.items()}
    for key, members in split.items():
        for name in members:
            for other, globs in rows.items():
                by_shell = sum(fnmatch(name, glob) for glob in globs)
                regexes = [re.escape(glob).replace(r"\*", r"\d+") for glob in globs]
                by_regex = sum(bool(re.fullmatch(regex, name)) for regex in regexes)
                assert by_shell == by_regex == (1 if other == key else 0), (name, rows)


def test_a_name_that_would_break_the_files_is_refused(golden: Golden) -> None:
    whole = plan("mup")
    for name in ("a\nb", 'a"', "a'", "a\\", "a*", "a[0", "a]0", "a?", "a\x07", "a b"):
        first = replace(whole.parameters[0], name=name)
        with pytest.raises(BadInput) as caught:
            rows(replace(whole, parameters=(first, *whole.parameters[1:])))
        assert repr(name) in str(caught.value)
    golden.says(caught)


# torchtitan -------------------------------------------------------------------------------------


def titan_model(width: int, depth: int) -> nn.Module:
    """A Llama of torchtitan's; its attention needs masks, so another stands in for tracing."""
    llama3 = pytest.importorskip("torchtitan.models.llama3")
    common = pytest.importorskip("torchtitan.models.common")

    class Fused(nn.Module):
        def forward(self, *heads: torch.Tensor, **_: Any) -> torch.Tensor:
            q, k, v = (x.transpose(1, 2) for x in heads)
            attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return attended.transpose(1, 2)

    config = llama3.Llama3Model.Config(
        dim=width,
        vocab_size=32,
        tok_embeddings=common.Embedding.Config(
            num_embeddings=32, embedding_dim=width, param_init=llama3._EMBEDDING_INIT
        ),
        norm=common.RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),
        lm_head=common.Linear.Config(
            in_features=width, out_features=32, param_init=llama3._output_linear_init(width)
        ),
        layers=llama3._build_llama3_layers(
            fuse_qkv=False,
            n_layers=depth,
            dim=width,
            n_heads=width // 16,
            hidden_dim=2 * width,
            rope=common.ComplexRoPE.Config(dim=16, max_seq_len=64, theta=1e4, scaling="none"),
            attn_backend="flex",
        ),
    )
    model: nn.Module = config.build()
    for block in model.layers.values():  # type: ignore[operator, union-attr]
        block.attention.inner_attention = Fused()
    return model


def titan_plan(parameterization: str) -> TransferPlan:
    inputs = (torch.zeros(2, 8, dtype=torch.long), torch.arange(8)[None].expand(2, -1))
    base, target = {"width": 32, "depth": 2}, {"width": 64, "depth": 3}
    hps = {"eta": 0.01}
    return sweeper.plan_for(
        titan_model, base, target, PARAMETERIZATIONS[parameterization], hps, inputs=inputs
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parameterization", PARAMETERIZATIONS)
def test_torchtitan_by_its_own_code(
    parameterization: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its documented route loads the module, and its own group builder takes the regexes."""
    optim = pytest.importorskip("torchtitan.components.optimizer")
    manager = pytest.importorskip("torchtitan.config.manager")
    planned = titan_plan(parameterization)
    for name, text in made(planned, "torchtitan").items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "plan_torchtitan", raising=False)
    arguments = ["--module=plan_torchtitan", "--config=planned_run"]
    config = manager.ConfigManager().parse_args(arguments)
    groups = config.optimizer.param_groups
    model = titan_model(64, 3)
    built, _ = optim.OptimizersContainer._build_param_groups(model, groups, {})
    assert built.keys() == {"AdamW"}
    assert_planned(settings_of(built["AdamW"], names_of(model)), planned)
    ours = titan_model(64, 3)
    planned.init_(ours)
    config.model_spec.post_optimizer_build_fn(None, [model], None)
    pairs = zip(ours.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.filterwarnings("ignore")
def test_torchtitan_finds_parameters_behind_checkpointing() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    optim = pytest.importorskip("torchtitan.components.optimizer")
    planned = titan_plan("mup")
    names = executed(made(planned, "torchtitan")["plan_torchtitan.py"])
    model = titan_model(64, 3)
    for number, block in model.layers.items():  # type: ignore[operator, union-attr]
        model.layers.register_module(number, checkpoint_wrapper(block))  # type: ignore[union-attr]
    own = {id(p): n.replace("_checkpoint_wrapped_module.", "") for n, p in model.named_parameters()}
    assert own != names_of(model)
    built, _ = optim.OptimizersContainer._build_param_groups(model, names["PARAM_GROUPS"], {})
    assert_planned(settings_of(built["AdamW"], own), planned)


# The plain file trains bit for bit as the plan does, whatever wraps the model.


def exported(planned: TransferPlan) -> dict[str, Any]:
    return executed(made(planned, "pytorch")["plan_pytorch.py"])


def trained(model: nn.Module, groups: Any, steps: int = 5) -> nn.Module:
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    for step in range(steps):
        tokens = torch.randint(17, (2, 6), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def assert_equal(first: nn.Module, second: nn.Module) -> None:
    pairs = zip(first.named_parameters(), second.named_parameters(), strict=True)
    for (name, a), (same, b) in pairs:
        assert name == same and torch.equal(a, b), name


@pytest.mark.parametrize(
    ("parameterization", "dtype"), [("umup", torch.float64), ("completep", torch.float32)]
)
def test_it_trains_bit_for_bit_as_the_plan(parameterization: str, dtype: torch.dtype) -> None:
    planned = plan(parameterization, width=64)
    names = exported(planned)
    ours, theirs = decoder(planned).to(dtype), decoder(planned).to(dtype)
    planned.init_(ours)
    names["init_"](theirs)
    assert_equal(ours, theirs)
    trained(ours, planned.param_groups(ours))
    trained(theirs, names["param_groups"](theirs))
    assert_equal(ours, theirs)


def test_frozen_and_kept_parameters_and_a_padding_row_are_as_the_plan_has_them() -> None:
    class Padded(NanoDecoder):
        def __init__(self, n_embd: int, n_layer: int = 2) -> None:
            super().__init__(n_embd, n_layer)
            self.wte = nn.Embedding(17, n_embd, padding_idx=3)

    base, target = {"n_embd": 32, "n_layer": 2}, {"n_embd": 64, "n_layer": 3}
    more: Any = {"inputs": TOKENS, "frozen": ["h.0.*"], "keep_init": ["h.1.norm.*"]}
    planned = sweeper.plan_for(Padded, base, target, "mup", HPS["mup"], **more)
    names = exported(planned)
    torch.manual_seed(1)
    ours = Padded(**target)
    theirs = Padded(**target)
    theirs.load_state_dict(ours.state_dict())
    planned.init_(ours)
    names["init_"](theirs)
    assert_equal(ours, theirs)
    assert not ours.wte.weight[3].any()
    groups = names["param_groups"](theirs)
    assert settings_of(groups, names_of(theirs)) == planned_settings(planned)


@pytest.mark.parametrize("prefix", ["module", "_orig_mod"])
def test_wrapped_models_get_the_same_values(prefix: str) -> None:
    planned = plan("mup", width=64)
    names = exported(planned)
    plain, inner = decoder(planned), decoder(planned)
    wrapped = nn.ModuleDict({prefix: inner}) if prefix == "module" else nn.Module()
    wrapped.add_module(prefix, inner)
    names["init_"](plain)
    names["init_"](wrapped)
    assert_equal(plain, inner)
    groups = names["param_groups"](wrapped)
    assert settings_of(groups, names_of(inner)) == planned_settings(planned)


def test_a_seed_of_the_plan_s_own_is_the_default() -> None:
    planned = replace(plan("mup", width=64), source={"seed": 7})
    ours, theirs = decoder(planned), decoder(planned)
    planned.init_(ours)
    exported(planned)["init_"](theirs)
    assert_equal(ours, theirs)


def test_a_model_of_other_parameters_is_refused_by_name() -> None:
    planned = plan("mup", width=64)
    names = exported(planned)
    model = decoder(planned)
    model.add_module("more", nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"does not know the parameter more\.weight"):
        names["init_"](model)
    with pytest.raises(ValueError, match="does not know the parameter more"):
        names["param_groups"](model)
    with pytest.raises(ValueError, match=r"lacks parameters of scale"):
        names["param_groups"](nn.ModuleDict({"wte": decoder(planned).wte}))


def test_the_file_does_without_sweeper() -> None:
    assert "sweeper" not in made(plan("mup"), "pytorch")["plan_pytorch.py"].split('"""', 2)[2]
