"""Horizons that share a trunk: a branch is a run from zero bit for bit, also after a kill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from sweeper.engine import checkpoint, train
from sweeper.engine.batched import BatchedRun
from sweeper.engine.branches import branchings, horizons, joined, shared, taken_alike, trunk_key
from sweeper.engine.jobs import TrainTrials
from sweeper.engine.train import Execution
from sweeper.launch.inline import Inline
from sweeper.launch.job import UNCONTROLLED, Control, Leave
from sweeper.trial import Result, Trial
from tests.engine.runs import leave_at, same_result, train_trials
from tests.engine.tiny_trials import tokens, tree
from tests.engine.tiny_trials import trial as tiny_trial
from tests.launch.trial_sweep import TrialSweep
from tests.specs import spec_of

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")

STEPS = (10, 20, 40)
WSD = {"name": "wsd", "decay": 0.3, "shape": "1-sqrt"}
STARTS = {10: 7, 20: 14, 40: 28}


def trial(parameterization: str = "umup", *, train: dict[str, Any], **changed: Any) -> Trial:
    """A tiny trial of one layer."""
    made = tree(parameterization, **train)
    made["model"]["depth"] = 1
    return replace(tiny_trial(parameterization, **changed), spec=spec_of(made))


def ladder(
    schedule: Any = WSD,
    steps: Sequence[int] = STEPS,
    etas: Sequence[float] = (0.0, 0.5),
    **more: Any,
) -> list[tuple[Trial, ...]]:
    """Trials of each horizon, with a warm-up of 4 steps."""
    return [
        tuple(
            trial(
                seed=seed,
                eta=eta,
                train={"steps": n, "warmup": 4 / n, "schedule": schedule, **more},
            )
            for eta in etas
            for seed in (0, 1)
        )
        for n in steps
    ]


def counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counts the steps that are trained, as a mock does its calls."""
    steps = create_autospec(BatchedRun.step, side_effect=BatchedRun.step)
    monkeypatch.setattr(BatchedRun, "step", steps)
    return steps


def run(
    batches: Sequence[tuple[Trial, ...]], folder: Path, control: Control = UNCONTROLLED
) -> list[Result]:
    """One job of all of them."""
    (trials,) = joined(batches)
    task = TrainTrials(
        trials=trials, corpus=tokens(), execution=Execution(checkpoints=folder / "checkpoints")
    )
    outcome = task.run(control)
    assert outcome.failure is None
    return list(outcome.results)


KNOWN: dict[tuple[str, ...], list[Result]] = {}
"""Batches that were trained from zero: many tests compare with the same ones."""


def from_zero(batches: Sequence[tuple[Trial, ...]]) -> dict[str, Result]:
    for batch in batches:
        keys = tuple(trial.key for trial in batch)
        if keys not in KNOWN:
            KNOWN[keys] = train_trials(batch)
    return {r.key: r for batch in batches for r in KNOWN[tuple(trial.key for trial in batch)]}


def check(results: Sequence[Result], expected: dict[str, Result]) -> None:
    assert {result.key for result in results} == set(expected)
    assert all(same_result(result, expected[result.key]) for result in results)


@pytest.mark.parametrize(
    ("precision", "schedule", "trained"),
    [
        ("float32", WSD, 40 + 3 + 6),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("bfloat16", WSD, 40 + 3 + 6),
                ("float64", "constant", 40),
                ("float64", {"name": "wsd", "decay": 0.5}, 40 + 5 + 10),
            )
        ),
    ],
)
def test_branches_are_runs_from_zero_bit_for_bit(
    precision: str, schedule: Any, trained: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained are as many steps as the longest run and the decays of the others take."""
    batches = ladder(schedule, etas=(0.0,), precision=precision, clip=1.0)
    expected = from_zero(batches)
    steps = counted(monkeypatch)
    check(run(batches, tmp_path), expected)
    assert steps.call_count == trained


# In the trunk, just before and at what it saves, in the first branch, between, and in the second.
@pytest.mark.parametrize(
    "step",
    [41, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 6, 7, 8, 30, 40, 45, 46, 48))],
)
def test_a_kill_anywhere_changes_no_result(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = ladder(etas=(0.0,))
    expected = from_zero(batches)
    steps = counted(monkeypatch)
    with pytest.raises(Leave):
        run(batches, tmp_path, leave_at(step))
    check(run(batches, tmp_path), expected)
    assert steps.call_count == 40 + 3 + 6  # nothing was trained twice


def test_a_lost_or_broken_trunk_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = ladder(etas=(0.0,))
    expected = from_zero(batches)
    with pytest.raises(Leave):
        run(batches, tmp_path, leave_at(41))
    folder = tmp_path / "checkpoints"
    trunks = sorted(folder.glob(f"*{checkpoint.TRUNK}"))
    assert len(trunks) == 2
    trunks[0].write_bytes(trunks[0].read_bytes()[:-100])
    trunks[1].unlink()
    for path in folder.glob(f"*{checkpoint.SUFFIX}"):  # the branch's own, which it left in
        if checkpoint.saved_keys(path) != [t.key for t in batches[-1]]:
            path.unlink()
    steps, notices = counted(monkeypatch), list[str]()
    check(run(batches, tmp_path, Control(notify=notices.append)), expected)
    assert steps.call_count == 10 + 20 and any("cannot be used" in sentence for sentence in notices)


def test_where_a_trial_stops_in_the_trunk_the_others_begin_at_zero(tmp_path: Path) -> None:
    # Its slice is dropped at a step that the horizon fixes, which changes how the others round.
    batches = [
        tuple(
            trial(
                "standard",
                eta=eta,
                train={"precision": "float32", "steps": n, "warmup": 4 / n} | {"schedule": WSD},
            )
            for eta in (-7.0, 60.0)
        )
        for n in (40, 80)
    ]
    expected = from_zero(batches)
    assert {result.status for result in expected.values()} == {"complete", "diverged"}
    check(run(batches, tmp_path), expected)
    assert not list((tmp_path / "checkpoints").glob(f"*{checkpoint.TRUNK}"))


def test_what_is_kept_is_removed_with_its_trials(tmp_path: Path) -> None:
    batches, folder = ladder(etas=(0.0,)), tmp_path / "checkpoints"
    run(batches, tmp_path)
    assert len(list(folder.glob("*"))) == 3 + 2
    checkpoint.tidy(folder, lambda key: False, idle=True)
    assert len(list(folder.glob("*"))) == 3 + 2
    for batch in horizons(joined(batches)[0]):
        checkpoint.forget(folder, batch)
    assert not list(folder.glob("*"))


def test_only_the_horizon_may_differ() -> None:
    (short,), (long,) = ladder(steps=(10, 20), etas=(0.0,))[0][:1], ladder(steps=(20,))[0][:1]
    assert trunk_key(short) == trunk_key(long) != ""
    others = [
        *ladder("cosine", (20,))[0][:1],
        replace(long, seed=1),
        replace(long, log2_hps={**long.log2_hps, "eta": 1.0}),
        *ladder(steps=(20,), warmup=0.5)[0][:1],
        *ladder(steps=(20,), batch_size=4)[0][:1],
        *ladder(steps=(20,), final_lr=0.5)[0][:1],
        replace(long, measurement="coordinates"),
    ]
    for other in others:
        assert trunk_key(other) != trunk_key(short)
        assert not any(each.saved_at for each in branchings([(other,), (short,)]))


def test_trials_of_a_horizon_follow_batches_that_were_begun() -> None:
    short, long = ladder(steps=(10, 20))
    begun = [long[2:], long[:2]]
    alike, rest = taken_alike(short, begun)
    assert alike == [short[2:], short[:2]] and rest == ()
    assert taken_alike(short, [long[:3]]) == ([short[:3]], short[3:])
    assert taken_alike(short[1:], [long]) == ([], short[1:])
    assert joined([short[:2], short[2:], long[:2], long[2:]]) == [
        (*long[:2], *short[:2]),
        (*long[2:], *short[2:]),
    ]
    assert train.NO_BRANCHES in branchings([long, short[1:]])


def test_a_driver_that_was_killed_goes_on_with_the_same_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = ladder(etas=(0.0,))
    trials, expected = [trial for batch in batches for trial in batch], from_zero(batches)
    sweep = TrialSweep(trials=trials, corpus=tokens(), folder=tmp_path)
    steps, killed = counted(monkeypatch), [41]
    step = BatchedRun.step

    def dies(run: BatchedRun) -> Any:
        killed[0] -= 1
        if killed[0] == 0:
            raise KeyboardInterrupt
        return step(run)

    with monkeypatch.context() as patch:
        patch.setattr(BatchedRun, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            sweep.run(Inline(), batched_trials=2)
    assert steps.call_count == 40 and not sweep.results
    check(list(sweep.run(Inline(), batched_trials=2).values()), expected)
    assert steps.call_count == 40 + 3 + 6
    assert not list((tmp_path / "checkpoints").glob("*"))


def test_what_a_ladder_saves_is_known_before() -> None:
    trials = [trial for batch in ladder(etas=(0.0,)) for trial in batch]
    wanted = {t.key: STARTS[t.spec.train.steps] for t in trials if t.spec.train.steps < 40}
    assert shared(trials) == wanted
    assert shared(trials[:2]) == {}
