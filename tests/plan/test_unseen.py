"""Numbers for what a plain model must do itself; written by hand from the papers' rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import Any

import pytest
import torch

import sweeper
from sweeper.classifier.attention import SeenAttention
from sweeper.config.compose import compose_tree
from sweeper.config.settings import resolve
from sweeper.engine.prepare import prepare
from sweeper.plan.factors import unseen_needs
from sweeper.plan.plan import make_plan
from sweeper.scaling.relative import MuP, Standard
from sweeper.scaling.spec import Parameterization, ParamScale, ParamSpec, Role, ScaledOp, Update
from sweeper.scaling.umup import UMuP
from sweeper.trial import PlainHps, defaults, plain
from sweeper.verdict.ladder import Size
from tests.plan.test_planning import TOKENS, Decoder, decoder_plan

ONES = PlainHps(dict.fromkeys((*MuP.hyperparameters, *UMuP.hyperparameters, "gamma_hidden"), 1.0))
BRANCH = ParamSpec(
    name="h.0.weight",
    role=Role.HIDDEN,
    shape=(4, 4),
    base_shape=(4, 4),
    fan_in=4,
    fan_out=4,
    base_fan_in=4,
    base_fan_out=4,
    residual=True,
    depth=8,
    base_depth=2,
)


def lines(parameterization: Parameterization, *heads: SeenAttention, **hps: float) -> list[str]:
    return unseen_needs(parameterization, PlainHps({**ONES, **hps}), [BRANCH], (2, 2), heads)


def test_mup_at_a_known_head_size() -> None:
    """1/64 = 0.015625; depth-muP: (8 / 2)^-1/2 = 0.5."""
    assert lines(MuP(), SeenAttention(64, 0.125)) == [
        "attention: 1/d instead of 1/sqrt(d): at head size 64 multiply q k^T by 0.0156",
        "residual branches: multiply each branch's output by 0.5",
    ]


def test_what_the_model_does_already_is_not_asked_for() -> None:
    assert lines(MuP(depth="none"), SeenAttention(64, 1 / 64)) == []
    (need,) = lines(MuP(depth="none"), SeenAttention(64, 1 / 64), SeenAttention(64))
    assert "multiply q k^T by 0.0156" in need
    assert lines(Standard(), SeenAttention(64)) == [] == lines(Standard())


def test_several_head_sizes_or_none_seen_get_the_formula() -> None:
    formula = "multiply q k^T by 1.5/d instead of 1/sqrt(d), d being the size of a head"
    parameterization = MuP(depth="none")
    seen = lines(parameterization, SeenAttention(64), SeenAttention(32), alpha_attn=1.5)
    assert seen == [f"attention: {formula}"]
    hps = PlainHps({**ONES, "alpha_attn": 1.5})
    for name, told in (
        ("h.0.attn.q", True),
        ("self_attention.q", True),
        ("pattern.q", False),
        ("mlp", False),
    ):
        needs = unseen_needs(parameterization, hps, [replace(BRANCH, name=name)], (2, 2))
        assert needs == [f"attention, as names tell: {formula}"] * told, name


@pytest.mark.parametrize(("alpha", "factor"), [(1.0, "0.25"), (0.5, "0.5")])
def test_completep(alpha: float, factor: str) -> None:
    """(8 / 2)^-alpha."""
    made = lines(MuP(depth="completep", completep_alpha=alpha), SeenAttention(4, 0.25))
    assert made[-1] == f"residual branches: multiply each branch's output by {factor}"


def test_umup_lists_what_differs_by_branch() -> None:
    """tau of branch i is 1/(L/2 + i - 1) with all alphas 1, L = 16: branch sqrt(tau/(1+tau))."""
    made = lines(UMuP(), SeenAttention(64, 1 / 64, 256))
    branches = next(line for line in made if line.startswith("residual"))
    first, second, last = (sqrt(1 / (8 + i)) for i in (1, 2, 16))
    assert f"output by {first:.4g}, {second:.4g}, " in branches and f"{last:.4g} (att" in branches
    assert f"stream by {sqrt(8 / 9):.4g}, " in branches
    assert any("head size 64, 256 positions" in line for line in made)
    assert any(line.startswith("gated SiLU, where the model has one: ") for line in made)
    told = lines(UMuP(), SeenAttention(64, 1 / 64, 256), alpha_loss_softmax=2.0)
    assert told[-1] == "loss: multiply the logits by 2"


class Silent:
    """A parameterization of someone's that knows no operations."""

    hyperparameters = ("eta",)
    unit_scaled = False

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        return ParamScale(init_std=1.0)

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        raise ValueError(f"unknown operation {op.kind!r}")


def test_a_parameterization_that_knows_no_operations() -> None:
    assert lines(Silent(), SeenAttention(64)) == []


def test_in_a_plan() -> None:
    """Heads of 8, depth 2 to 8: 1/8 and 0.5."""
    needs = decoder_plan(depth=8).needs
    assert needs[:2] == (
        "attention: 1/d instead of 1/sqrt(d): at head size 8 multiply q k^T by 0.125",
        "residual branches: multiply each branch's output by 0.5",
    )
    assert not any(need.startswith("residual") for need in decoder_plan(depth=2).needs)


@pytest.mark.parametrize("name", ["lm_head", "lm_head.scaled_tied_readout", "wte.weight"])
def test_a_tied_readout(name: str) -> None:
    """m = 4 and alpha_output = 2; the table has absorbed alpha_emb = 8: 2/4/8 = 0.0625."""
    from sweeper.engine.architecture import read_model
    from sweeper.engine.optimizers.first_order import AdamW
    from sweeper.plan.plan import Rules, plan_of
    from sweeper.trial import PluginSpec
    from sweeper.verdict.ladder import Size

    def build(width: int, depth: int) -> Decoder:
        model = Decoder(width, depth)
        model.lm_head.weight = model.wte.weight
        return model

    reading = read_model(build, (32, 2), (128, 2), inputs=TOKENS)
    geometry = {"fan_in": 128, "base_fan_in": 32, "own": 1.0}
    ops = [ScaledOp(name=name, kind="tied_readout", geometry=geometry)]
    rules = Rules(
        parameterization_spec=PluginSpec(name="mup"),
        parameterization=MuP(),
        optimizer_spec=PluginSpec(name="adamw"),
        optimizer=AdamW(),
    )
    sizes = Size(width=32, depth=2), Size(width=128, depth=2)
    hps = PlainHps({**ONES, "alpha_output": 2.0, "alpha_emb": 8.0})
    seen = {"plain": True, "attentions": reading.attentions, "cautions": ["it rounds its sizes"]}
    plan = plan_of(reading.specs, ops, rules, *sizes, hps, {}, **seen)  # type: ignore[arg-type]
    assert plan.operations == {name: {"output": 0.0625}}
    assert plan.needs[-1] == "mind: it rounds its sizes"
    known = name.removesuffix(".scaled_tied_readout")
    said = f"{known}: multiply the logits by 0.0625: the head is tied to the embedding"
    assert said in plan.needs and said in str(plan)
    assert any(need.startswith("attention: ") for need in plan.needs), "it has no modules of ours"


@pytest.mark.parametrize(
    ("parameterization", "depth"), [("mup", 2), ("mup", 40), ("umup", 40), ("spectral", 12)]
)
def test_the_table_is_short_at_any_depth(parameterization: str, depth: int) -> None:
    plan = decoder_plan(
        parameterization, {}, depth=depth, frozen=["wpe.weight"], keep_init=["scale"]
    )
    text = str(plan)
    assert len(text.splitlines()) < 60
    assert text.startswith(f"Plan for n_embd 128, n_layer {depth}, tuned at n_embd 32, n_layer 2\n")
    assert f"{parameterization} with adamw: eta " in text
    table = {line.split("  ")[0]: line.split() for line in text.splitlines() if "  " in line}
    assert table["wpe.weight"][1:] == ["embedding", "frozen", "-", "-", "-"]
    assert table["scale"][1:3] == ["vector", "kept"]
    for need in plan.needs:
        assert f"- {need}" in text


def test_the_table_s_numbers_are_those_of_the_groups() -> None:
    """m = 4, alpha_output = 2: the readout's multiplier 2/4 scales rate and std, divides eps.

    Its gradients, and with them eps, shrink as 1/m before that.
    """
    plan = decoder_plan(hps={"eta": 2.0**-7, "alpha_output": 2.0})
    row: Any = next(line for line in str(plan).splitlines() if line.startswith("lm_head"))
    std, lr, eps = 32**-0.5 / 2, 2.0**-7 / 2, 1e-8 / 4 / 0.5
    assert row.split()[1:] == ["readout", f"{std:.4g}", f"{lr:.4g}", f"{eps:.4g}", "0.0001221"]
    (groups,) = [g for g in plan.param_groups(Decoder(128)) if g["name"] == "lm_head.weight"]
    assert groups["lr"] == pytest.approx(lr) and groups["eps"] == pytest.approx(eps)


def test_a_plan_of_many_unlike_parameters_is_cut() -> None:
    class Cone(torch.nn.Module):
        """Every layer has another width, so no two rows are alike."""

        def __init__(self, width: int) -> None:
            super().__init__()
            sides = [width * i for i in range(1, 70)]
            pairs = pairwise(sides)
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairs))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)  # type: ignore[no-any-return]

    plan = sweeper.plan_for(
        Cone, {"width": 2}, {"width": 4}, "mup", {}, inputs=lambda s: torch.zeros(2, s["width"])
    )
    text = str(plan)
    assert len(text.splitlines()) < 60 and "lines more: plan.absorbed() has every" in text


def test_what_the_comparison_finds_reaches_the_plan() -> None:
    """A tied head, and an embedding times the root of the width: 8 at 64, 11.3 at 128."""

    class Gemma(Decoder):
        def __init__(self, n_embd: int, n_layer: int) -> None:
            super().__init__(n_embd, n_layer)
            self.lm_head.weight = self.wte.weight
            self.root = n_embd**0.5

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.wte(tokens) * self.root
            for block in self.h:
                x = block(x)
            return self.lm_head(x * self.scale + self.wpe.weight[0])  # type: ignore[no-any-return]

    sizes = {"n_embd": 64, "n_layer": 2}, {"n_embd": 128, "n_layer": 2}
    hps = {"alpha_output": 3.0, "alpha_emb": 2.0}
    plan = sweeper.plan_for(Gemma, *sizes, "mup", hps, inputs=TOKENS)
    assert plan.operations["lm_head"] == {"output": pytest.approx(3.0 / 2 / 2)}
    said = "lm_head: multiply the logits by 0.75: the head is tied to the embedding wte.weight"
    assert said in plan.needs
    assert any(
        need.startswith("mind: ") and "11.3" in need and "test_unseen.py:" in need
        for need in plan.needs
    )


def test_layers_that_are_shared_over_depth_have_branches_all_the_same() -> None:
    """No parameter tells its branch: the depths are the target's and the base's."""
    needs = unseen_needs(MuP(), ONES, [], (8, 2), [SeenAttention(64, 1 / 64)])
    found = "residual branches, if the model has any (shared layers): "
    assert needs == [f"{found}multiply each branch's output by 0.5"]
    assert unseen_needs(MuP(), ONES, [], (8, 8), [SeenAttention(64, 1 / 64)]) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("DebertaV2ForMaskedLM", ("attention, as names tell", "residual branches:")),
        ("AlbertForMaskedLM", ("residual branches, if",)),
        ("LlamaForCausalLM", ()),
    ],
)
def test_what_a_family_of_transformers_has_no_place_for_is_told(
    name: str, told: tuple[str, ...]
) -> None:
    words = ["model=hf", f"model.name={name}", "model.width=32", "model.depth=1"]
    settings = resolve(compose_tree([*words, "parameterization=mup", "runner.device=cpu"]))
    size = Size(width=64, depth=4)
    prepared = prepare(settings.spec({"digest": "", "classes": 50}, "float32", size))
    plan = make_plan(prepared, settings.base, size, plain(defaults(settings.space)), {})
    lines = [n for n in plan.needs if n.startswith(("attention", "residual"))]
    assert len(lines) == len(told)
    assert all(line.startswith(start) for line, start in zip(lines, told, strict=True))
