"""A plan in the words of other trainers: files that they take, and what they cannot say."""
