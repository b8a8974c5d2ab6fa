"""Factors of a plan's forward pass, as records and as sentences; by hand from the papers' rules."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from math import sqrt

import pytest
import torch
from rich.console import Console

import sweeper
from sweeper.classifier.operations import SeenAttention
from sweeper.config.compose import compose_tree
from sweeper.config.settings import resolve
from sweeper.engine.architecture import Architecture
from sweeper.engine.prepare import prepare
from sweeper.plan.explanation import Explained, tied_readouts
from sweeper.plan.factors import TO_BE_SEEN, OpFactors, ask, needs, planned_factors
from sweeper.plan.plan import TransferPlan, make_plan
from sweeper.records import from_json, to_json
from sweeper.report import console as show
from sweeper.report import present
from sweeper.report.output import Output
from sweeper.report.terminal import Terminal
from sweeper.scaling.relative import MuP, Standard
from sweeper.scaling.spec import Parameterization, ParamScale, ParamSpec, Role, ScaledOp, Update
from sweeper.scaling.umup import UMuP
from sweeper.stats.ladder import Size
from sweeper.trial import PlainHps, defaults, plain
from sweeper.verbs.requests import ExplainRequest
from tests.golden import Golden
from tests.plan.helpers import plain_plan, plan
from tests.plan.test_planning import HPS, decoder_plan
from tests.refusals import raises_config_error
from tests.scaling.weights import weight
from tests.specs import specs_between
from tests.toy_models import TOKENS, NanoDecoder

ONES = PlainHps(dict.fromkeys((*MuP.hyperparameters, *UMuP.hyperparameters, "gamma_hidden"), 1.0))
BRANCH = weight(Role.HIDDEN, 4, 4, name="h.0.weight", residual=True, depth=8, base_depth=2)


def by_kind(planned: TransferPlan, kind: str, factor: str) -> list[tuple[str, float, float]]:
    rows = [f for f in planned.factors or () if (f.kind, f.factor) == (kind, factor)]
    return [(f.where, f.value, f.usual) for f in rows]


def test_operations_that_are_known_have_their_names_and_values() -> None:
    ours = plan("umup")
    for kind, key in (("residual", "branch"), ("attention", "logit"), ("loss", "logit")):
        values = {where: value for where, value, _ in by_kind(ours, kind, key)}
        assert values
        for where, value in values.items():
            assert ours.operations[where][key] == value
    assert {f.branch for f in ours.factors or () if f.kind == "residual"} == {1, 2, 3, 4}


def attention(name: str) -> ScaledOp:
    return ScaledOp(name=name, kind="attention", geometry={"head_size": 4})


def test_calls_of_one_module_that_differ_are_all_told() -> None:
    names = ("block.scaled_attention", "block.scaled_attention_")
    answers = [
        OpFactors(op=attention(name), factors={"logit": value}, where="block")
        for name, value in zip(names, (0.0625, 0.25), strict=True)
    ]
    (line,) = needs(answers, {}, unit_scaled=False, decay=False)
    assert line.startswith("block: multiply q k^T by 0.0625 to 0.25 (by call: see `operations`)")


def test_a_tied_weight_is_named() -> None:
    def need(*, lookup: bool) -> str:
        geometry = {"parameter": "slots.0", "lookup": lookup}
        op = ScaledOp(name="memory", kind="tied_readout", geometry=geometry)
        answer = OpFactors(op=op, factors={"output": 0.25}, where="memory")
        return needs([answer], {}, unit_scaled=False, decay=False)[0]

    head = "multiply the logits by 0.25: the head is tied to the embedding slots.*"
    assert need(lookup=True) == f"memory: {head}"
    product = "multiply the product with slots.* that sums over the width by 0.25"
    assert need(lookup=False) == f"memory: {product}: it is used both ways"


def hidden_needs(
    parameterization: Parameterization,
    hps: PlainHps,
    specs: Sequence[ParamSpec],
    depths: tuple[int, int],
    attentions: Collection[SeenAttention] = (),
) -> list[str]:
    """What a plain model is asked for that shows nothing but some attention that nothing scales."""
    model = Architecture(specs=tuple(specs), scaled_ops=(), attentions=frozenset(attentions))
    answers = ask(parameterization, hps, model, depths)
    return needs(answers, {}, unit_scaled=False, decay=False)


def lines(parameterization: Parameterization, *heads: SeenAttention, **hps: float) -> list[str]:
    return hidden_needs(parameterization, PlainHps({**ONES, **hps}), [BRANCH], (2, 2), heads)


def test_what_the_model_does_already_is_not_asked_for(golden: Golden) -> None:
    assert lines(MuP(depth="none"), SeenAttention(64, 1 / 64)) == []
    (need,) = lines(MuP(depth="none"), SeenAttention(64, 1 / 64), SeenAttention(64))
    golden.says(need)
    assert lines(Standard(), SeenAttention(64)) == [] == lines(Standard())


def test_several_head_sizes_or_none_seen_get_the_formula() -> None:
    formula = "multiply q k^T by 1.5/d instead of 1/sqrt(d), d being the size of a head"
    parameterization = MuP(depth="none")
    two_sizes = lines(parameterization, SeenAttention(64), SeenAttention(32), alpha_attn=1.5)
    assert two_sizes == [f"attention: {formula}"]
    hps = PlainHps({**ONES, "alpha_attn": 1.5})
    for name, expected in (
        ("h.0.attn.q", True),
        ("self_attention.q", True),
        ("pattern.q", False),
        ("mlp", False),
    ):
        asked = hidden_needs(parameterization, hps, [replace(BRANCH, name=name)], (2, 2))
        needed = f"attention, as names tell: {formula}; {TO_BE_SEEN}"
        assert asked == [needed] * expected, name


def test_of_attention_that_was_not_seen_no_number_is_invented() -> None:
    """u-muP's factor of the output goes by the size of a head and the number of positions."""
    named = replace(BRANCH, name="h.0.attn.q")
    hps = PlainHps(ONES)
    (need,) = (n for n in hidden_needs(UMuP(), hps, [named], (2, 2)) if n.startswith("attention"))
    assert "its output has a factor, too, which is not known" in need and "64" not in need
    assert "F.scaled_dot_product_attention(q, k, v)" in need
    model = Architecture(specs=(named,), scaled_ops=())
    rows = planned_factors(ask(UMuP(), hps, model, (2, 2)))
    (logit,) = (f for f in rows if f.kind == "attention")
    assert (logit.where, logit.factor) == ("attention, none seen; at 64", "logit")
    assert not by_kind(plain_plan(), "attention", "logit")


def test_umup_lists_what_differs_by_branch() -> None:
    """tau of branch i is 1/(L/2 + i - 1) with all alphas 1, L = 16: branch sqrt(tau/(1+tau))."""
    made = lines(UMuP(), SeenAttention(64, 1 / 64, 256))
    branches = next(line for line in made if line.startswith("residual"))
    first, second, last = (sqrt(1 / (8 + i)) for i in (1, 2, 16))
    assert f"output by {first:.4g}, {second:.4g}, " in branches and f"{last:.4g} (att" in branches
    assert f"stream by {sqrt(8 / 9):.4g}, " in branches
    listed = branches.partition("output by ")[2].partition(" (")[0].split(", ")
    assert len(listed) == 7 and listed[4] == "...", "of many the first and the last"
    assert any("head size 64, 256 positions" in line for line in made)
    assert any(line.startswith("gated SiLU, where the model has one: ") for line in made)
    with_loss = lines(UMuP(), SeenAttention(64, 1 / 64, 256), alpha_loss_softmax=2.0)
    assert with_loss[-1] == "loss: multiply the logits by 2"


class Silent:
    hyperparameters = ("eta",)
    unit_scaled = False

    def scale(self, spec: ParamSpec, hps: PlainHps, update: Update = Update.SIGN) -> ParamScale:
        return ParamScale(init_std=1.0)

    def scale_op(self, op: ScaledOp, hps: PlainHps) -> dict[str, float]:
        raise ValueError(f"unknown operation {op.kind!r}")


def test_a_parameterization_that_knows_no_operations() -> None:
    assert lines(Silent(), SeenAttention(64)) == []


def test_in_a_plan() -> None:
    """Heads of 8, depth 2 to 8: 1/8 and 0.5. Factors are told also where they are the usual."""
    plan, deeper = decoder_plan(depth=2), decoder_plan(depth=8)
    assert deeper.needs[:2] == (
        "h.*: multiply q k^T by 0.125 where head size^-1/2 is usual",
        "residual branches: multiply each branch's output by 0.5",
    )
    assert not any(need.startswith("residual") for need in plan.needs)
    usual = pytest.approx(8**-0.5)
    heads = by_kind(plan, "attention", "logit")
    assert heads == [("h.0", 1 / 8, usual), ("h.1", 1 / 8, usual)]
    assert by_kind(plan, "residual", "branch") == [("residual branches", 1.0, 1.0)] * 4
    branches = by_kind(deeper, "residual", "branch")
    assert branches == [("residual branches", pytest.approx(0.5), 1.0)] * 16
    record = to_json(plan)
    assert from_json(TransferPlan, record).factors == plan.factors
    del record["factors"]  # as in older ones
    assert from_json(TransferPlan, record).factors is None


def test_branches_that_are_named_have_factors_of_their_own() -> None:
    plan = decoder_plan(depth=8, branches=["h.*.out", "h.*.down"])
    assert plan.operations["h.7.down.scaled_residual"]["branch"] == pytest.approx(0.5)
    assert "h.*.down: multiply the branch's output by 0.5" in plan.needs
    assert not any(need.startswith("residual branches") for need in plan.needs)
    with raises_config_error("branches", "k.*"):
        decoder_plan(branches=["h.*.up", "k.*"])


def test_a_target_that_cannot_run_here_has_its_attention_seen_at_the_base() -> None:
    class Routed(NanoDecoder):
        """Looks at values, so that it must be built with some; the target is too large for that."""

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens) * float(self.scale.sum() != 0)

    sizes = {"n_embd": 32, "n_layer": 2}, {"n_embd": 1536, "n_layer": 2}
    plan = sweeper.plan_for(Routed, *sizes, "mup", HPS, inputs=TOKENS)
    assert any("at head size 8 multiply q k^T by 0.125" in need for need in plan.needs)
    heads = ("attention of heads of 8", 1 / 8, pytest.approx(8**-0.5))
    assert by_kind(plan, "attention", "logit") == [heads]


def test_a_plan_of_many_unlike_parameters_is_cut(golden: Golden) -> None:
    class Cone(torch.nn.Module):
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
    assert len(text.splitlines()) < 60
    golden.says(text)


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        pytest.param(
            *("DebertaV2ForMaskedLM", ("attention: 1/d", "residual branches:")),
            marks=pytest.mark.long,
        ),
        ("AlbertForMaskedLM", ("residual branches, if",)),
        pytest.param("LlamaForCausalLM", (), marks=pytest.mark.long),
    ],
)
def test_what_a_family_of_transformers_has_no_place_for_is_told(
    name: str, starts: tuple[str, ...]
) -> None:
    overrides = ["model=hf", f"model.name={name}", "model.width=32", "model.depth=1"]
    settings = resolve(compose_tree([*overrides, "parameterization=mup", "runner.device=cpu"]))
    size = Size(width=64, depth=4)
    spec = settings.spec({"digest": "", "classes": 50}, "float32", size)

    def planned(runner: str) -> TransferPlan:
        made = prepare(replace(spec, runner={"name": runner}))
        return make_plan(made, settings.base, size, plain(defaults(settings.space)), {})

    script, engine = planned("command"), planned("engine")
    lines = [n for n in script.needs if n.startswith(("attention", "residual"))]
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    # The engine trained the model as it is, and so it is planned: with the search's own words.
    assert not [n for n in engine.needs if n.startswith(("attention", "residual"))]
    assert {f"mind: {note}" for note in settings.notes if "model's own code" in note} <= {
        *engine.needs
    }
    branches = {value for _, value, _ in by_kind(engine, "residual", "branch")}
    assert branches == ({1.0} if starts else {0.5})
    if starts and starts[0].startswith("attention"):
        assert [row[1:] for row in by_kind(script, "attention", "logit")] == [(1 / 16, 1 / 4)]
        assert [row[1:] for row in by_kind(engine, "attention", "logit")] == [(1 / 4, 1 / 4)]


# 'sweeper explain': the JSON is whole; what is kept, frozen, given or tied is told.


def test_every_field_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(people=Console(stderr=True, width=200), json=True)
    small = ("model.width=32", "model.depth=1", "train.seq_len=8", "parameterization=mup")
    assert present.ask(ExplainRequest(to_width=64, to_depth=2, overrides=small), output)[0] == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["parameters"]}
    assert len(rows) == 2 + 2 * 4
    row = rows["layers.1.ffn.down.weight"]
    base = row.pop("base")
    numbers = {"init_std", "multiplier", "lr", "eps", "weight_decay"}
    assert isinstance(base, dict) and base.keys() == numbers
    facts = {"name", "role", "init", "shape", "base_shape", "fan_in", "fan_out"}
    facts |= {"update", "frozen", "gamma", "why"}
    assert row.keys() == facts | numbers | {"a", "b", "c", "norm_of"}
    assert (row["role"], row["fan_in"], row["shape"]) == ("hidden", 176, [64, 176])
    assert (row["a"], row["b"], row["c"]) == (0, 0.5, 1)
    assert row["lr"] == pytest.approx(base["lr"] / 2 / 2**0.5)


def test_kept_frozen_and_given_roles_are_shown() -> None:
    """The same rows as without them, but where the values start."""
    plan = decoder_plan(keep_init=["scale"], frozen=["h.0.norm.weight"])
    why = "role given, traced as embedding: looked up"
    rows = [Explained(parameter=p, a=0, b=0, c=0, why=why) for p in plan.parameters]
    paper = Console(record=True, width=160, file=StringIO())
    Terminal(paper, verbose=True).print([*show.explanation(plan, rows), *show.plan(plan)])
    lines = paper.export_text().splitlines()
    assert sum(line.split()[:1] == ["scale"] and "kept" in line for line in lines) == 2
    first, second = (f"h.{layer}.norm.weight" for layer in (0, 1))
    assert sum(line.split()[:1] == [first] and "frozen" in line for line in lines) == 2
    assert sum(line.split()[:1] == [second] and "ones" in line for line in lines) == 2
    assert any("role given, traced as embedding" in line for line in lines)


def test_tied_readouts_are_told(golden: Golden) -> None:
    def build(width: int, depth: int) -> NanoDecoder:
        model = NanoDecoder(width, depth)
        model.lm_head.weight = model.wte.weight
        return model

    specs = specs_between(build, base=(32, 2), target=(128, 2), inputs=torch.zeros(2, 6).long())
    geometry = {"fan_in": 128, "base_fan_in": 32, "built_in": 0.5}
    op = ScaledOp(name="lm_head", kind="tied_readout", geometry=geometry)
    attention = ScaledOp(name="core", kind="attention", geometry={})
    (line,) = tied_readouts(specs, [attention, op], {"lm_head": {"output": 0.5}})
    assert line.startswith("tied readout lm_head: its weight is wte.weight")
    golden.says(line)
