"""Scaling rules, and what they prescribe for a parameter; pure mathematics, no torch."""
