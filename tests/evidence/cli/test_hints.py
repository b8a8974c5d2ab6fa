"""What the wing's verbs say to type next runs as it stands."""

from __future__ import annotations

from pathlib import Path

from tests.cli.driver import Run
from tests.cli.test_hints import type_next


def test_after_a_judgement(validated: Path, sweeper: Run) -> None:
    answer = sweeper("judge", "--study", "a")
    assert answer.code == 0, answer.err
    if answer.next:
        assert "transfer.widths=[16,32]" in answer.next
        type_next(sweeper, answer)
