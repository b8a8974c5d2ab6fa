"""Diagnosis: ablations of a transfer that fails, and how much of the failure each explains."""
