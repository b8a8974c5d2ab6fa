"""submitit's local executor, one job after the other: `{result|poll} TRIALS FOLDER`.

`result` waits as submitit does, `poll` looks for the result's file every 5 ms instead.
"""

from __future__ import annotations

import sys
import time

import submitit
from common import NAMES, age, objective, tell

kind, trials, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
executor = submitit.AutoExecutor(folder=folder, cluster="local")
executor.update_parameters(timeout_min=5)
cold, start = age(), time.perf_counter()
for number in range(trials):
    job = executor.submit(objective, dict.fromkeys(NAMES, 1.0 + number))
    while kind == "poll" and not job.paths.result_pickle.exists():
        time.sleep(0.005)
    if kind == "poll":
        found = submitit.core.utils.pickle_load(job.paths.result_pickle)
        assert found[0] == "success"
    else:
        assert job.result() >= 0
tell("submitit", trials, time.perf_counter() - start, cold)
