"""Runs that exist already: tables that others made, read, their columns found, judged."""
