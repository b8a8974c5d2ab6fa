"""Is a large run on course? Its losses held against the band of the ladder, step by step."""
