"""What `explain` says of families x parameterizations x optimizers: a change is a diff."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from sweeper.config.compose import compose_tree
from sweeper.config.settings import placeholder_data, resolve
from sweeper.engine.prepare import prepare
from sweeper.errors import ConfigError
from sweeper.plan.explanation import Explained, explain
from sweeper.plan.plan import make_plan
from sweeper.registry import groups
from sweeper.stats.ladder import Size
from sweeper.trial import defaults, plain
from tests.engine.optimizers import CONF
from tests.golden import Golden

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
        settings: Mapping[str, Any] = yaml.safe_load((CONF / f"{option}.yaml").read_text())
        return settings
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
        return prepare(settings.spec(placeholder_data(settings), "float32", size))

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
