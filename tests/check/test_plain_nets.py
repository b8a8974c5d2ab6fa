"""The coordinate check on plain nets, which tell its own faults from those of a rule."""

from __future__ import annotations

from typing import Any

import pytest

from sweeper.check.judge import CheckRule, CoordinateCheck, check_coordinates
from sweeper.data.corpus import TokenCorpus
from sweeper.engine.measure import measure_modules
from sweeper.stats.ladder import Size
from sweeper.trial import Trial
from tests.engine.tiny_trials import PARAMETERIZATIONS, check_tree, corpus
from tests.specs import spec_of

RULE = CheckRule(steps=4, seeds=6)
WIDTHS = (16, 32, 64)
LARGE = -6.0
"""log2 of a large rate: that the first logits shrink with the width tells then."""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    return corpus(tmp_path_factory.mktemp("tokens"), classes=64)


def trial(parameterization: str, width: int, seed: int, **net: Any) -> Trial:
    made = check_tree(parameterization, RULE.steps)
    made["model"] = {"_target_": "tests.toy_models.PlainNet", "width": width, "depth": 3}
    made["model"] |= net
    made["base"] = {"width": 16, "depth": 3}
    made["data"]["classes"] = 64
    made["optimizer"] |= {"weight_decay": 0.0, "eps": 1e-15}
    hps = dict.fromkeys(PARAMETERIZATIONS[parameterization][1], 0.0) | {"eta": LARGE}
    return Trial(spec=spec_of(made), log2_hps=hps, seed=seed)


def checked(tokens: TokenCorpus, parameterization: str, **net: Any) -> CoordinateCheck:
    runs = {
        Size(width=width, depth=3): [
            measure_modules(trial(parameterization, width, seed, **net), tokens)
            for seed in range(RULE.seeds)
        ]
        for width in WIDTHS
    }
    return check_coordinates("width", runs, RULE)


LONG: list[dict[str, Any]] = [
    *({"kind": "linear", "norm": True}, {"kind": "linear", "residual": False}),
    *({"kind": "conv", "norm": True}, {"kind": "attention"}, {"kind": "rnn", "residual": False}),
]
NETS = [{"kind": "conv"}, *(pytest.param(net, marks=pytest.mark.long) for net in LONG)]


@pytest.mark.parametrize("net", NETS, ids=lambda net: " ".join(map(str, net.values())))
def test_plain_nets_fail_under_one_rate_alone(tokens: TokenCorpus, net: dict[str, Any]) -> None:
    right = checked(tokens, "mup", **net)
    assert right.answer != "fail", right.origins
    head = next(module for module in right.modules if module.name == "head").slopes[-1]
    assert head.quantity == "direct" and abs(head.slope.value) < RULE.threshold
    wrong = checked(tokens, "standard", **net)
    assert wrong.answer == "fail"
