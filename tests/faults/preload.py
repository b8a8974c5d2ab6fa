"""Imported into the process that others are forked from."""

from tests.faults.forked_command import warm_up

warm_up()
