"""The tables of the zoo: one row a model, printed when all have run."""

import pytest

ROWS: list[tuple[str, ...]] = []
"""Model, parameters, roles, Adam and SGD: how many agree of how many."""
COORDINATES: list[tuple[str, ...]] = []
"""Model, modules and steps, and the slopes inside and of the logits."""
TABLES = {
    ("model", "parameters", "roles", "Adam", "SGD"): ROWS,
    ("model", "outputs x steps", "slopes inside", "logits"): COORDINATES,
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for header, rows in TABLES.items():
        if not rows:
            continue
        table = [header, *sorted(set(rows))]
        widths = [max(len(row[i]) for row in table) for i in range(len(header))]
        terminalreporter.section("zoo")
        for row in table:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            terminalreporter.line("  ".join(cells).rstrip())
