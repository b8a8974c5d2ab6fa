from tests.commands.conftest import no_drawing, sweeper, workplace  # noqa: F401
