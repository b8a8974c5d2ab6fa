"""Syne Tune's local back-end, a process a trial: `syne_tune_local.py random TRIALS FOLDER`."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from common import HIGH, LOW, NAMES, age, tell
from syne_tune import StoppingCriterion, Tuner
from syne_tune.backend import LocalBackend
from syne_tune.config_space import loguniform
from syne_tune.optimizer.baselines import RandomSearch

logging.getLogger().setLevel(logging.ERROR)
trials = int(sys.argv[2])
space = {name: loguniform(LOW, HIGH) for name in NAMES}
tuner = Tuner(
    trial_backend=LocalBackend(entry_point=str(Path(__file__).with_name("syne_tune_trial.py"))),
    scheduler=RandomSearch(space, metrics=["loss"], do_minimize=True),
    stop_criterion=StoppingCriterion(max_num_trials_finished=trials),
    n_workers=1,
    sleep_time=0.02,
    results_update_interval=600,
    save_tuner=False,
)
cold, start = age(), time.perf_counter()
tuner.run()
seconds = time.perf_counter() - start
assert tuner.tuning_status.num_trials_finished >= trials
tell("syne-tune", trials, seconds, cold)
