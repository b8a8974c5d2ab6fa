from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import pytest

from sweeper.data.text import Stdlib
from tests.data.conftest import Refused


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small standard library, in place of the interpreter's."""
    root = tmp_path / "lib"
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(root / name))
    return root / "stdlib"


def write(root: Path, name: str, content: bytes = b"") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content or name.encode())


def test_this_python_has_a_corpus(tmp_path: Path) -> None:
    corpus = Stdlib().prepare(tmp_path)
    assert len(corpus.tokens) > 5_000_000 and corpus.classes == 256
    corpus.check(64, 256)
    assert Stdlib().prepare(tmp_path) == corpus


def test_packages_are_mixed() -> None:
    root = Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(root).as_posix() for path in Stdlib().files()]
    assert names == sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    assert len({name[0] for name in names[-50:]}) > 10


def test_only_the_library_proper(fake: Path) -> None:
    proper = {"a.py", "pkg/b.py", "testing.py", "pkg/test.py"}
    others = ["site-packages/x.py", "dist-packages/x.py", "test/x.py", "lib2to3/tests/data/x.py"]
    others += ["idlelib/idle_test/x.py", "pkg/__pycache__/x.py", "config-3.11/x.py"]
    for name in (*proper, *others, "_sysconfigdata__linux.py", "pkg/notes.txt"):
        write(fake, name)
    names = {path.relative_to(fake).as_posix() for path in Stdlib().files()}
    assert names == proper


def test_files_that_are_not_utf8_are_left_out(fake: Path, tmp_path: Path) -> None:
    write(fake, "latin.py", "# é".encode("latin-1"))
    write(fake, "good.py", "# é".encode())
    assert Stdlib().prepare(tmp_path / "cache").tokens.tobytes() == "# é".encode()


def test_a_python_without_sources(fake: Path, refused: Refused) -> None:
    with refused():
        Stdlib().files()
