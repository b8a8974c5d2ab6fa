"""What parameters and operations of any module are, read off forward passes at several sizes.

`classify.py` is the way in, and its docstring the map of what parameters are read by. Operations
are seen by `observe.py`, which runs on `watch.py`, and are given scales by `operations.py`.
"""
