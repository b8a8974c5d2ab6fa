"""Optuna: its samplers as strategies, its storages, a study in one of them, ours in others'."""
