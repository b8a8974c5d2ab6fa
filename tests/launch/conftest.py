import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.launch.cluster import ROOT, Cluster, available, stand_in

Clusters = dict[tuple[tuple[str, str], ...], Cluster]
STARTED = Clusters()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    yield STARTED
    while STARTED:
        STARTED.popitem()[1]("down")


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """Two nodes of a Slurm of the tests' own; `SLURM` in the module changes its settings."""
    if reason := available():
        pytest.skip(reason)
    env: dict[str, str] = getattr(request.module, "SLURM", {})
    if (key := tuple(env.items())) not in clusters:
        folder = Path(mkdtemp(prefix="slurm-", dir="/tmp"))
        folder.rmdir()
        made = Cluster(folder=folder, env=env)
        made("up", "2")
        clusters[key] = made
    monkeypatch.setenv("SLURM_CONF", str(clusters[key].folder / "slurm.conf"))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    return clusters[key]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first in PATH for stand-ins of Slurm's commands, sbatch and srun among them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "srun"):
        stand_in(folder, name, "true")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder
