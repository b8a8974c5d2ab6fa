"""One thread a process: tests run in several, whose threads would wait for each other."""

import os
import signal
from itertools import chain
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from tests.golden import Golden

# How long an example takes is the machine's affair, and no law of what is tested.
settings.register_profile("laws", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("laws")

# A shell without job control starts what runs in its background deaf to SIGINT, and so would be
# every process of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """One flag: texts that differ from `tests/golden/` become the kept ones."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What commands remember of this user lies in a folder of the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with the one that is kept under its name, or as this test's message."""
    return Golden(request.node, update=bool(request.config.getoption("--update-golden")))


WAITING = ("faults/", "launch/", "command/", "cli/", "test_bench", "test_wheel")
"""Tests that wait for processes, for seconds: begun first, they leave none idle at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every worker its part of the tests that wait, first; skip what no GPU is here for."""
    _waiting_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    _skip_without_gpu(items)


def _waiting_first(items: list[pytest.Item], workers: int) -> None:
    """Order the tests for workers of which each begins with a part of the whole, in order."""
    tests = Path(__file__).parent

    def waits(item: pytest.Item) -> bool:
        return item.path.relative_to(tests).as_posix().startswith(WAITING)

    kinds = [[item for item in items if waits(item) is first] for first in (True, False)]
    parts = [
        kind[len(kind) * worker // workers : len(kind) * (worker + 1) // workers]
        for worker in range(workers)
        for kind in kinds
    ]
    items[:] = chain.from_iterable(parts)


def _skip_without_gpu(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
