"""Search strategies: pure functions of the history."""
