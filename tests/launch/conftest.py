import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.launch.cluster import ROOT, Cluster, available, stand_in


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes of a Slurm of the module's own; `SLURM` in the module changes its settings."""
    if reason := available():
        pytest.skip(reason)
    folder = Path(mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.rmdir()
    made = Cluster(folder=folder, env=getattr(request.module, "SLURM", {}))
    made("up", "2")
    patch = pytest.MonkeyPatch()
    patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
    patch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    yield made
    patch.undo()
    made("down")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first in PATH for stand-ins of Slurm's commands, sbatch and srun among them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "srun"):
        stand_in(folder, name, "true")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder
