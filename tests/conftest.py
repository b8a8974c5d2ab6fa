"""One thread a process: tests run in several, whose threads would wait for each other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
