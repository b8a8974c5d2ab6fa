"""The schedule of a plan in the words of trainers: where they can be run, they are the schedule."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from sweeper.export.exporter import EXPORTERS, build_exporter, schedule_lines
from sweeper.plan.plan import TransferPlan
from sweeper.schedule import OWN, Config, record
from sweeper.trial import TrainSettings
from tests.export.plans import made, plan

SQRT = {"name": "wsd", "decay": 0.3, "shape": "1-sqrt"}
CONFIGS: list[Config] = ["constant", "linear", "cosine", "wsd", SQRT, "wsds"]


def scheduled(config: Config, final: float) -> tuple[TrainSettings, TransferPlan]:
    train = TrainSettings(steps=400, batch_size=1, seq_len=1, schedule=config, final_lr=final)
    source = {"study": "a", "schedule": record(train.schedule, train.span)}
    return train, replace(plan("mup"), source=source)


def schedule_text(train: str, config: Config, final: float = 0.1) -> str | None:
    """The line in a trainer's words, None where it says that it has none."""
    _, planned = scheduled(config, final)
    exporter = build_exporter(train, {})
    (_, line) = schedule_lines(planned, exporter)
    return line.partition(": ")[2] if line.startswith("In ") else None


def rates(scheduler: Any, optimizer: torch.optim.Optimizer) -> np.ndarray:
    rates = []
    for _ in range(400):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


def peak_of_one() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("config", CONFIGS[:-1], ids=str)
def test_the_words_of_pytorch_are_the_schedule(config: Config, final: float) -> None:
    call, optimizer = schedule_text("pytorch", config, final), peak_of_one()
    assert call
    names = {"LambdaLR": LambdaLR, "optimizer": optimizer, **vars(math)}
    theirs = rates(eval(call, names), optimizer)
    ours = scheduled(config, final)[0].lr_factors(range(400))
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS[:-1], ids=str)
def test_the_words_of_transformers_are_the_schedule_but_for_a_step(config: Config) -> None:
    final = 0.0 if config == "linear" else 0.1
    text, optimizer = schedule_text("hf", config, final), peak_of_one()
    assert text
    arguments = eval(f"dict({text})")
    scheduler = get_scheduler(
        arguments["lr_scheduler_type"],
        optimizer,
        num_warmup_steps=arguments["warmup_steps"],
        num_training_steps=400,
        scheduler_specific_kwargs=arguments.get("lr_scheduler_kwargs"),
    )
    ours = scheduled(config, final)[0].lr_factors(range(400))
    theirs = rates(scheduler, optimizer)
    if not isinstance(config, dict) and config != "wsd":  # those warm up from the last factor
        assert theirs[0] == 0 and theirs[1] == pytest.approx(ours[0])  # a step later, as is said
    # The first steps of a root are steep; warm-ups of theirs begin at 0, or at the last factor.
    close, warm = (0.1 if config == SQRT else 0.03), 40
    np.testing.assert_allclose(theirs[warm:], ours[warm:], rtol=0, atol=close)


@pytest.mark.parametrize("to", EXPORTERS)
def test_every_trainer_has_words_or_says_that_it_has_none(to: str) -> None:
    assert schedule_text(to, "cosine")
    assert schedule_text(to, "wsds") is None
    assert not list(schedule_lines(plan("mup"), build_exporter(to, {})))


@pytest.mark.parametrize(
    ("to", "has"),
    [
        (
            "megatron",
            r"--lr-decay-style WSD .*minus_sqrt --lr-wsd-decay-iters 120 --lr-warmup-iters 40",
        ),
        ("torchtitan", r'warmup_steps=40, decay_ratio=0.3, decay_type="sqrt"'),
    ],
)
def test_wsd(to: str, has: str) -> None:
    assert re.search(has, schedule_text(to, SQRT) or "")
    _, planned = scheduled(SQRT, 0.1)
    assert any("wsd 1-sqrt" in text.replace("\n", " ") for text in made(planned, to).values())


@pytest.mark.parametrize("trainer", EXPORTERS)
def test_a_schedule_of_the_script_s_own_is_left_to_the_user(trainer: str) -> None:
    planned = replace(plan("mup"), source={"study": "a", "schedule": OWN})
    (line,) = schedule_lines(planned, build_exporter(trainer, {}))
    assert "LEFT TO YOU" in line and "not known here" in line
    text = "".join(made(planned, trainer).values())
    assert "cosine" not in text and "min-lr" not in text
