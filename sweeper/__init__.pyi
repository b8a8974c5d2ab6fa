"""Made of the functions by `pytest tests/api/test_signatures.py --update-golden`."""

import collections.abc
import pathlib
from collections.abc import Sequence
from typing import Any

from sweeper.api.calls import Model, Place
from sweeper.api.calls import open_study as open_study
from sweeper.api.shown import Answer as Answer
from sweeper.api.shown import Study as Study
from sweeper.api.shown import Transfer as Transfer
from sweeper.classifier.classify import classify as classify
from sweeper.command.in_script import CurrentTrial as CurrentTrial
from sweeper.command.in_script import current_trial as current_trial
from sweeper.command.watch import watch as watch
from sweeper.errors import BadInput as BadInput
from sweeper.errors import ConfigError as ConfigError
from sweeper.errors import SweeperError as SweeperError
from sweeper.evidence.follow.decision import follow as follow
from sweeper.evidence.judge.calls import Critical, Judgement, Rates
from sweeper.evidence.predict.decision import NoLossLaw, Prediction
from sweeper.plan.plan import TransferPlan as TransferPlan
from sweeper.plan.plan_for import plan_for as plan_for
from sweeper.scaling.spec import ParamScale as ParamScale
from sweeper.scaling.spec import ParamSpec as ParamSpec
from sweeper.scaling.spec import Role as Role
from sweeper.scaling.spec import ScaledOp as ScaledOp
from sweeper.scaling.spec import Update as Update
from sweeper.version import __version__ as __version__

def compare(
    *studies: Any,
    by: str | None = None,
    baseline: str | None = None,
    to_params: float | None = None,
    to_tokens: float | None = None,
    to_width: int | None = None,
    columns: str | collections.abc.Mapping[str, str] = "",
    where: str = "",
    ignore: str | tuple[str, ...] = "",
    fixed: str | collections.abc.Mapping[str, float] = "",
    error: float = 0.05,
    strict: bool = False,
    settle: bool = False,
    budget: int | str | None = None,
    detach: bool = False,
    dry_run: bool = False,
    root: pathlib.Path | None = None,
    trust: bool = False,
    batches: Any = ...,
    check: Any = ...,
    correct: Any = ...,
    data: Any = ...,
    depths: Any = ...,
    eta: Any = ...,
    experiment: Any = ...,
    experts: Any = ...,
    extend: Any = ...,
    fp8: Any = ...,
    granularities: Any = ...,
    heldout: Any = ...,
    hyperparameter: Any = ...,
    launcher: Any = ...,
    law: Any = ...,
    logger: Any = ...,
    max_loss_gap: Any = ...,
    max_shift: Any = ...,
    metric: Any = ...,
    model: Any = ...,
    optimizer: Any = ...,
    parameterization: Any = ...,
    runner: Any = ...,
    search: Any = ...,
    seeds: Any = ...,
    size: Any = ...,
    sizes: Any = ...,
    span: Any = ...,
    step: Any = ...,
    steps: Any = ...,
    theory: Any = ...,
    tokens_per_parameter: Any = ...,
    top_ks: Any = ...,
    train: Any = ...,
    transfer: Any = ...,
    widths: Any = ...,
    **settings: Any,
) -> Answer:
    """Which change wins at a target, as `sweeper compare` says it."""

def explain(
    to_width: int | None = None,
    *,
    to_depth: int | None = None,
    study: str | None = None,
    config_dir: pathlib.Path | None = None,
    root: pathlib.Path | None = None,
    trust: bool = False,
    accumulate: Any = ...,
    batch_size: Any = ...,
    check: Any = ...,
    clip: Any = ...,
    data: Any = ...,
    depth: Any = ...,
    experiment: Any = ...,
    final_lr: Any = ...,
    fp8: Any = ...,
    heldout: Any = ...,
    heldout_batches: Any = ...,
    launcher: Any = ...,
    law: Any = ...,
    logger: Any = ...,
    metric: Any = ...,
    min_lr: Any = ...,
    model: Any = ...,
    objective: Any = ...,
    objective_window: Any = ...,
    optimizer: Any = ...,
    parameterization: Any = ...,
    precision: Any = ...,
    runner: Any = ...,
    schedule: Any = ...,
    search: Any = ...,
    seq_len: Any = ...,
    size: Any = ...,
    steps: Any = ...,
    train: Any = ...,
    transfer: Any = ...,
    warmup: Any = ...,
    width: Any = ...,
    **settings: Any,
) -> Answer:
    """What every parameter of a model is prescribed at a width, as `sweeper explain` says it."""

def export(
    to: str,
    *,
    study: Study | Place | None = None,
    options: tuple[str, ...] = (),
    plan: pathlib.Path | None = None,
    out: pathlib.Path | None = None,
    accept: tuple[str, ...] = (),
    strict: bool = False,
    root: pathlib.Path | None = None,
) -> Answer:
    """Write a study's plan as files of another trainer, as `sweeper export` does."""

def judge(
    source: Any = None,
    *,
    study: str | None = None,
    series: str = "",
    window: float = 0.1,
    columns: str | collections.abc.Mapping[str, str] = "",
    to_width: int | None = None,
    to_params: float | None = None,
    to_tokens: float | None = None,
    to_batch: float | None = None,
    axis: str | None = None,
    where: str = "",
    ignore: str | tuple[str, ...] = "",
    eta: float | None = None,
    noise: float | None = None,
    diverged: float | None = None,
    each: bool = False,
    strict: bool = False,
    root: pathlib.Path | None = None,
) -> Judgement | Rates | Critical | Answer:
    """What `sweeper judge` says of runs: does their best learning rate stay? Trains nothing."""

def predict(
    source: Any = None,
    *,
    study: str | None = None,
    to_width: int | None = None,
    to_depth: int | None = None,
    columns: str | collections.abc.Mapping[str, str] = "",
    where: str = "",
    ignore: str | tuple[str, ...] = "",
    curves: Any = None,
    to_params: float | None = None,
    to_tokens: float | None = None,
    flops: float | None = None,
    fixed: str | collections.abc.Mapping[str, float] = "",
    root: pathlib.Path | None = None,
    trust: bool = False,
) -> Prediction | NoLossLaw:
    """What `sweeper predict` says of a table, or of a study: the loss of a larger run."""

def search(
    model: Model | None = None,
    *,
    command: Sequence[str] = (),
    study: str | None = None,
    dry_run: bool = False,
    detach: bool = False,
    new_setup: bool = False,
    config_dir: pathlib.Path | None = None,
    root: pathlib.Path | None = None,
    accumulate: Any = ...,
    batch_size: Any = ...,
    check: Any = ...,
    clip: Any = ...,
    data: Any = ...,
    depth: Any = ...,
    experiment: Any = ...,
    final_lr: Any = ...,
    fp8: Any = ...,
    heldout: Any = ...,
    heldout_batches: Any = ...,
    launcher: Any = ...,
    law: Any = ...,
    logger: Any = ...,
    metric: Any = ...,
    min_lr: Any = ...,
    objective: Any = ...,
    objective_window: Any = ...,
    optimizer: Any = ...,
    parameterization: Any = ...,
    precision: Any = ...,
    runner: Any = ...,
    schedule: Any = ...,
    search: Any = ...,
    seq_len: Any = ...,
    size: Any = ...,
    steps: Any = ...,
    train: Any = ...,
    transfer: Any = ...,
    warmup: Any = ...,
    width: Any = ...,
    **settings: Any,
) -> Study | Answer:
    """Search the best hyperparameters at the base size, as `sweeper search` does; the study."""

def status(
    study: Study | Place | None = None, *, watch: bool = False, root: pathlib.Path | None = None
) -> Answer:
    """Where a study stands, as `sweeper status` says it: trials, losses, jobs, what comes next."""

def transfer(
    study: Study | Place | None,
    to_width: int,
    *,
    to_depth: int | None = None,
    to_tokens: float | None = None,
    to_batch: int | None = None,
    validate: bool = False,
    settle: bool = False,
    budget: int | str | None = None,
    strict: bool = False,
    detach: bool = False,
    dry_run: bool = False,
    horizons: bool = False,
    config_dir: pathlib.Path | None = None,
    root: pathlib.Path | None = None,
    trust: bool = False,
    batches: Any = ...,
    check: Any = ...,
    correct: Any = ...,
    data: Any = ...,
    depths: Any = ...,
    eta: Any = ...,
    experiment: Any = ...,
    experts: Any = ...,
    extend: Any = ...,
    fp8: Any = ...,
    granularities: Any = ...,
    heldout: Any = ...,
    hyperparameter: Any = ...,
    launcher: Any = ...,
    law: Any = ...,
    logger: Any = ...,
    max_loss_gap: Any = ...,
    max_shift: Any = ...,
    metric: Any = ...,
    model: Any = ...,
    optimizer: Any = ...,
    parameterization: Any = ...,
    runner: Any = ...,
    search: Any = ...,
    seeds: Any = ...,
    size: Any = ...,
    sizes: Any = ...,
    span: Any = ...,
    step: Any = ...,
    steps: Any = ...,
    theory: Any = ...,
    tokens_per_parameter: Any = ...,
    top_ks: Any = ...,
    train: Any = ...,
    transfer: Any = ...,
    widths: Any = ...,
    **settings: Any,
) -> Transfer | Answer:
    """Carry a study's optimum over to a larger model, as `sweeper transfer` does: plan, verdict."""
