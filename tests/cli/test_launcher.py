"""The launcher that users get who name none, and what trains in this process all the same.

Other tests of this process train inline where they name no launcher (`tests/conftest.py`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeper as api
from sweeper.config import compose
from sweeper.data.corpus import TokenCorpus
from sweeper.launch.job import can_be_sent
from sweeper.launch.pool import Pool
from sweeper.study.study import StudyRecord
from tests.api.test_calls import SETTINGS
from tests.cli.driver import TINY, Run, make_workplace, rewrite_results
from tests.engine.tiny_trials import tokens
from tests.golden import Golden
from tests.refusals import raises_config_error

HERE = [*TINY, "study=a"]


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "_start", lambda *_: pytest.fail("a worker was started"))


@pytest.mark.usefixtures("shipped", "no_worker")
def test_workers_train_by_default_and_nothing_starts_one_needlessly(sweeper: Run) -> None:
    assert compose.compose_tree([])["launcher"]["workers"] == "auto"
    assert sweeper("search", *HERE, "--dry-run").code == 0
    assert sweeper("explain", "--to-width", "64", *TINY).code == 0
    assert not Path("runs").exists()


@pytest.mark.usefixtures("shipped")
def test_a_study_begun_inline_goes_on_in_workers_with_the_same_bits(
    sweeper: Run, workplace: Path
) -> None:
    """The command that names no launcher trains the one trial that is lacking, as it was."""
    assert sweeper("search", *HERE, "launcher=inline").code == 0
    study = workplace / "runs/a"
    kept = {
        result.key: (result.curve, result.heldout) for result in StudyRecord.read(study).results()
    }
    rewrite_results(study, lambda lines: lines[:-1])
    went_on = sweeper("search", *HERE)
    assert went_on.code == 0, went_on.err
    results = StudyRecord.read(study).results()
    assert {result.key: (result.curve, result.heldout) for result in results} == kept
    assert len(kept) == len(results) == 3 and not list(study.glob("jobs/*"))
    assert "workers: auto" in (study / "config.yaml").read_text()


@dataclass(frozen=True, kw_only=True)
class InMemory(TokenCorpus):
    """Tokens, and beside them what no file holds."""

    arrays: Any = field(default_factory=lambda: np.zeros(3))


@dataclass(frozen=True)
class Source:
    def prepare(self, cache: Path) -> TokenCorpus:
        return InMemory(**tokens().__getstate__())


def test_what_can_be_sent_to_workers() -> None:
    class Inner(TokenCorpus):
        pass

    state = tokens().__getstate__()
    assert can_be_sent(tokens())
    assert not any(map(can_be_sent, (InMemory(**state), Inner(**state), object(), np.zeros(2))))


@pytest.mark.usefixtures("shipped", "no_worker")
@pytest.mark.parametrize("kind", ["model", "data"])
def test_what_this_process_alone_has_trains_in_it_and_that_is_told(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.chdir(make_workplace(tmp_path))
    from tests.toy_models import Residual

    if kind == "model":
        monkeypatch.setattr(Residual, "__module__", "__main__")
        monkeypatch.setattr(sys.modules["__main__"], "Residual", Residual, raising=False)
        settings = SETTINGS
    else:
        settings = {**SETTINGS, "data": Source}
    with raises_config_error("launcher", "local") as refused:
        api.search(Residual, **settings, launcher="local")
    golden.says(refused.value.allowed)
    assert not Path("runs").exists()
    study = api.search(Residual, **settings)
    assert isinstance(study, api.Study) and len(study.results()) == 3
    [note] = [note for note in study.notices if "this one trains" in note]
    golden.says(note)
    # Later commands of the study find it so.
    assert compose.read_tree(Path("runs/nb/config.yaml"), ())["launcher"].keys() == {"_target_"}
