"""What `sweeper` exports, with its signatures: a change of them is a diff in review."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import sweeper
from sweeper.api.shown import LadderVerdict
from tests.golden import Golden

PAGE = Path(__file__).parents[2] / "docs/api.md"
METHODS = (sweeper.Study, sweeper.Transfer, LadderVerdict, sweeper.TransferPlan)
"""Classes whose members users call."""


def lines() -> Iterator[str]:
    for name in sorted(sweeper.__all__):
        value = getattr(sweeper, name)
        if name != "__version__":
            yield f"{name}{_signature(value)}"
    for kind in METHODS:
        for name, value in sorted(inspect.getmembers(kind)):
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}{_signature(value) if callable(value) else ''}"


def _signature(value: object) -> str:
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def test_public_signatures_are_kept(golden: Golden) -> None:
    golden.check("api/signatures", "\n".join(lines()))


def stub() -> Iterator[str]:
    """What editors read: the keywords of verbs, which their functions have at run time alone."""
    yield '"""Made of the functions by `pytest tests/api/test_signatures.py --update-golden`."""\n'
    yield "import collections.abc\nimport pathlib\nfrom collections.abc import Sequence\n"
    yield "from typing import Any"
    values = {name: getattr(sweeper, name) for name in sweeper.__all__}
    verbs = {n: v for n, v in values.items() if "__signature__" in getattr(v, "__dict__", ())}
    for name in sorted({*sweeper.__all__} - {*verbs}):
        module = sweeper._MODULES.get(name) or ("sweeper.errors", "sweeper.version")[name[0] == "_"]
        yield f"from {module} import {name} as {name}"
    own = {"Any", "None", "Sequence", *sweeper.__all__}
    for value in verbs.values():
        kinds = {*re.findall(r"\b[A-Z]\w+", str(inspect.unwrap(value).__annotations__))} - own
        for kind in sorted(kinds):
            there = inspect.unwrap(value).__globals__[kind]
            module = there.__module__ if isinstance(there, type) else value.__module__
            yield f"from {module} import {kind}"
        own |= kinds
    for name, value in verbs.items():
        text = re.sub(r"(: |-> )'([^']+)'", r"\1\2", str(inspect.signature(value)))
        text = text.replace("typing.Any", "Any")
        yield f'def {name}{text}:\n    """{value.__doc__.splitlines()[0]}"""'


def test_the_stub_has_every_keyword(golden: Golden) -> None:
    path = Path(sweeper.__file__).with_suffix(".pyi")
    text = "\n".join(stub())
    for words in ("check --select I --fix --quiet", "format"):
        command = [sys.executable, "-m", "ruff", *words.split(), "-", "--stdin-filename", str(path)]
        text = subprocess.run(command, input=text, capture_output=True, text=True).stdout
    if golden.update:
        path.write_text(text)
    assert path.read_text() == text


def test_every_name_is_on_the_page() -> None:
    page = PAGE.read_text()
    missing = [
        name for name in sweeper.__all__ if not re.search(rf"^::: sweeper\S*\.{name}$", page, re.M)
    ]
    assert missing == ["__version__"]
