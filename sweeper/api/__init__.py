"""Searches and transfers from Python: each call is a command line, and its answer an object."""
