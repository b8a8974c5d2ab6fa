"""Optuna: its samplers as strategies, its storages, and a study's copy in one of them."""
