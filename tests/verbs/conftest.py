"""Verbs are asked without a command line; the studies that they read are the command line's."""

from tests.cli.conftest import finished, no_drawing, one_thread, study, sweeper, workplace

__all__ = ["finished", "no_drawing", "one_thread", "study", "sweeper", "workplace"]
