"""Modules of a user's own are followed; installed ones are not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.launch.code import own_modules

FILES = {
    "um_wrap.py": "import torch\nfrom um_net import Net\nimport um_pkg.deep.leaf as leaf\n",
    "um_net.py": "def build():\n    from um_late import late\n    import um_wrap\n",
    "um_late.py": "import nothing_like_it\nimport json, numpy\n",
    "um_pkg/__init__.py": "from . import side\nfrom .deep import *\n",
    "um_pkg/side.py": "from .. import nothing\n",
    "um_pkg/deep/__init__.py": "from ..other import x\n",
    "um_pkg/deep/leaf.py": "from . import sibling\n",
    "um_pkg/deep/sibling.py": "raise RuntimeError('nobody runs it')\n",
    "um_pkg/other.py": "this is no Python\n",
    "um_pkg/unused.py": "",
    "um_apart.py": "",
}
FOUND = {
    *("um_wrap", "um_net", "um_late", "um_pkg", "um_pkg.side", "um_pkg.deep", "um_pkg.deep.leaf"),
    *("um_pkg.deep.sibling", "um_pkg.other"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    own_modules.cache_clear()
    yield tmp_path
    own_modules.cache_clear()


def test_what_a_module_imports_is_followed(folder: Path) -> None:
    found = own_modules("um_wrap")
    assert found.keys() == FOUND and list(found) == sorted(found)
    content = (folder / "um_net.py").read_bytes()
    assert found["um_net"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", ["um_net.py", "um_late.py", "um_pkg/deep/sibling.py"])
def test_an_edit_of_any_is_seen(name: str, folder: Path) -> None:
    before = own_modules("um_wrap")
    (folder / name).write_text((folder / name).read_text() + "# edited\n")
    own_modules.cache_clear()
    after = own_modules("um_wrap")
    assert {key for key in before if before[key] != after[key]} == {
        name.removesuffix(".py").replace("/", ".")
    }


def test_what_nothing_imports_changes_nothing(folder: Path) -> None:
    before = own_modules("um_wrap")
    (folder / "um_apart.py").write_text("x = 1")
    own_modules.cache_clear()
    assert own_modules("um_wrap") == before


@pytest.mark.parametrize("name", ["json.decoder", "torch.nn", "sweeper.trial"])
def test_an_installed_module_stands_for_itself(name: str) -> None:
    assert own_modules(name).keys() == {name}


@pytest.mark.parametrize("name", ["nothing_like_it", "sys", "um_wrap.inner"])
def test_what_has_no_text_has_no_digest(name: str) -> None:
    assert own_modules(name) == {name: ""}
