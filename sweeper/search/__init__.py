"""Search strategies: pure functions of the history, one a file."""
