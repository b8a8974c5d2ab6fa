"""What the sources refuse, in kept words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from sweeper.errors import BadInput
from tests.golden import Golden

Refused = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def refused(golden: Golden) -> Refused:
    """What is within raises a BadInput, whose sentence is the test's next kept message."""

    @contextmanager
    def within() -> Iterator[None]:
        with pytest.raises(BadInput) as caught:
            yield
        golden.says(caught)

    return within
