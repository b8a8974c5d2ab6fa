"""What parameters and operations of any module are, read off forward passes at several sizes.

`classify.py` is the way in, and its docstring the map of what parameters are read by. Operations
are seen and given scales by `operations.py`, which runs on `running.py`.
"""
