"""Imported into the process that others are forked from."""

from tests.faults.warm import warm_up

warm_up()
