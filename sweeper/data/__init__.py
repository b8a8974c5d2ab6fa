"""Sources of text, one a file, and the corpus of tokens that each of them prepares."""
