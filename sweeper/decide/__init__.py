"""Decisions: does it transfer, which wins, what will it reach, is it on course?"""
