from __future__ import annotations

import pytest

from sweeper.errors import SHELL
from sweeper.evidence.judge.request import JudgeRequest


def test_a_table_in_memory_is_no_word_of_a_call() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"loss": [1.0]})
    made = JudgeRequest(source=frame, axis="depth")
    assert SHELL.call(made.call) == "sweeper judge --axis depth"
