"""Optimizers of the engine, for many trials at once; `optimizer.py` has the protocol."""
