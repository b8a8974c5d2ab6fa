"""Sources of data, and the corpora that each of them prepares."""
