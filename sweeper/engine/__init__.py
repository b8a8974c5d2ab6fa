"""sweeper's own trainer: trials of one shape trained as one model."""
