import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.driver import TINY, make_workplace

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]

Installed = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, unpacked as an installation would."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *words], check=True)
    (archive,) = folder.glob("sweeper-*.whl")
    zipfile.ZipFile(archive).extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Installed:
    """Runs the unpacked package from a folder that has nothing to do with it."""
    make_workplace(tmp_path)

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "PYTHONPATH": str(wheel), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True
        )

    return run


def test_the_configs_are_inside(wheel: Path) -> None:
    def names(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*.yaml")}

    assert names(wheel / "sweeper/conf") == names(ROOT / "conf")
    assert {path.name for path in wheel.iterdir()} == {"sweeper", *metadata(wheel)}
    for room in ("report", "export"):
        kept, inside = (top / "sweeper" / room / "templates" for top in (ROOT, wheel))
        assert {path.name for path in inside.iterdir()} == {path.name for path in kept.iterdir()}


def metadata(wheel: Path) -> list[str]:
    return [path.name for path in wheel.glob("*.dist-info")]


def test_it_finds_its_configs_from_any_folder(installed: Installed, wheel: Path) -> None:
    done = installed("-c", "from sweeper.registry import conf_folder; print(conf_folder())")
    assert done.stdout.strip() == str(wheel / "sweeper/conf")


@pytest.mark.long
def test_it_trains_from_any_folder(installed: Installed) -> None:
    done = installed("-m", "sweeper", "search", *TINY, "study=a", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"] == 3
