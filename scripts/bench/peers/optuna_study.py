"""Bare Optuna, ask and tell: `{memory|journal|sqlite}-{random|tpe} TRIALS FOLDER`."""

from __future__ import annotations

import sys
import time

import optuna
from common import HIGH, LOW, NAMES, age, objective, tell
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

optuna.logging.set_verbosity(optuna.logging.WARNING)
SPACE = {name: FloatDistribution(LOW, HIGH, log=True) for name in NAMES}

(kind, sampler), trials, folder = sys.argv[1].split("-"), int(sys.argv[2]), sys.argv[3]
storages = {
    "memory": lambda: None,
    "sqlite": lambda: f"sqlite:///{folder}/study.db",
    "journal": lambda: JournalStorage(JournalFileBackend(f"{folder}/journal.log")),
}
samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
study = optuna.create_study(storage=storages[kind](), sampler=samplers[sampler](seed=0))
cold, start = age(), time.perf_counter()
for _ in range(trials):
    trial = study.ask(SPACE)
    study.tell(trial, objective(trial.params))
seconds = time.perf_counter() - start
assert len(study.trials) == trials
tell("optuna", trials, seconds, cold)
