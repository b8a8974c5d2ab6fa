"""The coordinate check: do outputs, and what a step changes in them, keep their size?"""
