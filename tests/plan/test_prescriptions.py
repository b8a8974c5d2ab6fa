"""The engine trains with the plan's numbers, for every parameterization and optimizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from sweeper.config.compose import compose_tree
from sweeper.config.settings import resolve
from sweeper.data.corpus import placeholder_data
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.prepare import prepare
from sweeper.errors import ConfigError
from sweeper.models.initial_values import normal
from sweeper.plan.explanation import Explained, explain
from sweeper.plan.plan import PlannedParameter, TransferPlan, make_plan
from sweeper.registry import groups, plugins, takes_eps
from sweeper.stats.ladder import Size
from sweeper.trial import Log2Hps, Trial, TrialSpec, defaults, plain
from tests.engine.test_faithful import REFUSED
from tests.engine.tiny_trials import corpus, tree
from tests.golden import Golden
from tests.specs import spec_of

CONF = Path(__file__).parents[2] / "conf"
SEEDS = (3, 5)


def names(group: str) -> list[str]:
    return sorted(set(plugins()[group]) - {"own"})


def config(group: str, name: str) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    return made


def configured(parameterization: str, optimizer: str) -> tuple[TrialSpec, list[Log2Hps]]:
    """A specification of the two configs, twice its base's size, and two trials' log2 values.

    No hyperparameter is at its default, and no two are alike.
    """
    made_of = config("parameterization", parameterization)
    space = {**made_of.pop("space"), "weight_decay": None, "eps": None}
    made = tree("umup")
    made |= {"parameterization": made_of, "optimizer": config("optimizer", optimizer)}
    made["model"]["norm_gain"] = True
    first = {name: 0.25 + 0.125 * i for i, name in enumerate(space)}
    second = {name: -0.5 * value for name, value in first.items()}
    return spec_of(made), [Log2Hps(first), Log2Hps(second)]


def planned(spec: TrialSpec, log2_hps: Log2Hps) -> TransferPlan:
    base = Size(width=spec.base_width, depth=spec.base_depth)
    target = Size(width=spec.width, depth=spec.depth)
    return make_plan(prepare(spec), base, target, plain(log2_hps), {})


def trained_with(run: BatchedRun, index: int, trial: int) -> dict[str, float]:
    name = list(run.params)[index]
    module = name.rpartition(".")[0]
    multiplier = run.buffers.get(f"{module}.multiplier", torch.ones(len(run.slots)))
    backward = run.buffers.get(f"{module}.backward_multiplier", multiplier)
    tensors: dict[str, Tensor] = {
        "multiplier": multiplier,
        "backward_multiplier": backward,
        "lr": run.update_hps.lr[index],
        "eps": run.update_hps.eps[index],
        "weight_decay": run.update_hps.weight_decay[index],
    }
    return {key: value[trial].item() for key, value in tensors.items()}


def initial(parameter: PlannedParameter, seed: int) -> Tensor:
    if parameter.init == "normal":
        return normal(parameter.name, parameter.shape, seed) * parameter.target.init_std
    return torch.full(parameter.shape, {"ones": 1.0, "zeros": 0.0}[parameter.init]).double()


@pytest.mark.parametrize(
    ("parameterization", "optimizer"),
    [
        # Pairwise: each optimizer under muP, each parameterization with AdamW.
        pytest.param(*pair, marks=() if {"mup", "adamw"} & {*pair} else pytest.mark.long)
        for pair in product(names("parameterization"), names("optimizer"))
        if pair[::-1] not in REFUSED
    ],
)
def test_the_engine_trains_with_the_plan_s_numbers(
    parameterization: str, optimizer: str, tmp_path: Path
) -> None:
    """In float64 and to the last bit, in a batch of two trials that differ in every number."""
    spec, values = configured(parameterization, optimizer)
    trials = [Trial(spec=spec, log2_hps=h, seed=s) for h, s in zip(values, SEEDS, strict=True)]
    run = BatchedRun(BatchedTrials(trials=tuple(trials), corpus=corpus(tmp_path)))
    for k, (hps, seed) in enumerate(zip(values, SEEDS, strict=True)):
        plan = planned(spec, hps)
        assert [parameter.name for parameter in plan.parameters] == list(run.params)
        for i, parameter in enumerate(plan.parameters):
            expected = vars(parameter.target).copy()
            del expected["init_std"]
            trained = trained_with(run, i, k)
            if not takes_eps(optimizer, spec.optimizer.arguments):
                # Whatever it is given plays no part, and a plan names none.
                trained["eps"] = 0.0
            assert trained == expected, parameter.name
            assert torch.equal(run.params[parameter.name][k], initial(parameter, seed))
        for name, factors in plan.operations.items():
            for buffer, value in factors.items():
                assert run.buffers[f"{name}.{buffer}"][k].item() == value


# What 'explain' says of families x parameterizations x optimizers: a change is a diff.


FAMILIES = dict.fromkeys(("llama", "moe", "hf"), "text") | {"encoder_decoder": "spans"}
FAMILIES |= dict.fromkeys(("vit", "mlp"), "digits")
"""Families, and the data that they read; `hf` is transformers' Llama."""
BASE, TARGET = Size(width=32, depth=1), Size(width=64, depth=2)
LAYER = re.compile(r"(?<=\.)\d+(?=[.(])")
PARAMETERIZATIONS = [name for name in groups()["parameterization"] if name != "own"]


@cache
def section(group: str, option: str) -> Mapping[str, Any]:
    """A group's settings; each is read but once, as composing takes the longest."""
    if group == "optimizer":
        return config("optimizer", option)
    overrides = [f"{group}={option}", *["data.path=x"] * (option in ("text", "spans"))]
    return compose_tree(overrides)[group]  # type: ignore[no-any-return]


# Of a decoder every parameterization is in every run; of one with experts, as roles are no
# parameterization's affair and have tests of their own, muP.
COMBINATIONS = [
    pytest.param(
        family,
        name,
        marks=() if family == "llama" or (family, name) == ("moe", "mup") else pytest.mark.long,
    )
    for family in FAMILIES
    for name in PARAMETERIZATIONS
]


@pytest.mark.parametrize(("family", "parameterization"), COMBINATIONS)
def test_every_familys_prescriptions(family: str, parameterization: str, golden: Golden) -> None:
    if family == "hf":
        pytest.importorskip("transformers")
    text = "\n".join(
        f"{optimizer}\n{lines(family, parameterization, optimizer)}\n"
        for optimizer in groups()["optimizer"]
    )
    golden.check(f"explain/{family}-{parameterization}", HEAD + text)


HEAD = """\
# The target has width 64 and depth 2, the base width 32 and depth 1; hyperparameters are the
# defaults. A line: parameter, its role and its update's kind; the exponents (a, b, c) of the width
# in multiplier m^-a, init std m^-b and learning rate m^-c; the target's multiplier, init std,
# learning rate, eps and decay a step. Below, factors of operations.

"""


def lines(family: str, parameterization: str, optimizer: str) -> str:
    tree = {
        **whole_tree(),
        "model": {**section("model", family), "width": BASE.width, "depth": BASE.depth},
        "data": section("data", FAMILIES[family]),
        "parameterization": section("parameterization", parameterization),
        "optimizer": section("optimizer", optimizer),
    }
    try:
        settings = resolve(tree)
    except ConfigError as error:
        return f"  refused: {error.key}"

    def prepared(width: int) -> Any:
        size = Size(width=width, depth=TARGET.depth)
        return prepare(settings.spec(placeholder_data(settings.source), "float32", size))

    hps = plain(defaults(settings.space))
    plan = make_plan(prepared(TARGET.width), BASE, TARGET, hps, {})
    rows = explain(plan, prepared(BASE.width), prepared(4 * BASE.width), hps)
    texts = [f"  {row.parameter.name}: {described(row)}" for row in rows]
    texts += [
        f"  {name}(): " + ", ".join(f"{key} {value:.6g}" for key, value in sorted(factors.items()))
        for name, factors in plan.operations.items()
    ]
    # Of layers that are alike one line stands for all.
    alike: dict[str, set[str]] = {}
    for text in texts:
        name, _, numbers = text.partition(": ")
        alike.setdefault(LAYER.sub("*", name), set()).add(numbers)
    merged = {name: f"{name}: {rows.pop()}" for name, rows in alike.items() if len(rows) == 1}
    names = [LAYER.sub("*", text.partition(": ")[0]) for text in texts]
    return "\n".join(
        dict.fromkeys(merged.get(name, text) for name, text in zip(names, texts, strict=True))
    )


@cache
def whole_tree() -> Mapping[str, Any]:
    return compose_tree(["train.seq_len=16"])


def described(row: Explained) -> str:
    target = row.parameter.target
    numbers = [
        f"{target.multiplier:.6g}",
        f"std {target.init_std:.6g}",
        f"lr {target.lr:.6g}",
        f"eps {target.eps:.6g}",
        f"decay {target.weight_decay:.6g}",
    ]
    if target.backward_multiplier != target.multiplier:
        numbers.append(f"backward {target.backward_multiplier:.6g}")
    exponents = f"({row.a:g}, {row.b:g}, {row.c:g})"
    return f"{row.parameter.role} {row.parameter.update}; {exponents}; {', '.join(numbers)}"
