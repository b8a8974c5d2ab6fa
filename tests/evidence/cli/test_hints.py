"""What the wing's verbs say to type next runs as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sweeper.files import read_json, write_json
from tests.cli.driver import Run
from tests.cli.test_hints import VALIDATED, type_next


def test_after_a_comparison(ranked: Path, sweeper: Run) -> None:
    [plan] = type_next(sweeper, sweeper("compare", "a", "b"))
    assert plan.out.count("Planned") == 1


def test_more_seeds_after_a_comparison_keep_the_ladder(ranked: Path, sweeper: Run) -> None:
    """The widths that were compared, and not those of the studies' configurations."""
    for name in ("a", "b"):
        path = ranked / name / "transfer/w32-d1/validation.json"
        typed = [word.replace("a", name) if word == "a" else word for word in VALIDATED]
        typed += ["--settle", "--budget", "30"]
        write_json(path, read_json(path) | {"command": shlex.join(["sweeper", *typed])})
    with patch("sweeper.evidence.compare.page.seeds_needed", lambda *_: 9):
        from sweeper.evidence.compare import studies as ranking

        real = ranking.compare

        def tied(ladders: Any) -> Any:
            from dataclasses import replace

            found = real(ladders)
            ranks = tuple(replace(r, first=1, last=2) for r in found.by_transferred)
            return replace(found, by_transferred=ranks)

        with patch("sweeper.evidence.compare.ladders.compare", tied):
            answer = sweeper("compare", "a", "b")
    assert answer.next.count("transfer.widths=[16,32]") == 2
    assert answer.next.count("transfer.seeds=9") == 2 and "30" not in answer.next
    type_next(sweeper, answer)


def test_after_a_judgement(validated: Path, sweeper: Run) -> None:
    answer = sweeper("judge", "--study", "a")
    assert answer.code == 0, answer.err
    if answer.next:
        assert "transfer.widths=[16,32]" in answer.next
        type_next(sweeper, answer)
