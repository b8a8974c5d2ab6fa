"""Which files count as a command's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.errors import ConfigError
from sweeper.launch.code import changed_files, code_files, digests, missing_script


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    for name in ("train.py", "cfg.yaml", "pkg/mod.py", "pkg/__main__.py", "run.sh", "python"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
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
    ],
)
def test_the_script_is_the_first_file_that_is_run(
    command: list[str], expected: list[str], cwd: Path
) -> None:
    given = [word.replace("{cwd}", str(cwd)) for word in command]
    assert code_files(given, None, cwd) == [name.replace("{cwd}", str(cwd)) for name in expected]


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
    assert code_files([], ["*.py", "pkg/**/*.py"], cwd) == [
        "train.py",
        "pkg/__main__.py",
        "pkg/mod.py",
    ]
    assert code_files([], [f"{cwd}/tr*.py"], cwd) == [f"{cwd}/train.py"]
    for pattern in ("", "nothing*", "pkg"):
        with pytest.raises(ConfigError, match="none matches"):
            code_files([], [pattern], cwd)


def test_a_change_is_seen_and_a_loss_too(cwd: Path) -> None:
    known = digests(["train.py", "pkg/mod.py"], cwd)
    assert not changed_files(known, str(cwd))
    (cwd / "train.py").write_text("other")
    (cwd / "pkg/mod.py").unlink()
    assert changed_files(known, str(cwd)) == ["train.py", "pkg/mod.py"]
