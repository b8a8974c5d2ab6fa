"""Scaling rules, one scheme a file; pure mathematics, no torch."""
