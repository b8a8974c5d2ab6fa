"""The critical batch."""
