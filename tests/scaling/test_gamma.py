"""Gammas against learning rates worked out by hand, and as nothing at all where they are 1."""

import json
from dataclasses import replace
from functools import cache
from math import sqrt

import pytest
import torch
from torch import nn

from sweeper.config.compose import compose_tree
from sweeper.config.settings import read_space
from sweeper.engine.optimizers.first_order import SGD, AdamW
from sweeper.engine.optimizers.muon import Muon
from sweeper.engine.optimizers.optimizer import Optimizer
from sweeper.engine.prepare import prepare
from sweeper.plan.plan import TransferPlan, make_plan
from sweeper.records import from_json, to_json
from sweeper.report.console import plan_table
from sweeper.scaling.gamma import GAMMAS, in_groups
from sweeper.scaling.prescription import SETTING_FACTORS, prescription_of
from sweeper.scaling.spec import ParamSpec
from sweeper.stats.ladder import Size
from sweeper.trial import PlainHps, Trial, plain
from tests.engine.test_faithful import REFUSED
from tests.engine.tiny_trials import PARAMETERIZATIONS, tree
from tests.refusals import raises_config_error
from tests.scaling.test_conformance import NAMES, config, parameterization
from tests.specs import spec_of, specs_between
from tests.toy_models import Residual

OPTIMIZERS: dict[str, Optimizer] = {"adamw": AdamW(), "sgd": SGD(), "muon": Muon()}


def net(width: int, depth: int) -> Residual:
    made = Residual(width, depth)
    made.head = nn.Linear(width, 11)
    return made


@cache
def specs(depth: int = 2) -> dict[str, ParamSpec]:
    """The net's at width 64, from a base of 16: m = 4."""
    inputs = (torch.zeros(2, 6).long(),) * 2
    between = specs_between(net, base=(16, 2), target=(64, depth), inputs=inputs)
    return {spec.name: spec for spec in between}


ETA = 0.5
TUNED = {
    "eta_emb": 3.0,
    "gamma_embedding": 5.0,
    "gamma_hidden": 7.0,
    "gamma_readout": 11.0,
    "gamma_norm": 13.0,
    "gamma_bias": 17.0,
}
PRODUCTS = {
    "tokens.weight": 3.0 * 5.0,
    "layers.0.0.weight": 5.0 * 13.0,
    "layers.0.0.bias": 5.0 * 17.0,
    "layers.0.1.weight": 7.0,
    "layers.0.1.bias": 5.0 * 17.0,
    "head.weight": 11.0,
    "head.bias": 5.0 * 17.0,
}
"""What multiplies eta and the power of m, by the groups that each parameter is in."""
BY_HAND = {
    "tokens.weight": 1 / 8,
    "layers.0.0.weight": 1 / sqrt(2),
    "layers.0.0.bias": 1 / sqrt(2),
    "layers.0.1.weight": 1 / 8 / sqrt(2),
    "layers.0.1.bias": 1 / sqrt(2),
}
"""u-muP (Table 1): 1/sqrt(fan-out) for the embedding, 1/sqrt(fan-in) for hidden weights, of which
those on branches have 1/sqrt(depth) besides."""


def test_rates_are_those_worked_out_by_hand() -> None:
    made, hps = parameterization("umup"), ones("umup") | {"eta": ETA} | TUNED
    for parameter, times in PRODUCTS.items():
        lr = prescription_of(specs()[parameter], made, AdamW(), PlainHps(hps)).lr
        assert lr == pytest.approx(ETA * times * BY_HAND.get(parameter, 1.0), rel=1e-12), parameter


@cache
def ones(name: str) -> dict[str, float]:
    return dict.fromkeys(read_space(config(name), SETTING_FACTORS), 1.0)


DECAYS = ("independent", "coupled", "scaled")
PAIRS = [("umup", "independent"), *(("mup", decay) for decay in DECAYS)]
PAIRS += [(n, DECAYS[i % 3]) for i, n in enumerate(NAMES) if n not in ("mup", "umup")]
"""Every rule with one decay, and one rule with all; u-muP has one alone."""


@pytest.mark.parametrize(("name", "decay"), PAIRS)
def test_they_multiply_rates_and_what_is_coupled_to_them(name: str, decay: str) -> None:
    made = parameterization(name, **({} if name == "umup" else {"decay": decay}))
    # Under absolute rules a scaled decay is eta's alone.
    absolute = name in ("spectral", "spectral_mup", "effective_theory")
    follows = decay == "coupled" or (decay == "scaled" and not absolute)
    bare = {key: 1.0 for key in ones(name) if key not in GAMMAS}
    for optimizer in (OPTIMIZERS[key] for key in OPTIMIZERS if (key, name) not in REFUSED):
        for parameter, spec in specs().items():
            times = PRODUCTS.get(parameter.replace("layers.1", "layers.0"), 0.0)
            without, with_ones, tuned = (
                prescription_of(spec, made, optimizer, PlainHps(bare | gammas))
                for gammas in ({}, dict.fromkeys(GAMMAS, 1.0), TUNED)
            )
            assert with_ones == without
            assert tuned.lr == pytest.approx(times * without.lr, rel=1e-12)
            expected = without.weight_decay * (times if follows else 1.0)
            assert tuned.weight_decay == pytest.approx(expected, rel=1e-12)
            kept = replace(tuned, lr=without.lr, weight_decay=without.weight_decay)
            assert kept == without, "nothing else changes"


def test_standard_with_an_alignment_searches_its_constants() -> None:
    for alignment, ends in (("null", (0, 0)), ("full", (-3, 3))):
        overrides = ["parameterization=standard", f"parameterization.alignment={alignment}"]
        space = read_space(compose_tree(overrides)["parameterization"], ())
        for role in ("embedding", "hidden", "readout"):
            axis = space[f"gamma_{role}"]
            assert (axis.low, axis.high, axis.default) == (*ends, 0)


def groups_in(specs: dict[str, ParamSpec], **groups: str) -> dict[str, str]:
    grouped = in_groups(tuple(specs.values()), groups)
    return {spec.name: spec.group for spec in grouped if spec.group}


def test_a_group_is_what_its_pattern_matches() -> None:
    group_of = groups_in(specs(), first="layers.0.*", ends="head.*")
    expected = {name: "first" for name in specs() if name.startswith("layers.0.")}
    assert group_of == expected | {"head.weight": "ends", "head.bias": "ends"}


@pytest.mark.parametrize(("depth", "first"), [(2, 1), (8, 4), (3, 1)])
def test_a_range_of_depth_grows_with_the_depth(depth: int, first: int) -> None:
    group_of = groups_in(specs(depth), first="0%-50%", last="50%-100%")
    layers = {name.split(".")[1] for name, group in group_of.items() if group == "first"}
    assert layers == set(map(str, range(first)))
    assert {name.split(".")[0] for name in group_of} == {"layers"}, "all of them, and no more"
    assert len(group_of) == 4 * depth


@pytest.mark.parametrize(
    ("groups", "key", "value"),
    [
        ({"first": "blocks.0.*"}, "groups.first", "blocks.0.*"),
        ({"first": "0%-20%"}, "groups.first", "0%-20%"),
        ({"first": "layers.0.*", "norms": "*.0.weight"}, "groups.norms", "*.0.weight"),
        ({"first": "0%-50%", "last": "layers.1*"}, "groups.last", "layers.1*"),  # of four layers
        ({"hidden": "layers.*"}, "groups.hidden", "layers.*"),
        ({"a b": "layers.*"}, "groups", "a b"),
    ],
)  # fmt: skip
def test_what_is_no_group_is_refused(groups: dict[str, str], key: str, value: str) -> None:
    with raises_config_error(key, value):
        in_groups(tuple(specs().values()), groups)


def test_a_group_needs_its_gamma() -> None:
    made = config("umup") | {"groups": {"first": "layers.0.*"}}
    with raises_config_error("space.gamma_first", None):
        read_space(made, ())
    axis = {"low": -3, "high": 3, "default": 0}
    space = read_space(made | {"space": made["space"] | {"gamma_first": axis}}, ())
    assert space["gamma_first"].high == 3
    with raises_config_error("space.gamma_last", axis):
        read_space(made | {"space": made["space"] | {"gamma_first": axis, "gamma_last": axis}}, ())


def in_first_layer(name: str = "umup", **gammas: float) -> Trial:
    made = tree(name)
    made["parameterization"] = made["parameterization"] | {"groups": {"first": "layers.0.*"}}
    hps = dict.fromkeys(PARAMETERIZATIONS[name][1], 0.0) | {"gamma_first": 0.0} | gammas
    return Trial(spec=spec_of(made), log2_hps=hps)  # type: ignore[arg-type]


def test_a_group_s_constant_multiplies_its_rates_alone() -> None:
    plain, tuned = in_first_layer(), in_first_layer(gamma_first=2.0, gamma_hidden=1.0)
    before, after = (prepare(trial.spec).trained_with(trial.hps) for trial in (plain, tuned))
    for name, setting in before.items():
        hidden = 1.0 if name.startswith(("embedding", "head")) else 2.0
        group = 4.0 if name.startswith("layers.0.") else 1.0
        assert after[name] == replace(setting, lr=setting.lr * hidden * group), name


def test_a_bad_group_is_told_by_its_key() -> None:
    made = tree("umup")
    made["parameterization"] = made["parameterization"] | {"groups": {"first": "blocks.*"}}
    with raises_config_error("parameterization.groups.first"):
        prepare(spec_of(made))


def test_the_plan_says_gamma_and_exponent_beside_their_product() -> None:
    trial = in_first_layer(gamma_first=2.0, gamma_hidden=1.0)
    sizes = Size(width=16, depth=1), Size(width=32, depth=2)
    plan = make_plan(prepare(trial.spec), *sizes, plain(trial.log2_hps), {})
    assert plan.hps["gamma_first"] == 4.0
    by_name = {parameter.name: parameter for parameter in plan.parameters}
    matrix = by_name["layers.0.attention.out.weight"]
    # u-muP's hidden weights: 1/sqrt(fan-in), and 1/sqrt(depth) on a branch.
    assert (matrix.gamma, matrix.lr_exponent) == (8.0, 0.5)
    assert matrix.target.lr == pytest.approx(8 / sqrt(32) / sqrt(2))
    assert (by_name["head.weight"].gamma, by_name["head.weight"].lr_exponent) == (1.0, 0.0)
    written = to_json(plan)
    assert from_json(TransferPlan, json.loads(json.dumps(written))) == plan
    # Of 1, too: nobody has to know what is meant where a file says nothing.
    assert all({"gamma", "lr_exponent"} <= parameter.keys() for parameter in written["parameters"])
    names = [column.name for column in plan_table(plan).columns]
    assert names[-1] == "gamma"
