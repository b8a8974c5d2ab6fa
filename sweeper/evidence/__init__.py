"""Answers from runs that are there: nothing else imports this folder, and it can be taken off."""
