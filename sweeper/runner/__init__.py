"""Runners: what a trial is, and how it is turned into jobs."""
