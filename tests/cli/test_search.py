import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import optuna
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import sweeper as api
from sweeper.config import compose
from sweeper.config.settings import Settings
from sweeper.data.corpus import TokenCorpus
from sweeper.decide.documents import Documents
from sweeper.engine import jobs
from sweeper.engine.batched import BatchedTrials
from sweeper.engine.runner import Engine
from sweeper.files import read_json, write_json
from sweeper.launch.job import can_be_sent
from sweeper.launch.pool import Pool
from sweeper.study.lock import StudyLock
from sweeper.study.study import StudyRecord
from sweeper.sweep import base_search as cost
from sweeper.sweep.sweep import Submitted
from tests.api.test_calls import SETTINGS
from tests.cli.driver import (
    SIZES,
    TINY,
    Run,
    assert_refused,
    make_workplace,
    measured,
    rewrite_results,
    tree,
)
from tests.engine.tiny_trials import tokens
from tests.golden import Golden
from tests.refusals import raises_config_error

HUGE = "parameterization.space.eta={low: 50, high: 52, default: 51}"
"""Learning rates that no model survives."""


def yaml_of(study: Path) -> str:
    return (study / "config.yaml").read_text()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of all trials that are trained in this process."""
    keys: list[str] = []

    train = jobs.train

    def watched(batched: BatchedTrials, *given: Any) -> Any:
        keys.extend(trial.key for trial in batched.trials)
        return train(batched, *given)

    monkeypatch.setattr(jobs, "train", watched)
    return keys


class TestSearch:
    def test_a_changed_configuration_is_told_and_its_conclusion_withdrawn(
        self, sweeper: Run, study: Path
    ) -> None:
        changed = sweeper("search", *TINY, "study=a", "--new-setup", "train.warmup=0.3", HUGE)
        said = "was searched with other values of parameterization.space, train.warmup before"
        assert said in " ".join(changed.out.split())
        assert read_json(study / "search.json")["objective"] == "inf"

    @pytest.mark.usefixtures("drawn")
    def test_everything_lies_in_the_studys_folder(self, sweeper: Run, workplace: Path) -> None:
        answer = sweeper("search", *TINY, "study=a", 'root="my runs/er"', "logger=jsonl")
        assert answer.next.endswith(" --validate --root 'my runs/er'")
        assert re.search(r"Speed at width 16, depth 1: [\d,]+ tokens/s on cpu", answer.err)
        folder = workplace / "my runs/er/a"
        names = {path.name for path in folder.iterdir()}
        assert {"config.yaml", "study.journal", "results", "search.json", "report.html"} <= names
        assert len((folder / "trials.jsonl").read_text().splitlines()) == 3
        assert sorted(path.name for path in workplace.iterdir()) == ["my runs", "text.txt"]
        assert {path.name for path in (workplace / "my runs/er").iterdir()} == {".cache", "a"}
        kept = yaml.safe_load(yaml_of(folder))
        assert kept["model"]["width"] == 16 and kept["study"]["name"] == "a"
        assert "sweeper." not in yaml_of(folder)


class TestGoingOn:
    def test_what_is_not_typed_is_as_it_was(
        self, sweeper: Run, study: Path, trained: list[str]
    ) -> None:
        before = yaml_of(study)
        assert sweeper("search", "--study", "a").code == 0
        assert not trained and yaml_of(study) == before
        assert sweeper("search", "--study", "a", "search.fresh_seeds=1").code == 0
        assert len(trained) == 1
        # What chooses a group says anew what to search: of defaults, and another setup.
        assert_refused(sweeper("search", "--study", "a", "search=lr"), "of another setup")

    def test_a_sampler_of_another_version_of_optuna_is_told(
        self, sweeper: Run, workplace: Path, trained: list[str]
    ) -> None:
        """It may ask for other points, as TPE of Optuna 4 does."""
        words = [word for word in TINY if not word.startswith("search")]
        words += ["search=tpe", "study=t", "search.runs=2", "search.fresh_seeds=0"]
        assert "Optuna" not in sweeper("search", *words).err
        path, told = workplace / "runs/t/search.json", "goes on with Optuna"
        record = read_json(path)
        assert record["provenance"]["optuna"] == optuna.__version__
        for other, says in (({}, False), ({"optuna": "4.4.0"}, True)):
            write_json(path, record | {"provenance": record["provenance"] | other})
            again = " ".join(sweeper("search", *words).err.split())
            assert (f"asked of Optuna 4.4.0, and {told} {optuna.__version__}" in again) == says
            assert ("pip install optuna==4.4.0" in again) == says == (told in again)
        assert len(trained) == 2

    def test_what_a_stranger_s_study_names_is_not_run(self, sweeper: Run, study: Path) -> None:
        path = study / "config.yaml"
        tree = yaml_of(study).partition("\n")[2]  # without its sum
        path.write_text(tree.replace("_target_: llama", "_target_: theirs.Net"))
        assert_refused(sweeper("search", "--study", "a"), "theirs.Net (model). Its config.yaml")


class TestFreshSeeds:
    FRESH = (*TINY, "study=a", "search.fresh_seeds=2")

    def test_their_mean_is_the_loss_wherever_one_is_told(
        self, sweeper: Run, workplace: Path, trained: list[str]
    ) -> None:
        planned = sweeper("search", *self.FRESH, "--dry-run", "--json").document["phases"]
        phases = [(phase["phase"], phase["trials"]) for phase in planned]
        assert phases == [("eta", 3), ("final", 2)]
        answer = sweeper("search", *self.FRESH)
        results = StudyRecord.read(workplace / "runs/a").results()
        final = [r for r in results if r.trial.phase == "final"]
        assert len(final) == 2 and len(trained) == 5
        best = min(results[:3], key=lambda r: r.objective)
        assert {r.trial.log2_hps["eta"] for r in final} == {best.trial.log2_hps["eta"]}
        loss, error = fmean(r.objective for r in final), stdev(r.objective for r in final) / 2**0.5
        said = f"{loss:.4f} nats (mean of 2 fresh seeds, standard error {error:.4f})"
        assert f"Training loss {said} after 5 trials." in answer.out
        assert f"best configuration: {said}" in sweeper("status", "--study", "a").out
        page = " ".join((workplace / "runs/a/report.html").read_text().split())
        assert f"mean of 2 fresh seeds, standard error {error:.4f}" in page
        plan = sweeper("transfer", "--study", "a", "--to-width", "32", "--json").document["plan"]
        record = read_json(workplace / "runs/a/search.json")
        for told in (plan["source"], record):
            assert (told["objective"], told["error"]) == (loss, pytest.approx(error))
            assert told["fresh_seeds"] == 2
        assert record["selected_objective"] == best.objective
        storage = JournalStorage(JournalFileBackend("runs/a/study.journal"))
        shown = optuna.load_study(study_name="a", storage=storage).user_attrs
        assert (shown["loss"], shown["loss_error"]) == (loss, pytest.approx(error))


class TestAnotherSetup:
    def test_is_refused_with_what_changed_and_nothing_is_touched(
        self, sweeper: Run, study: Path, trained: list[str], golden: Golden
    ) -> None:
        before = {path: path.read_bytes() for path in study.rglob("*") if path.is_file()}
        words = [*TINY, "--study", "a", "train.warmup=0.3", "optimizer=lion"]
        for flags in ([], ["--dry-run"]):
            assert_refused(sweeper("search", *words, *flags), golden)
        assert trained == []
        assert before == {path: path.read_bytes() for path in study.rglob("*") if path.is_file()}

    def test_status_report_and_transfer_speak_of_the_same_trials(
        self, sweeper: Run, study: Path, golden: Golden
    ) -> None:
        sweeper("search", *TINY, "study=a", "train.steps=2", "--new-setup")
        status = sweeper("status", "--json").document
        assert status["best"] == pytest.approx(read_json(study / "search.json")["objective"])
        assert status["trials"] == {"complete": 3} and status["other_setups"] == 3
        golden.says(measured(sweeper("status").out))
        assert Documents.read(study).counts == {"complete": 3}
        source = sweeper("transfer", "--to-width", "32", "--json").document["plan"]["source"]
        assert source["objective"] == pytest.approx(status["best"])

    def test_a_study_that_does_not_say_its_setup_tells_it_by_its_trials(
        self, sweeper: Run, study: Path, golden: Golden
    ) -> None:
        (study / "setup.json").unlink()
        assert_refused(sweeper("search", *TINY, "study=a", "train.steps=3"), golden)
        assert sweeper("search", *TINY, "study=a").code == 0 and (study / "setup.json").is_file()


class TestDryRun:
    def test_tells_what_is_finished(self, sweeper: Run, study: Path, golden: Golden) -> None:
        before = tree(study)
        answer = sweeper("search", *TINY, "study=a", "--dry-run", "--json")
        (phase,) = answer.document["phases"]
        assert answer.document["finished"] == phase["trials"] == 3
        assert phase["flops"] > 0 and phase["seconds"] > 0
        golden.says(measured(answer.err))
        assert tree(study) == before


class TestTrouble:
    def test_all_diverged(self, sweeper: Run, workplace: Path, golden: Golden) -> None:
        words = [*TINY, "study=a", "optimizer.eps=1e-30", "train.steps=8", HUGE]
        answer = sweeper("search", *words, "--json")
        assert answer.code == 1 and answer.document["objective"] == "inf"
        golden.says(measured(answer.err))
        assert sweeper("transfer", "--to-width", "32").err == (
            "Error: every trial of 'a' diverged or failed: there is no optimum. Search anew, with "
            "lower values of parameterization.space.eta where they diverged\n"
        )

    def test_failed_trials_are_told_with_the_reason_and_tried_again(
        self, sweeper: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("no such kernel")

        with monkeypatch.context() as patch:
            patch.setattr("sweeper.engine.jobs.train", fail)
            answer = sweeper("search", *TINY, "study=a")
        assert answer.code == 1
        note = "Note: 3 trials failed and will be tried again next time: RuntimeError: no such"
        assert note in answer.out and answer.next == "sweeper search --study a"
        assert note in sweeper("status").out
        again = sweeper("search", *TINY, "study=a")
        assert again.code == 0 and "failed" not in again.out

    def test_a_full_disk(
        self, sweeper: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("sweeper.study.study.append", full)
            answer = sweeper("search", *TINY, "study=a")
        assert answer.code == 1 and answer.err.splitlines()[-1].startswith("Error: cannot record")
        with monkeypatch.context() as patch:
            patch.setattr("sweeper.sweep.base_search.write_summed", full)
            assert_refused(sweeper("search", *TINY, "study=a"), golden, code=1)
        assert sweeper("search", *TINY, "study=a").code == 0

    def test_a_page_that_cannot_be_written(
        self, sweeper: Run, study: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It costs neither the answer nor the next command."""

        def full(path: Path, _: object) -> None:
            raise OSError(28, "No space left on device", str(path))

        with monkeypatch.context() as patch:
            patch.setattr("sweeper.report.study_page.write_atomically", full)
            answer = sweeper("search", *TINY, "study=a")
        told = "report.html was not written (No space left on device): `sweeper report a` writes it"
        assert answer.code == 0 and f"Note: {told}" in answer.out
        assert "Study: runs/a" in answer.out and answer.next.startswith("sweeper transfer --study")

    def test_a_storage_that_cannot_be_had(self, sweeper: Run) -> None:
        answer = sweeper("search", *TINY, "study.storage=mysql://me:s3cret@localhost:1/d")
        assert_refused(answer, "mysql://me:***@localhost:1/d")
        assert "s3cret" not in answer.err


def test_a_storages_password_is_never_written(
    sweeper: Run, study: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    word = "study.storage='mysql://me:s3cret@host/d'"
    monkeypatch.setattr("sys.argv", ["sweeper", "search", *TINY, word])
    monkeypatch.setattr("sweeper.search.optuna.recording.OptunaStudy", Mock())
    monkeypatch.setattr("sweeper.sweep.base_search.check_storage", Mock())
    answer = sweeper("search", *TINY, "study=a", word, "--json")
    assert answer.code == 0 and "s3cret" not in answer.out + answer.err
    assert "mysql://me:***@host/d" in yaml_of(study)
    assert "mysql://me:***@host/d" in answer.document["provenance"]["command"]
    for path in study.rglob("*"):
        assert path.is_dir() or b"s3cret" not in path.read_bytes(), path
    assert_refused(sweeper("transfer", "--to-width", "32", "--validate"), golden)
    assert not (study / "transfer").exists()
    assert sweeper("transfer", "--to-width", "32").code == 0


def test_a_second_driver_is_refused(sweeper: Run, study: Path) -> None:
    driver = f"process {os.getpid()} on {socket.gethostname()}"
    with StudyLock(study):
        before = tree(study)
        assert_refused(sweeper("search", *TINY, "study=a", "--json"), driver)
        assert tree(study) == before


def test_a_search_of_which_nothing_is_said_is_short(
    sweeper: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    def search(settings: Settings, *_: Any, **__: Any) -> Submitted:
        target = settings.raw["search"]["_target_"].rpartition(".")[2]
        seen.append((target, settings.raw["train"]["steps"]))
        return Submitted(submitted=0, finished=0)

    monkeypatch.setattr("sweeper.sweep.base_search.search_study", search)
    monkeypatch.setattr("sweeper.config.settings.check_model_size", lambda *_, **__: None)
    for words in ([], ["search=independent"], ["size=paper"]):
        sweeper("search", *words)
    independent = "IndependentSearch"
    assert seen == [("LearningRateLine", 300), (independent, 1000), (independent, 8192)]


def test_a_log_that_cannot_be_written_fails_nothing(sweeper: Run, workplace: Path) -> None:
    folder = workplace / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "wandb").write_text("a file where a folder should be")
    answer = sweeper("search", *TINY, "study=a", "logger=wandb")
    assert answer.code == 0 and answer.out.count("the log failed (FileExistsError") == 1
    planned = sweeper("transfer", "--study", "a", "--to-width", "32")
    assert planned.code == 0 and "the log failed (FileExistsError" in planned.text


WORDS = ["search", "data=text", "data.path=text.txt", *SIZES, "study=a", "search=pairs"]
FEW = ["search.pairs=[[eta,alpha_attn]]", "search.points=2", "search.eta=null"]


@pytest.mark.usefixtures("drawn")
def test_a_search_over_a_pair_leaves_its_table_on_screen_and_page(sweeper: Run, workplace) -> None:
    answer = sweeper(*WORDS, *FEW)
    assert answer.code == 0, answer.err
    assert "Pairs, the most strongly coupled first" in answer.out
    folder = workplace / "runs/a"
    (grid,) = json.loads((folder / "search.json").read_text())["pairs"]
    assert grid["names"] == ["eta", "alpha_attn"] and len(grid["losses"]) == 2
    assert "Pairs, the most strongly coupled first" in (folder / "report.html").read_text()


# What a search will cost.


Timed = Callable[[float], list[int]]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    """Makes steps take so many seconds; the numbers of trials that were timed."""
    counts: list[int] = []

    def make(seconds: float) -> list[int]:
        def estimate(self: Engine, trials: Any, *_: object) -> tuple[int, float]:
            counts.append(len(trials))
            return 1, seconds

        monkeypatch.setattr(Engine, "estimate", estimate)
        monkeypatch.setattr(cost, "FAST_FLOPS", 1.0)
        return counts

    return make


def test_a_long_search_says_so_first_with_a_smaller_command(
    sweeper: Run, workplace: Path, timed: Timed
) -> None:
    timed(1000.0)
    answer = sweeper("search", *TINY, "train.steps=40", "--root", "my runs", "--study", "a")
    lines = answer.err.splitlines()
    assert lines[0] == "This search trains 3 trials: about 33 h 20 min here."
    assert lines[2].startswith("To try it first, in about 7 h 46 min: the same with --study a-try ")
    argv = shlex.split(lines[2].partition("with ")[2])
    assert argv[2:] == ["search=lr", "train.steps=2"]
    assert sweeper("search", *TINY, "--root", "my runs", *argv[:2], argv[-1]).code == 0
    assert (workplace / "my runs/a-try/search.json").is_file()
    again = sweeper("search", *TINY, "train.steps=40", "--root", "my runs", "--study", "a")
    assert "here." not in again.err, "one that goes on tells the time that is left"


def test_a_short_search_is_not_timed(
    sweeper: Run, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = timed(0.001)
    assert "This search" not in sweeper("search", *TINY, "study=a").err and counts == [1]
    # What is small anyway is not even looked at.
    counts = timed(1000.0)
    monkeypatch.setattr(cost, "FAST_FLOPS", 2e10)
    assert "This search" not in sweeper("search", *TINY, "study=b").err and counts == [1]


def test_of_a_command_nothing_is_known(sweeper: Run, timed: Timed, workplace: Path) -> None:
    experiment: Any = SimpleNamespace(
        precision="float32",
        spec=lambda size: None,
        settings=SimpleNamespace(
            base=None,
            space={},
            search=SimpleNamespace(plan=lambda space: []),
            runner=SimpleNamespace(flops=lambda spec: 1e9, parameters=lambda spec: None),
        ),
    )
    counts = timed(1000.0)
    cost.tell_cost(experiment, None)  # type: ignore[arg-type]
    assert counts == []


# The launcher that users get who name none.


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
