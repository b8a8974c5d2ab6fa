"""The command line's fixtures, which are those of `tests/cli/`."""

from tests.cli.conftest import (  # noqa: F401
    drawn,
    finished,
    no_drawing,
    one_thread,
    study,
    sweeper,
    workplace,
)
from tests.evidence.cli.test_compare import ranked  # noqa: F401
