"""Does a transfer hold? Statistics of learning-rate curves; nothing here trains."""
