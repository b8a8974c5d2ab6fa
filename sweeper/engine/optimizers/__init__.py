"""Optimizers of the engine, for many trials at once."""
