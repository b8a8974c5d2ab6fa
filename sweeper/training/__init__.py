"""Training: a pack of trials in, their results out."""
