"""Fixtures of other folders that tests of the wing take as they are."""

from tests.api.test_calls import made, undrawn  # noqa: F401
from tests.faults.conftest import *  # noqa: F403
from tests.test_contract import holds  # noqa: F401
