"""A disk that is full while a study is searched."""

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.faults.harness import (
    LAUNCHERS,
    SLOW,
    WORDS,
    Harness,
    Outcomes,
    assert_whole,
    outcomes,
    recorded,
)
from tests.waiting import until

pytestmark = pytest.mark.faults


@pytest.fixture
def disk(harness: Harness) -> Iterator[Path]:
    """A disk of 4 MiB in the place of `runs`."""
    folder = harness.folder / "runs"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    mounted = subprocess.run(argv, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted, it takes root: {mounted.stderr.strip()}")
    yield folder
    until(lambda: not harness.processes(), 15)
    subprocess.run(["umount", str(folder)], check=True)


def _written(file: BinaryIO, data: bytes) -> bool:
    try:
        return bool(file.write(data))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return False
        raise


def fill(disk: Path) -> Path:
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            while _written(file, b"x" * size):
                pass
    return path


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_full_disk_is_one_clear_error_and_loses_nothing(
    harness: Harness, disk: Path, expected: Outcomes, launcher: str
) -> None:
    driver = harness.start("search", *SLOW, *LAUNCHERS[launcher])
    until(lambda: recorded(harness.study) >= 1)
    filler = fill(disk)
    full = driver.wait()
    assert full.code == 1 and not full.crashed
    assert full.err.count("Error: ") == 1 and "No space left on device" in full.err
    kept = outcomes(harness.study)
    assert 1 <= len(kept) < len(expected) and kept.items() <= expected.items()
    again = harness.run("search", *WORDS, *LAUNCHERS[launcher])
    assert again.code == 1 and again.err.count("Error: ") == 1, "still no room"
    assert not again.crashed and outcomes(harness.study) == kept
    filler.unlink()
    assert harness.run("search", *WORDS, *LAUNCHERS[launcher]).code == 0
    assert_whole(harness, expected)
