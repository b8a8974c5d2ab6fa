"""The engine in worker processes: results equal to inline's, batches that go on, sizes measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sweeper.engine import jobs
from sweeper.engine.runner import Engine
from sweeper.launch.inline import Inline
from sweeper.launch.local import Local
from sweeper.launch.pool import Pool
from sweeper.trial import Result, Trial
from tests.engine.tiny_trials import corpus, trial
from tests.golden import Golden
from tests.launch.faulty_corpus import deadly
from tests.launch.trial_sweep import TrialSweep, without_times
from tests.launch.trouble import calls

pytestmark = pytest.mark.filterwarnings("ignore:.*batching rule for aten")
EVERY_STEP = 1e-9


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Results do not depend on threads here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def expected(trials: list[Trial], folder: Path, batched_trials: int) -> dict[str, Result]:
    """What the inline launcher makes of `trials`."""
    inline = folder / "inline"
    inline.mkdir()
    sweep = TrialSweep(trials=trials, corpus=corpus(inline), folder=inline)
    return without_times(sweep.run(Inline(), batched_trials=batched_trials))


@pytest.mark.long  # in every run tests/cli/test_launcher.py compares a study
def test_results_equal_those_of_inline(tmp_path: Path) -> None:
    trials = [trial(seed=i) for i in range(3)] + [trial("mup")]
    sweep = TrialSweep(trials=trials, corpus=deadly(tmp_path), folder=tmp_path)
    results = sweep.run(Local(workers=2), batched_trials=2)
    assert without_times(results) == expected(trials, tmp_path, 2)
    assert sweep.work_done == pytest.approx(4)
    assert len({process for _, _, process, _ in calls(tmp_path)}) == 2
    assert {threads for *_, threads in calls(tmp_path)} == {1}
    assert not list(tmp_path.glob("jobs/*")) and not sweep.notices


@pytest.mark.long
def test_a_killed_worker_s_batch_goes_on_from_its_checkpoint(
    tmp_path: Path, golden: Golden
) -> None:
    trials = [trial(seed=i) for i in range(2)]
    kills = deadly(tmp_path, "kill", seed=0, at=5, once=True)
    sweep = TrialSweep(trials=trials, corpus=kills, folder=tmp_path)
    results = sweep.run(Local(workers=1), batched_trials=2, save_every=EVERY_STEP)
    assert without_times(results) == expected(trials, tmp_path, 2)
    assert [step for seed, step, *_ in calls(tmp_path) if seed == 1] == list(range(8))
    assert sweep.work_done == pytest.approx(2)
    assert len(sweep.notices) == 1
    golden.says(sweep.notices[0])
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.long
def test_a_batch_size_is_measured_once_a_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_MEASURED", {})
    asked: list[int] = []
    ask = Pool.ask
    monkeypatch.setattr(Pool, "ask", lambda *args: asked.append(1) or ask(*args))
    trials = [trial(seed=i) for i in range(4)]
    sweep = TrialSweep(trials=trials, corpus=corpus(tmp_path), folder=tmp_path)
    results = sweep.run(Local(workers=1))
    assert [result.status for result in results.values()] == ["complete"] * 4
    other = TrialSweep(trials=trials, corpus=corpus(tmp_path), folder=tmp_path / "other")
    loop = other.loop(Local(workers=1))
    assert sum(map(len, loop.runner.batches(trials, loop.executor))) == 4
    assert len(asked) == 1 and len(jobs._MEASURED) == 1


def test_a_gpu_more_takes_its_share_of_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.engine.runner.resolve_device", lambda name: "cuda")
    monkeypatch.setattr("sweeper.engine.runner.measure_here", lambda *_: (4, 1.0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    engine, trials, where = Engine(), [trial()], corpus(tmp_path)
    assert engine.estimate(trials, where, Local()) == (4, 0.25)
    assert engine.estimate(trials, where, Local(workers=2)) == (4, 0.5)
    assert engine.estimate(trials, where, Inline()) == (4, 1.0)
    assert engine.precision(Local()) == "bfloat16"
