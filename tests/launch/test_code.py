"""Code by its content: user modules are followed, installed ones not; the files of a command."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.launch.code import (
    changed_files,
    changed_modules,
    command_files,
    file_digests,
    missing_script,
    module_digests,
    user_modules,
)
from tests.refusals import raises_config_error

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
FOLLOWED = {
    *("um_wrap", "um_net", "um_late", "um_pkg", "um_pkg.side", "um_pkg.deep", "um_pkg.deep.leaf"),
    *("um_pkg.deep.sibling", "um_pkg.other"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    user_modules.cache_clear()
    yield tmp_path
    user_modules.cache_clear()
    for name in [name for name in sys.modules if name.startswith("um_")]:
        del sys.modules[name]


def test_what_a_module_imports_is_followed(folder: Path) -> None:
    modules = user_modules("um_wrap")
    assert modules.keys() == FOLLOWED and list(modules) == sorted(modules)
    content = (folder / "um_net.py").read_bytes()
    assert modules["um_net"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", ["json.decoder", "torch.nn", "sweeper.trial"])
def test_an_installed_module_stands_for_itself(name: str) -> None:
    assert user_modules(name).keys() == {name}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["nothing_like_it", "sys", "um_wrap.inner"])
def test_what_has_no_text_has_no_digest(name: str) -> None:
    assert user_modules(name) == {name: ""}


def test_a_waiting_job_s_code_is_compared(folder: Path) -> None:
    submitted = module_digests(["um_wrap"])
    assert submitted.keys() == FOLLOWED | {"sweeper"} and all(submitted.values())
    assert not changed_modules(submitted)
    (folder / "um_net.py").write_text("2")
    user_modules.cache_clear()
    assert "um_net" in changed_modules(submitted)


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    for name in ("train.py", "cfg.yaml", "pkg/mod.py", "pkg/__main__.py", "run.sh", "python"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "wrap.sh").write_text(
        "# python lost.py cfg.yaml\ncd .\npython3 train.py $@ | tee cfg.yaml\n./pkg/in.sh"
    )
    (tmp_path / "pkg/in.sh").write_text("python -u mod.py; bash ../wrap.sh")
    (tmp_path / "pkg/at.sh").write_text(
        'cd "$(dirname "$0")/.."\npython "$HERE/mod.py" ${HERE}/../train.py; python -m pkg'
    )
    return tmp_path


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "train.py", "cfg.yaml"], ["train.py"]),
        (["python", "{cwd}/train.py", "cfg.yaml"], ["{cwd}/train.py"]),
        (["/usr/bin/python3", "-u", "train.py"], ["train.py"]),
        (["python", "-m", "pkg.mod"], ["pkg/mod.py"]),
        (["python", "-m", "pkg"], ["pkg/__main__.py"]),
        (["./run.sh", "cfg.yaml"], ["./run.sh"]),
        (["true", "--lr=1"], []),
        (["bash", "-lc", "source env.sh && python train.py --lr={eta}"], ["train.py"]),
        (["python", "-c", "exec(open('train.py').read())"], []),
        # What a shell script runs is the code, too.
        (["bash", "wrap.sh"], ["wrap.sh", "train.py", "pkg/in.sh", "pkg/mod.py"]),
        (["bash", "pkg/at.sh"], ["pkg/at.sh", "pkg/mod.py", "train.py", "pkg/__main__.py"]),
        # A text longer than any file's name.
        (["bash", "-c", f"python -m pkg.mod {'-v ' * 200}"], ["pkg/mod.py"]),
    ],
)
def test_the_script_is_the_first_file_that_is_run(
    command: list[str], expected: list[str], cwd: Path
) -> None:
    command = [argument.replace("{cwd}", str(cwd)) for argument in command]
    files = command_files(command, None, cwd)
    assert files == [name.replace("{cwd}", str(cwd)) for name in expected]


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["python", "lost.py", "train.py"], "lost.py"),
        (["/usr/bin/python3.12", "lost"], "lost"),
        (["python", "x" * 5000], "x" * 5000),
        (["bash", "lost"], None),  # it may be on the PATH
        (["torchrun", "-m", "pkg.train", "--save-code", "lost.py"], None),
        (["python", "-m", "lost"], None),
        (["python", "-c", "pass"], None),
        (["python", "pkg", "cfg.yaml"], None),
        (["python", "{dir}/made.py"], None),
        (["python"], None),
        (["srun", "--chdir=/elsewhere", "python", "lost.py"], None),
    ],
)
def test_a_script_that_is_not_there(command: list[str], missing: str | None, cwd: Path) -> None:
    assert missing_script(command, cwd) == missing


def test_patterns_find_files_anywhere(cwd: Path) -> None:
    files = command_files([], ["*.py", "pkg/**/*.py"], cwd)
    assert files == ["train.py", "pkg/__main__.py", "pkg/mod.py"]
    assert command_files([], [f"{cwd}/tr*.py"], cwd) == [f"{cwd}/train.py"]
    for pattern in ("", "nothing*", "pkg"):
        with raises_config_error("code", pattern):
            command_files([], [pattern], cwd)


def test_a_change_is_seen_and_a_loss_too(cwd: Path) -> None:
    digests = file_digests(["train.py", "pkg/mod.py"], cwd)
    assert not changed_files(digests, str(cwd))
    (cwd / "train.py").write_text("other")
    (cwd / "pkg/mod.py").unlink()
    assert changed_files(digests, str(cwd)) == ["train.py", "pkg/mod.py"]
