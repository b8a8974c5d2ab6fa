"""Tables of runs that others made: read, and their columns found."""
