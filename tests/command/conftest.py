from tests.cli.conftest import no_drawing, sweeper, workplace  # noqa: F401
