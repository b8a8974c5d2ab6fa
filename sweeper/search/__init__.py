"""Search strategies: pure functions of the history."""

from sweeper.face import is_called_as_its_verb

is_called_as_its_verb(__name__)
