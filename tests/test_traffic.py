"""The count of a compiled step's memory traffic, against counts by hand and the budget."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.scripts import load_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,  # of a script that measures, and of nothing that trains
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="it stands in for CUDA on Linux alone"),
]
MATRIX = 4 * 128 * 256  # bytes of a matrix of floats


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return load_script("bench/traffic.py")


def counted(traffic: ModuleType, function: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """The graphs of a function of tensors, with its gradients."""
    with traffic.lowering() as graphs:
        inputs = [torch.empty(shape, requires_grad=True) for shape in shapes]
        torch.compile(function)(*inputs).sum().backward()
    return list(graphs)


def test_a_product_reads_its_operands(traffic: ModuleType) -> None:
    forward, backward = counted(traffic, lambda x, w: x @ w, (128, 256), (256, 64))
    x, w, y = MATRIX, MATRIX // 2, 4 * 128 * 64
    assert forward.bytes == x + w + y and backward.bytes == 2 * (x + w + y)
    assert all(kernel.name.startswith("extern mm") for kernel in forward.kernels)


def test_the_budget_holds(
    traffic: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At the smallest size: the kernels of the others are the same but for their shapes."""
    arguments = ["traffic.py", "--sizes", "s0", "--out", str(tmp_path / "found.json")]
    monkeypatch.setattr(sys, "argv", arguments)
    if json.loads(traffic.BUDGET.read_text())["torch"] != torch.__version__.partition("+")[0]:
        pytest.skip("the budget is of another torch")
    traffic.main()
    assert json.loads((tmp_path / "found.json").read_text())["s0"]["update"]["bytes"] > 0


def test_what_exceeds_its_budget_is_named(traffic: ModuleType) -> None:
    budget = {"s0": {"bytes": 1_000_000}, "s1": {"bytes": 1_000_000}}
    record = {"s0": {"bytes": 1_049_999}, "s1": {"bytes": 1_100_000}}
    sentence = "s1 moves 1.1 MB per trial and step, 10.0 % above its budget of 1.0 MB"
    assert traffic.exceeded(record, budget) == [sentence]
