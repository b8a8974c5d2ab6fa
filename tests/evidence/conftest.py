"""Fixtures of other folders that tests of the wing take as they are."""

import pytest

from tests.api.test_calls import undrawn  # noqa: F401
from tests.faults.conftest import *  # noqa: F403
from tests.test_contract import holds  # noqa: F401


@pytest.fixture(autouse=True)
def unseen(request: pytest.FixtureRequest) -> None:
    """The contract has the numbers of the answers; their pages take more than half of its time."""
    if request.path.name == "test_contract.py":
        request.getfixturevalue("undrawn")
