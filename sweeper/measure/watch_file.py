"""How a command's process is told to measure, and where to write; nothing heavy is imported."""

FILE, STEPS = "SWEEPER_WATCH", "SWEEPER_WATCH_STEPS"
"""Variables: where to write what was measured, and after how many steps; set by checks alone."""
