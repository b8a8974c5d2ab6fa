"""The table of the zoo: one row a model, printed when all have run."""

from __future__ import annotations

import pytest

ROWS: list[tuple[str, str, str, str, str]] = []
"""Model, parameters, roles, Adam and SGD: how many agree of how many."""
HEADER = ("model", "parameters", "roles", "Adam", "SGD")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not ROWS:
        return
    table = [HEADER, *sorted(ROWS)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))]
    terminalreporter.section("zoo")
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.line("  ".join(cells).rstrip())
