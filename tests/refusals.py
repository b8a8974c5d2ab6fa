"""Errors about one key are pinned by key and value: their sentences may get better."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import ANY

import pytest

from sweeper.errors import ConfigError


@contextmanager
def refused(key: str, value: object = ANY) -> Iterator[pytest.ExceptionInfo[ConfigError]]:
    """What is within raises a ConfigError of this key, and of this value where one is given."""
    with pytest.raises(ConfigError) as caught:
        yield caught
    assert (caught.value.key, caught.value.value) == (key, value)
