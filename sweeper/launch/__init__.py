"""Launchers: where packs are trained."""
