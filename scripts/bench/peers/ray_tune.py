"""Ray Tune, function trainables, one at a time: `ray_tune.py random TRIALS FOLDER`."""

from __future__ import annotations

import sys
import time

import ray
from common import HIGH, LOW, NAMES, age, objective, tell
from ray import tune

trials, folder = int(sys.argv[2]), sys.argv[3]


def train(config: dict[str, float]) -> None:
    """One trial."""
    tune.report({"loss": objective(config)})


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
tuner = tune.Tuner(
    tune.with_resources(train, {"cpu": 1}),
    param_space={name: tune.loguniform(LOW, HIGH) for name in NAMES},
    tune_config=tune.TuneConfig(
        num_samples=trials, max_concurrent_trials=1, metric="loss", mode="min"
    ),
    run_config=tune.RunConfig(verbose=0, storage_path=folder),
)
cold, start = age(), time.perf_counter()
found = tuner.fit()
seconds = time.perf_counter() - start
assert len(found) == trials and not found.errors
ray.shutdown()
tell("ray", trials, seconds, cold)
