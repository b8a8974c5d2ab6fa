"""Where the losses of a run were read: shown of a first run, before more is trained.

A pattern that is too loose finds numbers that are no losses, such as the mean of the run that
transformers' Trainer prints last, and all that follows is then a search of something else.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from sweeper.command.metrics import metric_of
from sweeper.command.metrics.pattern import Log, of_loss
from sweeper.command.metrics.rows import Rows
from sweeper.command.reading import QUOTED, Lines, Reading
from sweeper.files import try_json

RECENT = 32
"""So many values before the last say how far it may lie from them."""
JUMP = 6.0
"""A last difference of so many usual ones is a jump."""
MOST_KINDS = 100
"""So many kinds of lines are told apart: a log may have as many as lines."""


@dataclass(kw_only=True)
class Evidence:
    """The values of one run under `key`, metric or heldout: how many, from where to where.

    `repeated` counts values of the same step as the one before, `returns` those of an earlier step,
    as there are after each of the run's `resumes`; `changes` those that differ from the one before.
    `kinds` are the words before a value, how many have them, and one of their readings; `notes` is
    what its lines say.
    """

    key: str
    count: int = 0
    first: Reading | None = None
    last: Reading | None = None
    repeated: int = 0
    returns: int = 0
    resumes: int = 0
    changes: int = 0
    kinds: dict[str, tuple[int, Reading]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, reading: Reading) -> None:
        """Take the next value of the run."""
        if self.last is not None:
            self.changes += reading.loss != self.last.loss
            if reading.step is not None and self.last.step is not None:
                self.repeated += reading.step == self.last.step
                self.returns += reading.step < self.last.step
        self.first, self.last = self.first or reading, reading
        self.count += 1
        self._recent.append(reading.loss)
        # "step 10 loss" and "eval loss" are two kinds: a pattern that matches both mixes two
        # losses.
        if reading.label in self.kinds or len(self.kinds) < MOST_KINDS:
            count, example = self.kinds.get(reading.label, (0, reading))
            self.kinds[reading.label] = (count + 1, example)

    def facts(self, beside: Evidence | None = None) -> str:
        """What was read, in a sentence, without a line that `beside` has, too."""
        if self.first is None or self.last is None:
            return f"no value of {self.key} was read"
        first, last = self.first, self.last
        steps = "without steps" if first.step is None else f"from step {first.step} to {last.step}"
        counted = f"{self.count} value{'s' * (self.count != 1)}"
        ends = f"{first.loss:.6g} to " * (self.count > 1) + f"{last.loss:.6g}"
        known = beside.last.line if beside and beside.last else ""
        ends += f" in {_quoted(last)}" * (last.line not in ("", known))
        return f"{counted} of {self.key}, {steps}: {ends}"

    def doubts(self) -> list[str]:
        """What speaks against these values being the losses of the run's steps."""
        sentences = [*self.notes]
        if len(self.kinds) > 1:
            lines = [f"{count} as in {_quoted(example)}" for count, example in self.kinds.values()]
            sentences.append(
                f"{self.key} matches {len(self.kinds)} kinds of lines"
                f"{' or more' * (len(self.kinds) == MOST_KINDS)}, {', '.join(lines[:3])}: "
                "make the pattern match one"
            )
        if self.repeated:
            sentences.append(
                f"{self.repeated} of {self.count} values of {self.key} have the step of the value "
                "before, which they replace: several lines or processes report one step"
            )
        # A run that goes on from a checkpoint tells the steps behind it again.
        if (returns := self.returns - self.resumes) > 0:
            sentences.append(
                f"the step of {self.key} goes back {returns} time{'s' * (returns != 1)}: "
                "what was read of the steps from there on counts no more. Does it count anew in "
                "each epoch?"
            )
        if self.key == "metric" and self.count > 3 and not self.changes:
            sentences.append(f"all {self.count} values of metric are the same: is it the loss?")
        if self.key == "metric" and self.count == 1:
            sentences.append(
                "a single value was read, which stands for all steps: if it is the mean of the "
                "run, it is no loss at its end"
            )
        if self.key == "metric" and (jump := self._jump()):
            sentences.append(jump)
        return sentences

    def _jump(self) -> str | None:
        """A last value far from those before it, as a mean of the run is."""
        if len(self._recent) < 5:
            return None
        *before, last = self._recent
        if not math.isfinite(last):  # a divergence, and told as such
            return None
        usual = median(abs(b - a) for a, b in pairwise(before))
        near = before[-4:]
        outside = last > max(near) or last < min(near)
        # A flat curve's usual difference is nearly 0: a hundredth of the loss is then still no
        # jump.
        if not outside or abs(last - before[-1]) <= max(JUMP * usual, 0.01 * abs(before[-1])):
            return None
        return (
            f"the last value of metric, {last:.6g}, jumps: those before it lie from "
            f"{min(near):.6g} to {max(near):.6g}. Is it a mean, or of other data?"
        )


def evidence_of(folder: Path, *, metric: str | None, heldout: str | None) -> list[Evidence]:
    """What `metric` and `heldout` read in a trial's folder; its log may be of another pattern."""
    evidences = []
    resumes = try_json(folder / "result.json").get("resumes")
    for key, spec, name in (("metric", metric, "loss"), ("heldout", heldout, "heldout")):
        if spec is None and key == "heldout":
            continue
        # Without a pattern the script reports by itself, into metrics.jsonl.
        source = metric_of(spec).open(folder, folder / "log.txt") if spec else None
        report = Rows(Lines(folder / "metrics.jsonl"), name)
        evidence = Evidence(key=key, resumes=resumes if isinstance(resumes, int) else 0)
        for reading in (source or report).read(ended=True):
            evidence.add(reading)
        if isinstance(source, Log):
            evidence.notes = _notes(evidence, source)
        evidences.append(evidence)
    return evidences


def _notes(evidence: Evidence, source: Log) -> list[str]:
    notes = list[str]()
    for _, reading in evidence.kinds.values():
        values = [match["loss"] for match in of_loss(source.pattern).finditer(reading.line)]
        if len({*values}) > 1:
            notes.append(
                f"{evidence.key} matches {len(values)} times in a line, {', '.join(values[:3])} in "
                f"{_quoted(reading)}, and {reading.loss:.6g} counts: let the pattern begin with "
                r"what stands before the loss alone, as in \bloss"
            )
            break
    if evidence.last is not None and evidence.last.step is None:
        elsewhere = source.step_elsewhere()
        notes += [f"{evidence.key} has no step: {elsewhere}"] * bool(elsewhere)
    return notes


def _quoted(reading: Reading) -> str:
    line = reading.line.strip()
    if len(line) <= QUOTED:
        return repr(line)
    at = reading.at - (len(reading.line) - len(reading.line.lstrip()))
    first = max(0, min(at - QUOTED // 2, len(line) - QUOTED))
    last = first + QUOTED
    return repr(f"{'...' * (first > 0)}{line[first:last]}{'...' * (last < len(line))}")
