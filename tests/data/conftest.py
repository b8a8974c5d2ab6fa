"""What the sources refuse, in kept words."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from tests.golden import Golden
from tests.refusals import refused as refused_with

Refused = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def refused(golden: Golden) -> Refused:
    return partial(refused_with, golden)
