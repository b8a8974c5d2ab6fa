"""`sweeper transfer --validate --dry-run` says what a ladder would take, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.driver import Run, measured, tree
from tests.cli.test_transfer import VALIDATE
from tests.golden import Golden


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is trained after all: a ladder must not be."""
    asked: list[str] = []
    monkeypatch.setattr("sweeper.sweep.ladders.Sweep", lambda *_: asked.append("a sweep"))
    return asked


def test_runs_sizes_etas_seeds_and_cost_are_told(
    sweeper: Run, study: Path, trained: list[str], golden: Golden
) -> None:
    before = tree(study.parent)
    answer = sweeper(*VALIDATE, "--dry-run")
    assert answer.code == 0 and answer.err == "" and not trained
    for text in ("width 16 (base)", "width 32", "FLOPs", "time", "all", "Time: measured here"):
        assert text in answer.out
    golden.says(measured(answer.out))
    *_, result, _ = answer.out.splitlines()
    assert result == "11 of 12 runs are to be trained; nothing was written."
    assert answer.next == (
        "sweeper transfer --study a --to-width 32 --validate 'transfer.widths=[16,32]' "
        "transfer.seeds=2 transfer.span=0.5 transfer.extend=0"
    )
    assert tree(study.parent) == before
    document = sweeper(*VALIDATE, "--dry-run", "--json").document
    base, large = document["sizes"]
    assert document["seeds"] == 2 and (base["missing"], large["missing"]) == (5, 6)
    assert large["size"]["width"] == 32 and len(large["values_log2"]) == 3
    assert large["flops"] > base["flops"] > 0 and large["seconds"] > 0
