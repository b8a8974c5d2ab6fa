"""Wrong types from Python: one error that names the keyword, and no frame of ours but the call."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import sweeper

ODD: tuple[Any, ...] = (object(), b"x", 1j, [[1]], {None: 1}, np.array([1, 2]), pd.Series([1]), len)


def build(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))


def refused(call: Any, *arguments: Any, **keywords: Any) -> str:
    """The error's words: the caller sees its own line, and the function that it called."""
    with pytest.raises(sweeper.BadInput) as caught:
        call(*arguments, **keywords)
    package = str(Path(sweeper.__file__).parent)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert sum(frame.filename.startswith(package) for frame in frames) <= 1
    assert caught.value.__suppress_context__ and not caught.value.__cause__
    return str(caught.value)


PLAN = {
    "build": build,
    "base": {"width": 32},
    "target": {"width": 64},
    "parameterization": "mup",
    "hps": {"eta": 0.01},
    "inputs": torch.zeros(2, 8),
}


@pytest.mark.parametrize("name", [*PLAN, "roles", "keep_init", "frozen", "branches", "widths"])
def test_of_plan_for(name: str) -> None:
    for value in (5, 1.5, True, *ODD):
        if name in ("keep_init", "frozen", "branches", "widths") and value is ODD[-1]:
            continue
        if name != "build" or not callable(value):
            assert name in refused(sweeper.plan_for, **{**PLAN, name: value})


@pytest.mark.parametrize("value", [True, "x", 1.5, 0, -64, 10**30, None, [64]])
def test_of_sizes(value: Any) -> None:
    assert "target['width']" in refused(sweeper.plan_for, **{**PLAN, "target": {"width": value}})


@pytest.mark.parametrize("value", [*ODD, 5, True, "python train.py", None])
def test_of_a_command_and_a_place(value: Any) -> None:
    assert "command" in refused(sweeper.search, command=value, dry_run=True)
    if value is not None and not isinstance(value, str):
        assert "root" in refused(sweeper.open_study, "a", root=value)
        assert "study" in refused(sweeper.open_study, value)
