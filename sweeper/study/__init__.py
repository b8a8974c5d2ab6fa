"""The durable record of a study."""
