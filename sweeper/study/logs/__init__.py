"""Logs of finished trials beside the study's own record."""
