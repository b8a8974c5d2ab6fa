"""Tables too large to be held: read in pieces, the runs of a cell averaged in groups as they come.

A verdict takes at most `MOST_SEEDS` runs a cell, so that millions of rows become a few thousand
without a change of what is said: the groups' means, and how many runs they are of. Whatever this
cannot do exactly (a run that stands there twice, more cells than a grid has) is left to the way
that holds the whole table.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.errors import BadInput, ConfigError, Keyword
from sweeper.runs.source import Array, Separated, Source, kind_of, readable

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

LARGE = 1 << 26
"""Bytes of a file from which on it is read in pieces."""
ROWS = 1 << 19
"""Rows of a piece."""
MOST_CELLS = 100_000
"""More cells than this are no grid."""
MOST_VALUES = 5_000
"""Values of a column that are told apart: those of a setting with more are enough to refuse it."""
FEW = 16
"""Runs of a group, at least: with fewer, groups by a digest of the seed may be empty."""


def is_large(place: str | Path) -> bool:
    """Whether a place is a file of rows that is better read in pieces."""
    path = Path(place)
    try:
        size = path.stat().st_size if path.is_file() else 0
    except OSError:
        return False
    return size >= LARGE and kind_of(path) in ("CSV", "TSV", "JSON lines")


def head_of(path: Path) -> Source:
    """The first rows, which have all columns."""
    with readable(path, kind := kind_of(path)):
        return Source(next(_pieces(path, kind, None, 1000)), str(path), "")


def _pieces(
    path: Path, kind: str, columns: Sequence[str] | None, rows: int
) -> Iterator[pandas.DataFrame]:
    """The table in pieces, of some columns alone; their indices go on from piece to piece."""
    import pandas

    if kind == "JSON lines":
        pieces = pandas.read_json(path, lines=True, precise_float=True, chunksize=rows)
    else:
        how = Separated.of(path, "," if kind == "CSV" else "\t")
        pieces = pandas.read_csv(path, **how.options, usecols=columns, chunksize=rows)
    with pieces:
        for piece in pieces:
            yield piece if columns is None else piece[list(columns)]


def reduced(
    path: Path,
    roles: Mapping[str, str],
    settings: Sequence[str],
    where: str,
    groups: int,
    diverged: float | None,
) -> Source | None:
    """A table's cells with the means of `groups` groups of their runs; None where that may err.

    `settings` are the columns, beside those with `roles`, in which runs may differ. A group of
    which a run diverged, by a loss that is infinite, above the first one or above `diverged`,
    has an infinite loss; runs without a loss are counted beside, in `UNKNOWN`.
    """
    loss, seed, first = (roles.get(role) for role in ("loss", "seed", "first"))
    assert loss is not None
    keys = [
        *dict.fromkeys([*(c for c in roles.values() if c not in (loss, seed, first)), *settings])
    ]
    named = [c for c in head_of(path).frame.columns if str(c) in where]
    columns = [*dict.fromkeys([loss, *filter(None, (seed, first)), *keys, *named])]
    cells = _Cells(keys, groups)
    digest, total, sample = hashlib.sha256(), 0, list[Array]()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    with readable(path, kind := kind_of(path)):
        for piece in _pieces(path, kind, columns, ROWS):
            total += len(piece)
            source = Source(piece, str(path), "")
            if where:
                met = source.condition(where)
                if not met.any():
                    continue
                source = Source(piece[met], str(path), "")
            losses = source.numbers(loss).copy()
            if len(sample) < 1:
                sample.append(losses[np.isfinite(losses)])
            losses[np.isinf(losses)] = math.inf
            if first is not None and diverged is None:
                losses[losses > source.numbers(first)] = math.inf
            if diverged is not None:
                losses[losses > diverged] = math.inf
            if not cells.add(source, losses, seed):
                return None
    if not cells.count.any():
        if where:
            raise ConfigError(
                Keyword("where"), where, f"a condition that some of {total} rows meet"
            )
        raise BadInput(f"{path} has no rows")
    if cells.repeats() or (seed is not None and cells.fewest() < groups * FEW and cells.by_digest):
        return None
    frame, counts = cells.frame(loss, seed or "seed", first)
    note = (
        f"{total} rows were read in pieces: of each cell {groups} groups of runs are judged by "
        "their means"
    )
    return Source(
        frame,
        str(path),
        digest.hexdigest(),
        where,
        notes=(note,),
        counts=counts,
        sample=np.concatenate(sample)[:100_000] if sample else None,
    )


class _Cells:
    """Sums of losses by cell and group, and what makes a cell."""

    def __init__(self, keys: Sequence[str], groups: int) -> None:
        self.keys, self.groups = keys, groups
        self.values: list[dict[Any, int]] = [{} for _ in keys]
        self.cells: dict[tuple[int, ...], int] = {}
        self.sum, self.count = np.zeros(0), np.zeros(0, np.int64)
        self.unknown = np.zeros(0, np.int64)
        self.highest, self.row = np.zeros(0), np.zeros(0, np.int64)
        self.runs: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        self.by_digest: bool | None = None

    def add(self, source: Source, losses: Array, seed: str | None) -> bool:
        """Take a piece in; False where it has more cells than a grid."""
        import pandas

        codes, combinations = np.zeros(len(losses), np.int64), np.zeros((1, 0), np.int64)
        for known, key in zip(self.values, self.keys, strict=True):
            local, distinct = pandas.factorize(source.frame[key], use_na_sentinel=False)
            ids = np.array([self._id(known, value) for value in distinct], np.int64)
            # The cells so far and this column as the digits of one number, numbered anew each time
            # so that it never exceeds 64 bits.
            joint = codes * len(distinct) + local
            codes, pairs = pandas.factorize(joint)
            before, value = pairs // len(distinct), pairs % len(distinct)
            combinations = np.column_stack([combinations[before], ids[value]])
            if len(combinations) > MOST_CELLS:
                return False
        cell = np.array(
            [self.cells.setdefault(tuple(one), len(self.cells)) for one in combinations.tolist()],
            np.int64,
        )[codes]
        if len(self.cells) > MOST_CELLS:
            return False
        self._grow(len(self.cells) * self.groups)
        place = cell * self.groups + self._group(source, cell, seed).astype(np.int64)
        finite = np.isfinite(losses)
        self.sum += np.bincount(place, np.where(finite, losses, 0.0), len(self.sum))
        self.count += np.bincount(place, minlength=len(self.sum))
        none = np.isnan(losses)
        self.unknown += np.bincount(place[none], minlength=len(self.sum))
        np.maximum.at(self.highest, place, np.where(none, -math.inf, losses))
        new, at = np.unique(place, return_index=True)
        # A group is called by the first row that was seen of it, as messages name rows.
        fresh = self.row[new] < 0
        self.row[new[fresh]] = source.frame.index.to_numpy()[at[fresh]]
        return True

    def _id(self, known: dict[Any, int], value: Any) -> int:
        value = None if value != value else value  # NaN equals nothing, itself included
        if value not in known and len(known) >= MOST_VALUES:
            return 0
        return known.setdefault(value, len(known))

    def _grow(self, size: int) -> None:
        more = size - len(self.sum)
        self.sum = np.concatenate([self.sum, np.zeros(more)])
        self.count = np.concatenate([self.count, np.zeros(more, np.int64)])
        self.unknown = np.concatenate([self.unknown, np.zeros(more, np.int64)])
        self.highest = np.concatenate([self.highest, np.full(more, -math.inf)])
        self.row = np.concatenate([self.row, np.full(more, -1, np.int64)])

    def _group(self, source: Source, cell: Any, seed: str | None) -> Any:
        """A run's group: by its seed, the same in all cells, or by its place in its cell."""
        import pandas

        if seed is None:
            before = self.count.reshape(-1, self.groups).sum(axis=1)
            order = pandas.Series(cell).groupby(cell).cumcount().to_numpy()
            return (order + before[cell]) % self.groups
        values = source.frame[seed].to_numpy()
        if values.dtype.kind not in "iu":
            seeds = pandas.util.hash_array(source.frame[seed].astype(str).to_numpy(dtype=object))
        else:
            seeds = values.astype(np.uint64)
        if self.by_digest is None:
            # Seeds 0, 1, 2, ... fill groups evenly by their remainder; those drawn at random, or
            # all even, do so by a digest.
            spread = float(seeds.max()) - float(seeds.min()) + 1
            self.by_digest = spread > 4 * len(np.unique(seeds))
        # A run's digest: of its seed and its cell, to see whether it stands there twice.
        self.runs.append(_mixed(seeds ^ _mixed(cell.astype(np.uint64) + np.uint64(1))))
        return (_mixed(seeds) if self.by_digest else seeds) % np.uint64(self.groups)

    def repeats(self) -> bool:
        """Whether a cell has a seed twice."""
        if not self.runs:
            return False
        runs = np.concatenate(self.runs)
        self.runs.clear()
        runs.sort()
        return bool((runs[1:] == runs[:-1]).any())

    def fewest(self) -> int:
        """Runs of the cell with fewest."""
        return int(self.count.reshape(-1, self.groups).sum(axis=1).min())

    def frame(self, loss: str, seed: str, first: str | None) -> tuple[pandas.DataFrame, Any]:
        """A row a group that has runs, and how many they are."""
        import pandas

        used = np.flatnonzero(self.count)
        cells = np.array([*self.cells], np.int64).reshape(len(self.cells), len(self.keys))
        columns: dict[str, Any] = {}
        for index, key in enumerate(self.keys):
            values = pandas.Series([*self.values[index]])
            columns[key] = values.iloc[cells[used // self.groups, index]].to_numpy()
        columns[seed] = used % self.groups
        known = self.count[used] - self.unknown[used]
        highest = np.where(known > 0, self.highest[used], math.nan)
        means = self.sum[used] / np.maximum(known, 1)
        columns[loss] = np.where(np.isfinite(highest), means, highest)
        columns[HIGHEST], columns[UNKNOWN] = highest, self.unknown[used]
        frame = pandas.DataFrame(columns, index=self.row[used])
        return frame, self.count[used]


HIGHEST = "highest loss of the group"
"""A column of a table that was reduced: one run that exploded must not hide in a mean."""
UNKNOWN = "runs of the group without a loss"
"""Another: whether these diverged, or were never measured, other learning rates tell."""


def _mixed(values: Any) -> Any:
    """SplitMix64's finalizer: a digest of each number."""
    with np.errstate(over="ignore"):
        x = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
