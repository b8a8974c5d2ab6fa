"""Numbers with intervals: curves, noise, shapes, power laws. No words, no torch."""
