"""The user's own training command as a trial."""
