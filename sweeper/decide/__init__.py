"""Decisions: does a transfer hold, at the sizes that were trained and at the target?"""
