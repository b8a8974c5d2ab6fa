"""Finished runs, wherever they were made: studies, tables, trackers."""
