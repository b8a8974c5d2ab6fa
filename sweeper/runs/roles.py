"""Which column of a table is what: by the user's word, by its usual name, or by a guess to ask.

A guess is never taken: it is proposed, with the value that the first row has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sweeper.errors import ConfigError, Keyword, MissingValue, Text, near_misses
from sweeper.gone import gone
from sweeper.runs.condition import columns_text
from sweeper.runs.numbers import SCALED, number_of

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

AXES = ("width", "depth", "batch_size", "steps", "tokens", "params")
"""Sizes that a ladder may go along."""
SIZES = (*AXES, "experts", "top_k", "granularity")
_COUNTS = ("k", "m", "b", "t", "thousands", "millions", "billions", "trillions")


def _scaled(*names: str) -> tuple[str, ...]:
    return (*names, *(f"{name}_{end}" for end in _COUNTS for name in names))


_LOSSES = (
    *("loss", "val_loss", "eval_loss", "final_loss", "final_val_loss", "validation_loss"),
    *("eval/loss", "val/loss", "test_loss", "val_bpb", "bpb", "eval_bpb"),
    *("train_loss", "objective", "value"),
)
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
    "status": ("status", "state"),
    "first": ("first_loss", "initial_loss"),
    "reached": ("last_step",),
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
    "seconds": ("seconds", "_runtime", "train_runtime", "train_seconds", "runtime_seconds"),
}
"""What a column can be to a law of losses; there the letters N, D and C are not ambiguous."""
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
ALIASES = {"batch": "batch_size", "lr": "eta", "wd": "decay", "weight_decay": "decay"}
"""Other words for a role."""
GUESSES: Mapping[str, tuple[str, ...]] = {
    "width": ("h", "hidden", "d", "dmodel", "emb", "embd", "channels", "width_factor"),
    "depth": ("numl", "nlayer", "n_l", "l", "blocks"),
    "steps": ("ti", "_step", "step", "iters", "iterations", "train_iters", "total_steps"),
    "batch_size": ("bs", "bsz", "batchsize", "global_batch"),
    "tokens": ("d", "train tokens", "total_tokens", "tokens_seen", "data"),
    "params": (
        *("n", *_scaled("params"), "parameter_count"),
        *("params_active", "active_params", "total_params", "size"),
    ),
    "eta": ("lr", "peak lr", "learning rate", "step_size", "alpha"),
    "loss": ("smooth loss", "c4_en_loss", "final val loss", "eval/loss", "bpb", "nll", "ce"),
}
"""Names that are a role's in some tables, and something else in others."""
_ENDS_AS_LOSS = re.compile(r"(?i)(^|[^a-z])(loss|bpb|nll)\s*($|[(,@\[])")
MOST_GUESSED = 3
WIDEST = 1e6
"""No model is as wide: a larger number counts parameters or tokens."""


def plain_name(name: object) -> str:
    """A column's name without what spelling varies in: nEmbd, n_embd and N-EMBD are alike."""
    return re.sub(r"[^a-z0-9]+", "", str(name).lower())


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
    ends = [re.split(r"[./]", str(column))[-1] for column in frame.columns]
    counts: dict[str, int] = {}
    for end in ends:
        counts[end] = counts.get(end, 0) + 1
    for column, end in zip(map(str, frame.columns), ends, strict=True):
        if counts[end] == 1 and end != column and column not in taken:
            free.setdefault(plain_name(end), column)
    # What stands in brackets behind a name is a unit: val loss (nats). Of two it tells them apart.
    bares = [re.sub(r"\s*[(\[][^()\[\]]*[)\]]\s*$", "", str(column)) for column in frame.columns]
    for column, bare in zip(map(str, frame.columns), bares, strict=True):
        if bare and bares.count(bare) == 1 and column not in taken:
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
    frame: pandas.DataFrame, taken: Iterable[str], lacking: Mapping[str, str]
) -> ConfigError:
    """The error for roles that no column has; `lacking` are they, and what each would be.

    Columns that may be meant are proposed, each with the value that the first row has.
    """
    used = {*taken}
    guesses = {role: guessed_columns(frame, role, used) for role in lacking if role != "width"}
    if "width" in lacking:  # or another size
        used |= {column for columns in guesses.values() for column in columns}
        sizes = {role: guessed_columns(frame, role, used) for role in AXES}
        guesses |= next(({r: found} for r, found in sizes.items() if found), {"width": []})
    if all(guesses.values()):
        proposed = {role: columns[0] for role, columns in guesses.items()}
        text = ",".join(f"{role}={column}" for role, column in proposed.items())
        values = [
            f"{column!r} has {cell if isinstance(cell, str) else f'{cell:.6g}'} in the first row"
            for columns in guesses.values()
            for column in columns
            for cell in frame[column].iloc[:1]
        ]
        advice: Text = (", such as ", Keyword("columns", text), f": {'; '.join(values)}")
        return MissingValue(Keyword("columns"), advice)
    missing = [role for role, columns in guesses.items() if not columns]
    # What several have in common is said once, behind the last of them.
    last = {lacking[role]: role for role in missing}
    told = (f" ({lacking[role]})" * (last[lacking[role]] == role) for role in missing)
    wanted = " and ".join(
        f"{role}=COLUMN{what.replace(' ()', '')}" for role, what in zip(missing, told, strict=True)
    )
    return MissingValue(
        Keyword("columns"), f", {wanted} with one of the columns {columns_text(frame)}"
    )


def guessed_columns(frame: pandas.DataFrame, role: str, taken: Iterable[str]) -> list[str]:
    """Columns of numbers that may have a role, the likeliest first; of texts "130M" is a count."""
    used = {*taken}
    names = [plain_name(name) for name in GUESSES.get(role, ())]
    places: list[tuple[int, str]] = []
    for column in map(str, frame.columns):
        if column in used:
            continue
        if frame[column].dtype.kind not in "iuf":
            cells = frame[column].dropna()
            # No name of a column is usual for a model that is called by its parameters.
            if role == "params" and len(cells) and all(number_of(c)[1] == SCALED for c in cells):
                places.append((len(names), column))
            continue
        if role == "width" and not frame[column].max() < WIDEST:  # D is a number of tokens
            continue
        plain = plain_name(column)
        if plain in names:
            places.append((names.index(plain), column))
        elif role == "loss" and _ENDS_AS_LOSS.search(column):
            places.append((len(names), column))
    return [column for _, column in sorted(places, key=lambda each: each[0])][:MOST_GUESSED]


def is_size_name(column: str) -> bool:
    """Whether a column that has no role is by its name the size of a model or of its training."""
    plain = plain_name(column)
    sizes = {plain_name(name) for role in SIZES for name in GUESSES.get(role, ())}
    usual = {plain_name(n) for role in ("params", "flops") for n in LAW_ROLES[role]}
    return plain in sizes - {"data", "step"} or plain in usual
