"""The coordinate check on plain nets, which tell its own faults from those of a rule."""

from __future__ import annotations

from typing import Any

import pytest
from mup import MuReadout, set_base_shapes
from mup.optim import MuAdam
from torch import Tensor

from sweeper.check.judge import CheckRule, CoordinateCheck, check_coordinates
from sweeper.data.corpus import TokenCorpus
from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.measure import measure_modules
from sweeper.stats.ladder import Size
from sweeper.trial import Trial
from tests.engine.tiny_trials import PARAMETERIZATIONS, check_tree, corpus
from tests.specs import spec_of
from tests.toy_models import PlainNet

RULE = CheckRule(steps=4, seeds=6)
WIDTHS = (16, 32, 64)
LARGE = -6.0
"""log2 of a large rate: that the first logits shrink with the width tells then."""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    return corpus(tmp_path_factory.mktemp("tokens"), classes=64)


def trial(
    parameterization: str, width: int, seed: int, precision: str = "float32", **net: Any
) -> Trial:
    made = check_tree(parameterization, RULE.steps, precision)
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


def head_moves(run: BatchedRun, width: int) -> tuple[list[float], list[float]]:
    """What mup's readout, as its Adam changed it, makes more of the head's input, step by step.

    First of the first input, then of the one at that step.
    """

    def mup_net(size: int) -> PlainNet:
        net = PlainNet(size, 3).double()
        net.head = MuReadout(size, 64).double()
        return net

    model, ratio = mup_net(width), width / 16
    set_base_shapes(model, mup_net(16), delta=mup_net(32))
    start = {name: value.detach()[0].clone() for name, value in run.params.items()}
    start["head.weight"] *= ratio  # mup divides the readout's input
    model.load_state_dict(start)
    inputs: list[Tensor] = []
    model.head.register_forward_pre_hook(lambda _m, args: inputs.append(args[0].detach()))
    adam = MuAdam(model.parameters(), lr=2.0**LARGE, eps=1e-15)
    x, y = (part[0] for part in run.feed.batch(0))
    first, at_the_time = [], []
    for _ in range(RULE.steps):
        adam.zero_grad()
        model(x, y).backward()
        adam.step()
        model(x, y)
        moved = (model.head.weight.detach() - start["head.weight"]) / ratio
        for moves, z in ((first, inputs[0]), (at_the_time, inputs[-1])):
            moves.append(float((z @ moved.T).square().mean().sqrt()))
    return first, at_the_time


def test_the_direct_change_is_that_of_mup_s_own_adam(tokens: TokenCorpus) -> None:
    for width in (16, 64):
        seeded = trial("mup", width, 1, precision="float64")
        run = BatchedRun(BatchedTrials(trials=(seeded,), corpus=tokens))
        first, at_the_time = head_moves(run, width)
        measured = {m.name: m for m in measure_modules(seeded, tokens)}
        assert measured["head"].direct_changes == pytest.approx(first, rel=1e-3)
        assert first[-1] != pytest.approx(at_the_time[-1], rel=0.1)


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
