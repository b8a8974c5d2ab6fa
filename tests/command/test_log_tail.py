"""Which lines of a log a failure quotes."""

from __future__ import annotations

import pytest

from sweeper.command.supervise import LINES, last_lines

TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3', "    f()"]
CAUSE = "mine.BadInput: positions.weight [32, 32], planned [128, 32]"
FOOTER = [
    *TRACEBACK,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    *(f"  footer {n}" for n in range(20)),
    "Root Cause (first observed failure):",
]


def by_ranks(lines: list[str]) -> list[str]:
    """As two ranks print them at once."""
    return [f"[rank{rank}]: {line}" for line in lines for rank in (0, 1)]


@pytest.mark.parametrize("own", [[*TRACEBACK, CAUSE], by_ranks([*TRACEBACK, CAUSE])])
def test_the_error_before_a_launcher_s_footer_is_quoted(own: list[str]) -> None:
    quoted = last_lines(["step 1: loss 2", *own, *FOOTER], failed=True)
    assert quoted[0].endswith(CAUSE) and quoted[-1] == FOOTER[-1]
    assert "..." in quoted and len(quoted) == LINES


def test_a_file_that_cannot_be_parsed_has_no_traceback() -> None:
    log = ['  File "train.py", line 1', "    x =", "SyntaxError: invalid syntax", *FOOTER]
    assert last_lines(log, failed=True)[0] == "SyntaxError: invalid syntax"


def test_an_error_that_was_caught_is_none_of_a_run_that_ended_well() -> None:
    log = [*TRACEBACK, CAUSE, *(f"line {n}" for n in range(20))]
    assert last_lines(log, failed=False) == log[-LINES:]
    assert last_lines(log[-5:], failed=True) == log[-5:]
    assert last_lines([*log[-20:], *TRACEBACK, CAUSE], failed=True)[-1] == CAUSE
