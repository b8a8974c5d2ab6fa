"""A plan in the words of other trainers: files that they take, and what they cannot say."""

from sweeper.face import is_called_as_its_verb

is_called_as_its_verb(__name__)
