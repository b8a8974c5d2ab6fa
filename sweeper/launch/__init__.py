"""Trials into jobs, and where jobs run; knows nothing of training, no torch."""
