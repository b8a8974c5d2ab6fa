"""Errors about one key are pinned by key and value: their sentences may get better."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import ANY

import pytest

from sweeper.errors import BadInput, ConfigError, SweeperError
from tests.golden import Golden


@contextmanager
def raises_config_error(
    key: str, value: object = ANY, golden: Golden | None = None
) -> Iterator[pytest.ExceptionInfo[ConfigError]]:
    """What is within raises a ConfigError of this key, and of this value where one is given.

    With `golden`, its sentence is the test's next kept message.
    """
    with pytest.raises(ConfigError) as caught:
        yield caught
    assert (caught.value.key, caught.value.value) == (key, value)
    if golden:
        golden.says(caught)


@contextmanager
def refused(golden: Golden, error: type[SweeperError] = BadInput) -> Iterator[None]:
    """What is within raises an error whose sentence is the test's next kept message."""
    with pytest.raises(error) as caught:
        yield
    golden.says(caught)
