"""What a first run's losses were read from, and what speaks against them."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from sweeper.command.evidence import Evidence, evidence_of
from sweeper.command.metrics import metric_of
from sweeper.command.reading import Reading
from sweeper.command.series import Series
from tests.golden import Golden

TRAINER = [
    *(f"{{'loss': '{4 - 0.1 * n:.4g}', 'grad_norm': '1', 'epoch': '{n}'}}" for n in range(20)),
    "{'train_runtime': '3.1', 'train_samples_per_second': '9', 'train_loss': '3.05', 'epoch': '1'}",
]
"""As transformers' Trainer prints: the last line has the mean of the run."""
LOOSE, EXACT = r"loss'?: '?(?P<loss>[^,'}]+)", r"\{'loss': '?(?P<loss>[^,'}]+)"


def read(folder: Path, lines: list[str], pattern: str) -> Evidence:
    (folder / "log.txt").write_text("\n".join(lines))
    (evidence,) = evidence_of(folder, metric=pattern, heldout=None)
    return evidence


def test_a_loose_pattern_matches_a_trainer_s_closing_mean(tmp_path: Path, golden: Golden) -> None:
    evidence = read(tmp_path, TRAINER, LOOSE)
    assert (evidence.count, len(evidence.kinds)) == (21, 2)
    assert evidence.first is not None and evidence.last is not None
    assert (evidence.first.loss, evidence.last.loss) == (4.0, 3.05)
    kinds, jump = evidence.doubts()
    golden.says(kinds)
    golden.says(jump)
    exact = read(tmp_path, TRAINER, EXACT)
    assert exact.count == 20 and not exact.doubts()
    golden.says(exact.facts())


STEP_LOSS = r"step (?P<step>\d+) loss (?P<loss>\S+)"
ITER_LOSS = r"iter (?P<step>\d+): loss (?P<loss>[^,]+)"
STEPS = [f"iter {n}: loss {4 / (n + 1):.4f}, lr {n}e-4" for n in range(20)]


@pytest.mark.parametrize(
    ("lines", "pattern", "doubt"),
    [
        (STEPS, ITER_LOSS, None),
        (STEPS[-1:], r"loss (?P<loss>[^,]+)", "single value"),
        ([line for line in STEPS for _ in range(2)], ITER_LOSS, "the step of the value before"),
        ([*STEPS, "loss 2.0"], r"loss (?P<loss>[^,]+)", "kinds of lines"),
        ([*STEPS, "iter 20: loss 2.0"], r"loss (?P<loss>[^,]+)", "jumps"),
        ([*STEPS, "iter 20: loss inf"], r"loss (?P<loss>[^,]+)", None),
        ([f"step {n % 10} loss {3 - n / 40}" for n in range(30)], STEP_LOSS, "goes back 2 times"),
        ([f"step {n} loss 2.303" for n in range(30)], STEP_LOSS, "are the same"),
        ([f"aux_loss {n} loss {n}.5" for n in range(2, 9)], r"loss (?P<loss>\S+)", "2, 2.5 in"),
        (
            [f"batch={n // 2}:" if n % 2 else f"loss {n}" for n in range(9)],
            r"loss (?P<loss>\S+)",
            "in another line, 'batch=3:'",
        ),
        ([f"[rank{n % 4}] loss {1 / (n + 1)}" for n in range(9)], r"loss (?P<loss>\S+)", None),
    ],
)
def test_what_speaks_against_a_series(
    tmp_path: Path, lines: list[str], pattern: str, doubt: str | None
) -> None:
    doubts = read(tmp_path, lines, pattern).doubts()
    assert bool(doubts) == (doubt is not None)
    assert doubt is None or doubt in " ".join(doubts)


def test_a_log_of_many_kinds_of_lines_takes_no_memory(tmp_path: Path) -> None:
    kinds = [f"{chr(97 + n % 26)}{chr(97 + n // 26)} loss {n}" for n in range(300)]
    evidence = read(tmp_path, kinds, r"loss (?P<loss>\S+)")
    assert evidence.count == 300 and len(evidence.kinds) == 100
    assert "100 kinds of lines or more" in evidence.doubts()[0]


TITAN = (
    "[rank0]:[titan] - root - INFO - \x1b[31m{}step: {:2}  \x1b[32mloss: {}  \x1b[33mmemory: 2GiB"
)
TITANS = [
    *(TITAN.format("", n, f"{9 - n:8.5f}") for n in range(1, 5)),
    TITAN.format("validate ", 4, " 3.5123"),
    TITAN.format("", 5, "1e+08"),
]
MEGATRON = [
    *(
        f" iteration {n:8d}/      60 | time (ms): 12.5 | lm loss: {9 - n:.6E} | loss scale: 1 |"
        for n in range(1, 5)
    ),
    " validation loss at iteration 4 on validation set | lm loss value: 3.5123E+00 | PPL: 3E+01 |",
    " validation loss at iteration 4 on test set | lm loss value: 3.7123E+00 | PPL: 3E+01 |",
    " validation loss at iteration 10 | lm loss value: 1.040000E+01 | lm loss PPL: 3E+04 | ",
]


@pytest.mark.parametrize(
    ("preset", "lines", "metric", "heldout"),
    [
        ("torchtitan", TITANS, [8, 7, 6, 5, 1e8], [3.5123]),
        ("megatron", MEGATRON, [8, 7, 6, 5], [3.5123, 10.4]),
    ],
)
def test_what_presets_read_of_their_trainers_logs(
    tmp_path: Path, preset: str, lines: list[str], metric: list[float], heldout: list[float]
) -> None:
    config = yaml.safe_load((Path(__file__).parents[2] / f"conf/runner/{preset}.yaml").read_text())
    (tmp_path / "log.txt").write_text("\n".join(lines))
    for key, losses in (("metric", metric), ("heldout", heldout)):
        source = metric_of(config[key]).open(tmp_path, tmp_path / "log.txt")
        assert [reading.loss for reading in source.read(ended=True)] == losses


def test_noise_is_no_jump(tmp_path: Path) -> None:
    doubted = 0
    for seed in range(30):
        chance = random.Random(seed)
        lines = [f"loss {2 + 2 / (n + 1) + chance.gauss(0, 0.05)}" for n in range(100)]
        doubted += bool(read(tmp_path, lines, r"loss (?P<loss>\S+)").doubts())
    assert doubted <= 1


def test_nothing_and_a_report_file(tmp_path: Path) -> None:
    evidence = read(tmp_path, ["x"], r"loss (?P<loss>\S+)")
    assert "no value of metric" in evidence.facts() and evidence.doubts() == []
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "loss": 2.5}\n{"step": 4, "loss": 2}\n')
    (evidence,) = evidence_of(tmp_path, metric=None, heldout=None)
    assert evidence.facts().startswith("2 values of metric, from step 3 to 4: 2.5 to 2 in ")


def series(*readings: tuple[int | None, float]) -> Series:
    made = Series()
    made.add(Reading(step, loss) for step, loss in readings)
    return made


def test_a_loss_stands_for_the_steps_since_the_last_one() -> None:
    made = series((0, 4.0), (2, 3.0), (5, 2.0))
    assert list(made.dense(8, whole=False)) == [4, 3, 3, 2, 2, 2]
    assert list(made.dense(8, whole=True)) == [4, 3, 3, 2, 2, 2, 2, 2]
    # Steps beyond the last are the last.
    assert list(series((1, 3.0), (400, 2.0)).dense(4, whole=True)) == [3, 3, 2, 2]


def test_a_step_that_is_told_again_begins_the_run_anew_from_there() -> None:
    made = series((0, 4.0), (1, 3.0), (2, 9.0), (1, 2.5), (2, 2.0))
    assert (list(made.steps), list(made.losses)) == ([0, 1, 2], [4.0, 2.5, 2.0])


def test_counted_losses_are_spread_over_the_whole_run() -> None:
    made = series((None, 3.0), (None, 2.0))
    assert list(made.dense(4, whole=True)) == [3, 3, 2, 2]
    assert made.reaches(4, 1)


def test_a_run_that_ends_early_is_seen() -> None:
    logged = [(step, 1.0) for step in range(0, 50, 10)]
    assert series(*logged).reaches(50, 5)
    assert not series(*logged).reaches(100, 5)
    assert not series().reaches(10, 1)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.floats(0, 10)), min_size=1, max_size=40),
    st.integers(1, 150),
    st.booleans(),
)
def test_a_dense_run_has_losses_that_were_told_and_never_too_many(
    readings: list[tuple[int, float]], steps: int, whole: bool
) -> None:
    made = series(*readings)
    assert list(made.steps) == sorted(set(made.steps))
    losses = made.dense(steps, whole=whole)
    assert 1 <= len(losses) <= steps
    assert not whole or len(losses) == steps
    assert np.isin(losses, made.losses).all()


@pytest.mark.parametrize(
    ("losses", "grew"),
    [
        ([4.2, 3.9, 5.5, 8.0], True),
        ([10.9, 9.5, 8.0, 12.5], True),
        ([4.2, 4.1, 4.3, 4.0, 4.25], False),  # a crash of a run that learns nothing yet
        ([4.2, 3.0, 2.5, 2.6], False),
        ([0.5, 0.2, 0.4], False),  # it scatters below its first value
        ([-1.0, -2.0, 3.0], True),
        ([4.2, 9.0], False),
    ],
)
def test_losses_that_grew(losses: list[float], grew: bool) -> None:
    assert series(*enumerate(losses)).grew() is grew


def test_steps_that_go_back_are_counted() -> None:
    made = series(*((step % 4, 1.0 + math.sqrt(step)) for step in range(12)))
    assert made.returns == 2 and len(made) == 4
