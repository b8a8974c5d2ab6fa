import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.driver import make_workplace
from tests.faults.harness import WORDS, Harness, Outcomes, outcomes
from tests.launch.conftest import cluster, clusters  # noqa: F401


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.chdir(make_workplace(tmp_path))
    made = Harness(tmp_path)
    yield made
    for pid in made.processes():
        os.kill(pid, 9)


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = make_workplace(tmp_path_factory.mktemp("undisturbed"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = Harness(folder)
        answer = made.run("search", *WORDS)
    assert answer.code == 0, answer
    return outcomes(made.study)
