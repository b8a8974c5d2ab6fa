import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.verbs import doctor
from tests.cli.driver import Run, assert_refused, tree
from tests.golden import Golden


def states(document: Any) -> dict[str, str]:
    return {finding["name"]: finding["state"] for finding in document["findings"]}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm is asked by its own tests."""
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None if "sbatch" in name else name)


def test_a_machine_that_can_search(sweeper: Run, workplace: Path) -> None:
    answer = sweeper("doctor", "--json")
    assert answer.code == 0 and answer.document["able"]
    result = states(answer.document)
    for name in ("python", "sweeper", "packages", "torch", "root", "storage"):
        assert result[name] == "ok"
    assert result["Slurm"] == "not here" and {"transformers", "tensorboard"} <= result.keys()
    assert tree(workplace) == ["text.txt"], "nothing stays of what was tried"


def test_ends_with_the_command_that_comes_next(sweeper: Run) -> None:
    answer = sweeper("doctor", "--root", "my runs")
    assert answer.out.splitlines()[-2] == "A search can run here."
    assert answer.next == "sweeper search experiment=demo --root 'my runs'"


def test_a_root_that_cannot_be_written(sweeper: Run, golden: Golden) -> None:
    answer = sweeper("doctor", "--root", "/proc/nope")
    assert answer.code == 2 and "Next:" not in answer.out
    assert ["missing", "root"] in [line.split()[:2] for line in answer.out.splitlines()]
    assert answer.out.splitlines()[-1] == "No search can run: root."
    assert_refused(sweeper("doctor", "--root", "text.txt"), golden)


def test_a_missing_package_is_named_with_the_command_that_brings_it(
    sweeper: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "tensorboard":
            raise metadata.PackageNotFoundError(name)
        return "1.2.0" if name == "hydra-core" else real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    answer = sweeper("doctor", "--json")
    assert answer.code == 2 and not answer.document["able"]
    by_name = {finding["name"]: finding for finding in answer.document["findings"]}
    hydra, board = by_name["hydra-core"], by_name["tensorboard"]
    assert hydra["state"] == "missing" and hydra["what"].startswith("1.2.0, but ")
    assert board["state"] == "not here" and not board["needed"]
    assert board["get"].endswith("-m pip install 'tensorboard>=2.16'")
    assert board["get"].startswith(sys.executable)


def test_without_torch(sweeper: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    answer = sweeper("doctor")
    assert answer.code == 2
    assert ["missing", "torch"] in [line.split()[:2] for line in answer.out.splitlines()]
    assert "pip install 'torch>=2.6'" in answer.out


@pytest.mark.parametrize(
    ("cuda", "said"),
    [(None, "built for processors alone"), ("12.8", "torch is built for CUDA 12.8, and sees no")],
)
def test_a_gpu_that_torch_does_not_see(
    sweeper: Run, monkeypatch: pytest.MonkeyPatch, cuda: str | None, said: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=cuda))
    answer = sweeper("doctor")
    assert answer.code == 0 and said in answer.out and "get it: " in answer.out
