"""Tables of runs that others made: read, their columns found, their numbers checked.

pandas reads them; this file says which column is what, and refuses what would be misread.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, ConfigError, suggest
from sweeper.prediction.loss_law import Array
from sweeper.prediction.runs import FLOPS_PER_PARAMETER_AND_TOKEN, Runs

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

READERS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON",
    ".parquet": "Parquet",
    ".xlsx": "Excel",
}
ROLES: Mapping[str, tuple[str, ...]] = {
    "params": (
        "params",
        "parameters",
        "n_params",
        "num_params",
        "model_size",
        "non_embedding_params",
        "n",
    ),
    "tokens": ("tokens", "n_tokens", "train_tokens", "training_tokens", "num_tokens", "d"),
    "flops": (
        "flops",
        "flop",
        "training_flop",
        "training_flops",
        "train_flops",
        "budget",
        "compute",
        "c",
    ),
    "loss": (
        "loss",
        "val_loss",
        "eval_loss",
        "final_loss",
        "validation_loss",
        "eval/loss",
        "val/loss",
    ),
    "run": ("run", "run_id", "run_name", "run id", "name"),
    "seed": ("seed", "random_seed"),
}
"""What a column can be to a law, and its usual names, the likeliest first."""
APART = 2.0
"""The factor by which the compute of a row may differ from 6 N D: attention, embeddings, units."""
STRANGE = 1e-3, 1e6
"""Tokens per parameter below and above which a column must be in other units."""


@dataclass(frozen=True, eq=False)
class Source:
    """A table: its `frame`, where it is from, its digest, and its rows as people count them."""

    frame: pandas.DataFrame
    name: str
    sha256: str
    where: str = ""

    @classmethod
    def read(cls, path: Path, where: str = "") -> Source:
        """BadInput for a file that is no table, or a filter that it cannot take."""
        kind = READERS.get(path.suffix.lower())
        if kind is None:
            known = ", ".join(READERS)
            raise BadInput(f"{path}: a table of runs ends in one of {known}")
        if not path.is_file():
            raise BadInput(f"{path}: there is no such file")
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        try:
            frame = _read(path, kind)
        except ImportError as error:
            raise BadInput(
                f"{path}: {kind} needs another package, {error.name or error}: install it, or "
                "save the table as CSV"
            ) from error
        except (ValueError, OSError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0][:200]
            raise BadInput(f"{path} cannot be read as {kind}: {reason}") from error
        return cls(frame, str(path), digest.hexdigest())._only(where)

    @classmethod
    def of_frame(cls, frame: Any, where: str = "") -> Source:
        """Of a DataFrame, or of columns by name."""
        import pandas

        table = frame if isinstance(frame, pandas.DataFrame) else pandas.DataFrame(frame)
        text = table.to_csv(index=False).encode()
        return cls(table.reset_index(drop=True), "", hashlib.sha256(text).hexdigest())._only(where)

    def _only(self, where: str) -> Source:
        if self.frame.empty:
            raise BadInput(f"{self.name or 'the table'} has no rows")
        if not where:
            return self
        try:
            # numexpr and python read the same language; python is always there.
            kept = self.frame.query(where, engine="python")
        except Exception as error:  # pandas raises nearly anything for an odd expression
            raise ConfigError(
                "--where", where, f"a condition on {self._columns()}, such as 'loss < 4' ({error})"
            ) from error
        if kept.empty:
            raise ConfigError(
                "--where", where, f"a condition that some of {len(self.frame)} rows meet"
            )
        return Source(kept, self.name, self.sha256, where)

    def _columns(self) -> str:
        return ", ".join(str(column) for column in self.frame.columns)

    def columns(self, given: str, roles: Mapping[str, Sequence[str]] = ROLES) -> dict[str, str]:
        """Which column is what, as `given` ("params=N,loss=val") or by its usual name."""
        found: dict[str, str] = {}
        unused: set[str] = set()
        for pair in filter(None, (part.strip() for part in given.split(","))):
            role, is_pair, column = (text.strip() for text in pair.partition("="))
            if not is_pair or role not in roles:
                known = ", ".join(roles)
                raise ConfigError(
                    "--columns", pair, f"ROLE=COLUMN with one of {known}{suggest(role, roles)}"
                )
            if not column:  # "flops=": not in this table, whatever its columns are called
                unused.add(role)
                continue
            if column not in self.frame.columns:
                hint = suggest(column, [str(name) for name in self.frame.columns])
                raise ConfigError(
                    "--columns", pair, f"{role}=COLUMN with one of {self._columns()}{hint}"
                )
            found[role] = column
        free = {_plain(column): str(column) for column in self.frame.columns}
        free = {plain: column for plain, column in free.items() if column not in found.values()}
        for role, names in roles.items():
            match = next((free[_plain(n)] for n in names if _plain(n) in free), None)
            if role not in found and role not in unused and match is not None:
                found[role] = match
                free = {plain: column for plain, column in free.items() if column != match}
        return found

    def numbers(self, column: str) -> Array:
        """A column's numbers [rows]; BadInput names the first that is none. Empty cells are NaN."""
        import pandas

        values = self.frame[column]
        found = pandas.to_numeric(values, errors="coerce")
        bad = found.isna() & values.notna() & (values.astype(str).str.strip().str.lower() != "nan")
        if bad.any():
            place = int(np.flatnonzero(bad.to_numpy())[0])
            raise BadInput(
                f"{self.row(place)} has {values.iloc[place]!r} in the column {column!r}, which is "
                "no number"
            )
        return np.asarray(found.to_numpy(dtype=float, na_value=math.nan))

    def row(self, place: int) -> str:
        """A row as people find it: the first below the header is row 1."""
        return f"row {int(self.frame.index[place]) + 1}{f' of {self.name}' if self.name else ''}"


def _plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]+", "", str(name).lower())


def _read(path: Path, kind: str) -> pandas.DataFrame:
    import pandas

    match kind:
        case "CSV":
            return pandas.read_csv(path, skipinitialspace=True)
        case "TSV":
            return pandas.read_csv(path, sep="\t")
        case "JSON lines":
            return pandas.read_json(path, lines=True)
        case "JSON":
            return pandas.read_json(path)
        case "Parquet":
            return pandas.read_parquet(path)
        case _:
            return pandas.read_excel(path)


def runs_of(source: Source, columns: Mapping[str, str]) -> Runs:
    """The runs of a table; BadInput for what would be fitted wrongly, row and value named."""
    if "loss" not in columns:
        raise _missing(source, "loss", "the loss at the end of each run")
    known = [role for role in ("params", "tokens", "flops") if role in columns]
    if len(known) < 2:
        raise _missing(
            source,
            next(role for role in ("params", "tokens", "flops") if role not in known),
            "two of params, tokens and flops, the third by C = 6ND",
        )
    values = {role: _positive(source, columns[role], role) for role in (*known, "loss")}
    product = FLOPS_PER_PARAMETER_AND_TOKEN
    if "tokens" not in values:
        values["tokens"] = values["flops"] / (product * values["params"])
    if "params" not in values:
        values["params"] = values["flops"] / (product * values["tokens"])
    params, tokens = values["params"], values["tokens"]
    _check_units(source, columns, params, tokens)
    flops = values.get("flops", product * params * tokens)
    if len(known) == 3:
        _check_compute(source, flops / (product * params * tokens))
    _check_twins(source, columns, values)
    labels = [
        str(source.frame[columns["run"]].iloc[i]) if "run" in columns else source.row(i)
        for i in range(len(source.frame))
    ]
    cluster = _clusters(source, columns, params, tokens)
    return Runs(params, tokens, values["loss"], flops, cluster, labels)


def _missing(source: Source, role: str, what: str) -> ConfigError:
    columns = ", ".join(str(column) for column in source.frame.columns)
    return ConfigError("--columns", "", f"{role}=COLUMN ({what}) with one of the columns {columns}")


def _positive(source: Source, column: str, role: str) -> Array:
    values = source.numbers(column)
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        value, more = values[place], int(wrong.sum()) - 1
        others = f", and {more} more rows" if more else ""
        said = "is missing" if math.isnan(value) else f"is {value:g}"
        raise BadInput(
            f"the {role} of {source.row(place)}{others} {said}; it must be a positive number. "
            f"Leave such rows out: --where '`{column}` > 0 and `{column}` < 1e30'"
        )
    return values


def _check_units(source: Source, columns: Mapping[str, str], params: Array, tokens: Array) -> None:
    """Tokens in billions beside parameters in ones, in the whole column or in some rows."""
    ratio = tokens / params
    low, high = STRANGE
    wrong = (ratio < low) | (ratio > high)
    if not wrong.any():
        return
    place = int(np.flatnonzero(wrong)[0])
    which = (
        "all rows"
        if wrong.all()
        else f"{source.row(place)}"
        + (f" and {int(wrong.sum()) - 1} more" if wrong.sum() > 1 else "")
    )
    raise BadInput(
        f"{which}: {tokens[place]:.4g} tokens for {params[place]:.4g} parameters are "
        f"{ratio[place]:.3g} tokens per parameter. Are they in thousands, millions or billions? "
        "Give all in ones"
    )


def _check_compute(source: Source, share: Array) -> None:
    wrong = (share > APART) | (share < 1 / APART)
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        more = f", and {int(wrong.sum()) - 1} more rows" if wrong.sum() > 1 else ""
        raise BadInput(
            f"the compute of {source.row(place)}{more} is {share[place]:.3g} times 6 x params x "
            "tokens: one of the three columns means something else. Name two of them by --columns, "
            "and leave the third out as in --columns 'flops='"
        )


def _check_twins(source: Source, columns: Mapping[str, str], values: Mapping[str, Array]) -> None:
    """Rows that are equal in all that is read: one run, written twice, would count double."""
    keys = [np.asarray(values[role]) for role in ("params", "tokens", "loss")]
    names = [
        source.frame[columns[role]].astype(str).to_numpy()
        for role in ("run", "seed")
        if role in columns
    ]
    seen: dict[tuple[object, ...], int] = {}
    for place, key in enumerate(zip(*keys, *names, strict=True)):
        if key in seen:
            raise BadInput(
                f"{source.row(seen[key])} and {source.row(place)} are equal: a run that is "
                "written twice counts double. Delete one, or name the column that tells them "
                "apart, as in --columns 'seed=COLUMN'"
            )
        seen[key] = place


def _clusters(
    source: Source, columns: Mapping[str, str], params: Array, tokens: Array
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Runs of one name are points of one training; else each row is its own, cells together."""
    if "run" in columns:
        names = source.frame[columns["run"]].astype(str).to_numpy()
        seeds = source.frame[columns["seed"]].astype(str).to_numpy() if "seed" in columns else names
        keys = np.array([f"{a}\0{b}" for a, b in zip(names, seeds, strict=True)])
    else:
        keys = np.array([f"{n:.6g}\0{d:.6g}" for n, d in zip(params, tokens, strict=True)])
    return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)
