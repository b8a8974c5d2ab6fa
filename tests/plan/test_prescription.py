"""The engine trains with the plan's numbers, for every parameterization and optimizer."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from sweeper.engine.batched import BatchedRun, BatchedTrials
from sweeper.engine.prepare import prepare
from sweeper.models.initial_values import normal
from sweeper.plan.plan import PlannedParameter, TransferPlan, make_plan
from sweeper.registry import plugins, takes_eps
from sweeper.stats.ladder import Size
from sweeper.trial import Log2Hps, Trial, TrialSpec, plain
from tests.engine.test_faithful import REFUSED
from tests.engine.tiny_trials import corpus, tree
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
