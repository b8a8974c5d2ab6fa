"""Texts that are kept as files: `pytest --update-golden` rewrites them, and a diff is reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"


class Golden:
    """Compares texts with the kept ones of the same names; with `update`, keeps them instead."""

    def __init__(self, *, update: bool) -> None:
        self.update = update

    def check(self, name: str, text: str) -> None:
        """`text` is exactly what `tests/golden/NAME.txt` holds."""
        path, text = FOLDER / f"{name}.txt", text.rstrip("\n") + "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        kept = path.read_text(encoding="utf-8") if path.is_file() else ""
        if kept != text:
            lines = diff(kept, text)
            pytest.fail(f"{path} differs; `pytest --update-golden` rewrites it:\n{lines}")


def diff(kept: str, text: str) -> str:
    """A short diff."""
    from difflib import unified_diff

    lines = unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="", n=0)
    return "\n".join(list(lines)[:60])
