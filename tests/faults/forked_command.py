"""The command line in a process forked from a warm one, which has done a search before.

Starting Python and torch takes seconds, in which a kill does nothing of interest; what is forked
from a process that has them reaches the search at once. It is killed like any other.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import sweeper.engine.runner  # noqa: F401
from sweeper.cli.app import app
from tests.cli.driver import TINY, make_workplace
from tests.faults import clock


def run_command(argv: Sequence[str], folder: Path, env: Mapping[str, str], output: Path) -> None:
    """`sweeper WORDS` in `folder`; stdout goes to `output`.out, stderr to `output`.err."""
    os.setsid()
    os.chdir(folder)
    os.environ.update(env)
    for number, end in ((1, ".out"), (2, ".err")):
        descriptor = os.open(output.with_suffix(end), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    clock.install()
    sys.argv = ["sweeper", *argv]
    app(list(argv), prog_name="sweeper")


def warm_up() -> None:
    """Search a little: torch and others import much of themselves at their first use."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, suppress(SystemExit):
        os.chdir(make_workplace(Path(folder)))
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                app(["search", *TINY])
        finally:
            os.chdir(here)
