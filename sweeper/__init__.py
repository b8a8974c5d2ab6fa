"""Tune small, train big: search on a proxy model, transfer to any width, prove that it holds."""

__version__ = "0.1.0"
