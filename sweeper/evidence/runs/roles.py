"""Which column of a table is what: by the user's word, or by its usual name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sweeper.command.reading import STEP_NAMES
from sweeper.errors import BadInput, ConfigError, Keyword, MissingValue, near_misses
from sweeper.evidence.runs.condition import columns_text
from sweeper.gone import gone
from sweeper.stats.ladder import JOINT_AXIS

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

AXES = ("width", "depth", "params", "batch_size", "steps", "tokens")
"""Sizes that a ladder may go along, those of a model first."""
SIZES = (*AXES, "experts", "top_k", "granularity")
MODEL = frozenset((*AXES[:3], *SIZES[6:]))
"""Sizes of a model, which grow with its number of parameters."""
_COUNTS = ("k", "m", "b", "t", "thousands", "millions", "billions", "trillions")


def _scaled(*names: str) -> tuple[str, ...]:
    return (*names, *(f"{name}_{end}" for end in _COUNTS for name in names))


_LOSSES = (
    *("loss", "val_loss", "eval_loss", "final_loss", "final_val_loss", "validation_loss"),
    *("eval/loss", "val/loss", "test_loss", "val_bpb", "bpb", "eval_bpb"),
    *("train_loss", "objective", "value"),
)
EXIT_CODES = ("exit_code", "return_code", "exit_status", "ret_code", "rc")
LADDER_ROLES: Mapping[str, tuple[str, ...]] = {
    "width": (
        *("width", "n_embd", "d_model", "hidden_size", "model_width", "embed_dim", "hidden_dim"),
        *("model_dim", "dim", "model.width"),
    ),
    "depth": ("depth", "n_layer", "n_layers", "num_layers", "layers", "num_hidden_layers"),
    "batch_size": ("batch_size", "global_batch_size", "batch", "bs"),
    "steps": ("steps", "train_steps", "max_steps", "n_steps", "num_iterations", "max_iters"),
    "tokens": ("tokens", "train_tokens", "n_tokens", "num_tokens"),
    "experts": ("experts",),
    "top_k": ("top_k",),
    "granularity": ("granularity",),
    "log2_eta": ("log2_eta", "log2_lr", "log2_learning_rate"),
    "eta": ("eta", "lr", "learning_rate", "max_lr", "peak_lr", "base_lr"),
    "decay": ("weight_decay", "wd", "decay"),
    "loss": _LOSSES,
    "seed": ("seed", "random_seed", "rng_seed", "rng", "repeat", "replicate", "rep"),
    "status": ("status", "state", "job_status", "trial_status", "done", *EXIT_CODES),
    "first": ("first_loss", "initial_loss"),
    "reached": ("last_step", "training_iteration", *STEP_NAMES),
    "parameterization": ("parameterization",),
    "base": ("base",),
    "transferred": ("transferred_log2_eta",),
    "planned": ("planned_log2",),
}
"""What a column can be to a ladder, and its usual names, the likeliest first."""
LAW_ROLES: Mapping[str, tuple[str, ...]] = {
    "params": (
        *_scaled(
            *("params", "parameters", "n_params", "num_params"),
            *("model_size", "non_embedding_params"),
        ),
        "n",
    ),
    "tokens": (
        *(*_scaled("tokens", "n_tokens", "train_tokens", "training_tokens", "num_tokens"), "d"),
    ),
    "flops": (
        *("flops", "flop", "training_flop", "training_flops", "train_flops", "budget", "compute"),
        "c",
    ),
    "loss": _LOSSES,
    "run": ("run", "run_id", "run_name", "run id", "name"),
    "seed": ("seed", "random_seed"),
    "status": LADDER_ROLES["status"],
    "seconds": ("seconds", "_runtime", "train_runtime", "train_seconds", "runtime_seconds"),
}
"""What a column can be to a law of losses; there the letters N, D and C are not ambiguous."""
PARAMS = {"params": LAW_ROLES["params"][:-1]}
"""The number of parameters where a law is not meant, and N may be anything."""
VARIANT_ROLES: Mapping[str, tuple[str, ...]] = {
    "throughput": (
        *("throughput", "tokens_per_s", "tokens_per_sec", "tokens_per_second", "tok_per_s"),
        *("toks_per_s", "tps"),
    ),
    "time": (),
}
"""What a column says of a variant's speed. Machines differ: a time counts where it is named."""
RATES = ("log2_eta", "eta")
"""What a learning rate can be called by: its log2, or itself."""
ROLES = frozenset({*LADDER_ROLES, *LAW_ROLES, *VARIANT_ROLES})
SMALL = ("log2_eta", "eta", "decay", "loss", "first", "transferred", "planned")
"""Roles whose numbers have no thousands: a comma in a loss may be a decimal one."""
ALIASES = {"batch": "batch_size", "lr": "eta", "wd": "decay", "weight_decay": "decay"}
"""Other words for a role."""


def plain_name(name: object) -> str:
    """A column's name without what spelling varies in: nEmbd, n_embd and N-EMBD are alike."""
    return re.sub(r"[^a-z0-9]+", "", str(name).lower())


def axis_key(name: str | None) -> str | None:
    """An axis by its role, or else a column's name as that of a field: seq len is seq_len."""
    if name is None or name in (*SIZES, JOINT_AXIS):
        return name
    usual = {role: LADDER_ROLES.get(role, LAW_ROLES.get(role, ())) for role in SIZES}
    roles = {plain_name(each): role for role, names in usual.items() for each in names}
    return roles.get(plain_name(name), re.sub(r"\W+", "_", name))


def axis_column(frame: pandas.DataFrame, axis: str | None) -> dict[str, str]:
    """The column of an axis that no column is by its usual name: any may be one, by its own."""
    if axis is None or axis in LADDER_ROLES:
        return {}
    column = next((c for c in map(str, frame.columns) if axis_key(c) == axis), None)
    return {} if column is None else {axis: column}


def asked_columns(frame: pandas.DataFrame, text: str) -> dict[str, str]:
    """The columns that a user names by role, "params=N,loss=val"; ConfigError for what is none.

    "flops=" says that no column has that role, whatever it is called.
    """
    asked: dict[str, str] = {}
    names = {str(column) for column in frame.columns}
    # A column's name may have commas: pairs are parted by those before another ROLE=.
    parts = re.split(r",(?=\s*\w*\s*=)", text)
    for pair in filter(None, (part.strip(" ,") for part in parts)):
        role, is_pair, column = (part.strip() for part in pair.partition("="))
        role = ALIASES.get(role, role)
        if not is_pair or role not in ROLES:
            near = gone(f"columns {role}") or near_misses(role, ROLES)
            allowed = f"ROLE=COLUMN with one of {', '.join(sorted(ROLES))}{near}"
            raise ConfigError(Keyword("columns"), pair, allowed)
        if column and column not in names:
            hint = near_misses(column, names)
            allowed = f"{role}=COLUMN with one of {columns_text(frame)}{hint}"
            raise ConfigError(Keyword("columns"), pair, allowed)
        for other, name in asked.items():
            if (other == role) != (name == column) and (other == role or column):
                allowed = f"a role has one column, a column one role, and {other}={name} is before"
                raise ConfigError(Keyword("columns"), pair, allowed)
        asked[role] = column
    return asked


def columns_by_role(
    frame: pandas.DataFrame, asked: Mapping[str, str], roles: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Which column has which role: as asked for, else by the usual names in `roles`."""
    by_role = {role: column for role, column in asked.items() if column}
    taken = {*by_role.values()}
    free = {plain_name(column): str(column) for column in frame.columns}
    free = {plain: column for plain, column in free.items() if column not in taken}
    # Settings are nested: model.n_embd is n_embd where it is the only one.
    ends = [re.split(r"[./:]", str(column))[-1] for column in frame.columns]
    counts = Counter(ends)
    for column, end in zip(map(str, frame.columns), ends, strict=True):
        if counts[end] == 1 and end != column and column not in taken:
            free.setdefault(plain_name(end), column)
    # What stands in brackets behind a name is a unit: val loss (nats). Of two it tells them apart.
    bares = [re.sub(r"\s*[(\[][^()\[\]]*[)\]]\s*$", "", str(column)) for column in frame.columns]
    counts = Counter(bares)
    for column, bare in zip(map(str, frame.columns), bares, strict=True):
        if bare and counts[bare] == 1 and column not in taken:
            free.setdefault(plain_name(bare), column)
    for role, names in roles.items():
        if role in asked:
            continue
        plain_names = (plain_name(name) for name in names)
        match = next((free[plain] for plain in plain_names if plain in free), None)
        if match is not None:
            by_role[role] = match
            free = {plain: column for plain, column in free.items() if column != match}
    return by_role


def missing_columns(
    frame: pandas.DataFrame, lacking: Mapping[str, str], asked: Mapping[str, str]
) -> BadInput:
    """The error for roles that no column has; `lacking` are they, and what each would be."""
    # What several have in common is said once, behind the last of them.
    last, columns = {what: role for role, what in lacking.items()}, columns_text(frame)
    usual = columns_by_role(frame, asked, {**LAW_ROLES, **PARAMS, **LADDER_ROLES}).values()
    free = frame.drop(columns=[*usual]).to_csv(header=False, index=False)
    ends = "=COLUMN" if re.search(r"\d", free) else ""
    meanings = {role: f" ({what})" * (last[what] == role) for role, what in lacking.items()}
    wanted = " and ".join(f"{role}{ends}{what}" for role, what in meanings.items())
    wanted = wanted.replace(" ()", "")
    if not ends:
        return BadInput(f"the table lacks {wanted}: add that to its columns {columns}")
    return MissingValue(Keyword("columns"), f", {wanted} with one of the columns {columns}")
