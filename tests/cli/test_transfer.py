import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from sweeper.decide import trend as decided
from sweeper.decide.ladder_verdict import TargetAnswer
from sweeper.decide.trend import Trend
from sweeper.decide.validation import Validation
from sweeper.files import read_json
from sweeper.records import to_json
from sweeper.stats.estimate import Estimate
from sweeper.study.folder import read_document
from sweeper.study.study import StudyRecord
from sweeper.sweep import ladders
from sweeper.trial import Trial
from tests.cli.driver import (
    QUICK,
    VALIDATE,
    Run,
    assert_refused,
    measured,
    results,
    rewrite_losses,
    rewrite_results,
    tree,
)
from tests.golden import Golden


def write_parabolas(study: Path, optima: Mapping[int, float]) -> None:
    """Losses of 3 + x^2 nats in the place of those that `VALIDATE` measured.

    x is log2 eta less the width's optimum, which `optima` gives relative to the study's.
    """

    def loss_of(trial: Trial, away: float) -> float | None:
        # Seeds that all lose the same would measure no noise.
        loss = 3 + (away - optima[trial.width]) ** 2 + 1e-10 * trial.seed
        return loss if abs(away) <= 0.5 else None

    rewrite_losses(study, loss_of)


class TestPlan:
    def test_is_shown_and_written(self, sweeper: Run, study: Path, golden: Golden) -> None:
        answer = sweeper("transfer", "--to-width", "64", "--to-depth", "3")
        assert answer.code == 0 and answer.err == ""
        golden.says(measured(answer.out))
        plan = read_json(study / "transfer/w64-d3/plan.json")
        assert plan["target"] == {"width": 64, "depth": 3}
        assert plan["source"]["eta_from"] == "the study"

    def test_a_search_that_is_not_finished(self, sweeper: Run, study: Path, golden: Golden) -> None:
        rewrite_results(study, lambda lines: lines[1:])
        assert "the search is not finished" in sweeper("transfer", "--to-width", "32").out
        rewrite_results(study, lambda lines: ["{", *lines[1:]])
        assert "is damaged" in sweeper("transfer", "--to-width", "32").out
        rewrite_results(study, lambda lines: [])
        assert_refused(sweeper("transfer", "--to-width", "32"), golden)


class TestValidate:
    def test_trains_the_ladder_once(self, sweeper: Run, ladder_study: Path) -> None:
        folder, trained = ladder_study / "transfer/w32-d1", results(ladder_study)
        names = {path.name for path in folder.iterdir()}
        assert names == {"plan.json", "validation.json", "curves-width.png", "curves-width.svg"}
        curves = read_json(folder / "validation.json")["curves"]
        assert [(c["size"]["width"], len(c["losses"])) for c in curves] == [(16, 3), (32, 3)]
        # The study keeps what was asked of its ladder.
        for words in (VALIDATE, ["transfer", "--to-width", "32", "--validate"]):
            again = sweeper(*words)
            assert (again.code, again.err) == (0, "") and results(ladder_study) == trained

    @pytest.mark.parametrize(
        ("optimum", "words", "verdict", "code"),
        [
            (0.1, [], "holds", 0),
            (0.4, [], "fails", 3),
            (0.1, ["transfer.seeds=1"], "cannot say yet", 3),
        ],
    )
    def test_strict_exits_with_3_unless_it_holds(
        self, sweeper: Run, ladder_study: Path, optimum: float, words: list[str], verdict: str, code
    ) -> None:
        write_parabolas(ladder_study, {16: 0.0, 32: optimum})
        answer = sweeper(*VALIDATE, *words, "--strict", "--json")
        assert answer.document["verdicts"][0]["answer"] == verdict and answer.code == code

    def test_a_plan_without_a_new_validation_tells_the_kept_one(
        self, sweeper: Run, ladder_study: Path, golden: Golden
    ) -> None:
        path = ladder_study / "transfer/w32-d1/validation.json"
        kept = read_json(path)
        kept["axes"][0] |= {"answer": "cannot say yet", "settle": ["transfer.seeds=7"]}
        kept["command"] = "sweeper transfer --study a --to-width 32 --validate transfer.step=1"
        path.write_text(json.dumps(kept))
        answer = sweeper("transfer", "--to-width", "32")
        golden.says(measured(answer.out))
        assert answer.next == f"{kept['command']} transfer.seeds=7"

    def test_no_plan_stands_beside_the_verdict_on_another(
        self, sweeper: Run, ladder_study: Path, golden: Golden
    ) -> None:
        folder, trials = ladder_study / "transfer/w32-d1", len(results(ladder_study))
        verdict = (folder / "validation.json").read_text()
        same = sweeper("transfer", "--to-width", "32")
        assert (folder / "validation.json").read_text() == verdict and "removed" not in same.out
        other = sweeper("transfer", "--to-width", "32", "transfer.eta=-1")
        golden.says(next(line for line in other.out.splitlines() if line.startswith("Note:")))
        assert {path.name for path in folder.iterdir()} == {"plan.json"}
        assert "Validation over width" not in (ladder_study / "report.html").read_text()
        sweeper(*VALIDATE)
        assert read_json(folder / "validation.json")["axes"] == json.loads(verdict)["axes"]
        assert len(results(ladder_study)) == trials, "the verdict is had again without training"

    def test_curves_along_another_hyperparameter(self, sweeper: Run, study: Path) -> None:
        words = ["transfer.hyperparameter=alpha_attn", "transfer.seeds=1"]
        assert sweeper(*VALIDATE, *words).code == 0
        folder, best = study / "transfer/w32-d1", read_json(study / "search.json")["best_log2"]
        names = {"plan.json", "curves-alpha_attn-width.png", "curves-alpha_attn-width.svg"}
        assert {path.name for path in folder.iterdir()} == {*names, "validation-alpha_attn.json"}
        record = read_json(folder / "validation-alpha_attn.json")
        places = {best["alpha_attn"] + step for step in (-0.5, 0.0, 0.5)}
        assert record["hyperparameter"] == "alpha_attn"
        trained = [
            r.trial for r in StudyRecord.read(study).results() if r.trial.phase == "validate"
        ]
        assert {trial.log2_hps["eta"] for trial in trained} == {best["eta"]}
        assert {trial.log2_hps["alpha_attn"] for trial in trained} == places
        page = (study / "report.html").read_text()
        assert "Validation of alpha_attn over width" in page
        assert "has not been validated yet" in page

    def test_one_seed_of_many_points_is_judged_as_the_table_of_its_runs(
        self, sweeper: Run, study: Path
    ) -> None:
        """Its noise is what smooth curves leave, in both; shifts are what all optima tell."""
        words = ["transfer", "--to-width", "32", "--validate", "transfer.widths=[16,32]"]
        words += ["transfer.seeds=1", "transfer.span=2", "transfer.step=0.5", "transfer.extend=0"]
        assert sweeper(*words).code == 0
        rewrite_losses(study, lambda t, x: 3 + 0.02 * x**2 + 0.001 * math.sin(9 * x + t.width))
        answer = sweeper(*words, "--json").document["verdicts"][0]
        table = sweeper("judge", "a", "--to-width", "32", "--json").document["axes"][0]
        assert "one seed: the noise is" in answer["note"]
        for mine, other in zip(answer["sizes"], table["sizes"], strict=True):
            assert mine["answer"] == other["answer"] and mine["shift_log2"] == other["shift_log2"]
            assert math.isfinite(mine["loss_gap"]["high"])

    def test_a_dry_run_tells_what_a_ladder_would_take_and_writes_nothing(
        self, sweeper: Run, study: Path, golden: Golden
    ) -> None:
        before = tree(study.parent)
        answer = sweeper(*VALIDATE, "--dry-run")
        assert answer.code == 0 and answer.err == ""
        golden.says(measured(answer.out))
        document = sweeper(*VALIDATE, "--dry-run", "--json").document
        assert tree(study.parent) == before
        base, large = document["sizes"]
        assert document["seeds"] == 2 and (base["missing"], large["missing"]) == (5, 6)
        assert large["size"]["width"] == 32 and len(large["values_log2"]) == 3
        assert large["flops"] > base["flops"] > 0 and large["seconds"] > 0


def trend_to_256(*, warranted: bool) -> Trend:
    """A trend that predicts eta 2^-1.5 for the target."""
    near = Estimate(value=-1.5, low=-1.75, high=-1.25)
    return Trend(
        axis="width",
        sizes=(16, 32, 64),
        slope=Estimate(value=-0.5, low=-0.6, high=-0.4),
        target=256,
        transferred_log2=0.0,
        predicted_log2=near,
        off_log2=near,
        loss_gap=Estimate(value=0.0625, low=0.05, high=0.08),
        gain=Estimate(value=0.0625, low=0.01, high=0.1),
        warranted=warranted,
        reason="because",
        prior="half of it",
        forms={"power law": 1.0},
        back_test=None,
    )


def judged_by_trend(*_: object, warranted: bool, **_given: object) -> tuple[TargetAnswer, Trend]:
    answer = TargetAnswer(
        axis="width",
        size=256,
        answer="fails",
        sentence="At width 256, 8 times wider than measured, the transfer fails",
        todo="plan with the trend: transfer.correct=true",
        settle=("transfer.correct=true",),
    )
    return answer, trend_to_256(warranted=warranted)


class TestBaseCurve:
    """The search's eta may not be the optimum of the base's own curve."""

    def test_the_optimum_that_the_ladder_found_is_planned(
        self, sweeper: Run, ladder_study: Path, golden: Golden
    ) -> None:
        write_parabolas(ladder_study, {16: 0.2, 32: 0.2})
        best = read_json(ladder_study / "search.json")["best_log2"]["eta"]
        answer = sweeper(*VALIDATE)
        path = ladder_study / "transfer/w32-d1"
        plan = read_json(path / "plan.json")
        assert plan["hps"]["eta"] == pytest.approx(2 ** (best + 0.2), rel=1e-3)
        assert plan["source"]["eta_from"] == "the base's curve on the ladder"
        golden.says(measured(answer.out))
        record = read_json(path / "validation.json")
        assert record["planned_log2"] == pytest.approx(best + 0.2, abs=1e-3)
        assert record["log2_hps"]["eta"] == best
        base = record["axes"][0]["sizes"][0]
        assert base["optimum_log2"]["value"] == record["planned_log2"], "table, note and plan"
        # Every verb takes that eta, from one place.
        words = ["explain", "--study", "a", "--to-width", "32", "--json"]
        assert sweeper(*words).document["hps"]["eta"] == plan["hps"]["eta"]
        checked = sweeper("check", "--study", "a", *QUICK, "check.seeds=1", "--json").document
        assert checked["check"]["log2_hps"]["eta"] == record["planned_log2"]
        # Without training, and for another target, the plan is the same and the verdict stays.
        words = ["transfer", "--to-width", "64", *QUICK, "--json"]
        assert sweeper(*words).document["plan"]["hps"]["eta"] == plan["hps"]["eta"]
        assert read_json(path / "validation.json") == record

    def test_an_eta_that_the_user_gave_stays_and_nothing_holds(
        self, sweeper: Run, ladder_study: Path, golden: Golden
    ) -> None:
        write_parabolas(ladder_study, {16: 0.2, 32: 0.2})
        best = read_json(ladder_study / "search.json")["best_log2"]["eta"]
        answer = sweeper(*VALIDATE, f"transfer.eta={best}", "--strict")
        plan = read_json(ladder_study / "transfer/w32-d1/plan.json")
        assert plan["hps"]["eta"] == 2**best and answer.code == 3
        assert plan["source"]["eta_from"] == "transfer.eta"
        golden.says(measured(answer.out))


class TestCorrection:
    def test_two_widths_say_nothing_of_a_far_target(
        self, sweeper: Run, ladder_study: Path, golden: Golden
    ) -> None:
        write_parabolas(ladder_study, {16: 0.0, 32: 0.1})
        words = ["transfer", "--to-width", "256", "--validate", *QUICK]
        answer = sweeper(*words, "--strict", "--json")
        (verdict,) = answer.document["verdicts"]
        trend, target = answer.document["trend"], verdict["target"]
        assert answer.code == 3, "the ladder holds, the target does not"
        assert verdict["answer"] == "holds" and target["answer"] == "cannot say yet"
        assert not trend["warranted"] and trend["slope"]["value"] == pytest.approx(0.1)
        (known,) = answer.document["plan"]["source"]["validation"]
        assert known["ladder"] == "holds at widths 16 to 32" and known["target"] == target["answer"]
        golden.says(measured(sweeper(*words).out))
        even = sweeper(*words, "transfer.theory=false", "--json").document["trend"]
        assert even["prior"] != trend["prior"]

    def test_is_offered_and_applied_only_when_asked(
        self, sweeper: Run, ladder_study: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
    ) -> None:
        write_parabolas(ladder_study, {16: 0.0, 32: 0.1})
        words = ["transfer", "--to-width", "256", "--validate", *QUICK]
        monkeypatch.setattr(decided, "judge_target", partial(judged_by_trend, warranted=True))
        monkeypatch.setattr(ladders, "fit_trend", lambda *_: trend_to_256(warranted=True))
        offered = sweeper(*words)
        golden.says(offered.out[offered.out.index("Trend over") :])
        assert sweeper(*words, "--strict").code == 3
        source = read_json(ladder_study / "transfer/w256-d1/plan.json")["source"]
        assert source["eta_from"] == "the study" and source["correction"] is None
        plan = sweeper(*words, "transfer.correct=true", "--json").document["plan"]
        assert plan["hps"]["eta"] == pytest.approx(2**-1.5)
        assert plan["source"]["eta_from"] == "the trend over width"
        assert plan["source"]["correction"]["slope"]["value"] == -0.5
        # What was measured is known without training it again.
        again = sweeper(*[word for word in words if word != "--validate"], "transfer.correct=true")
        assert "used (transfer.correct=true)" in again.out

    def test_is_not_made_when_it_is_not_warranted(
        self, sweeper: Run, ladder_study: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ["transfer", "--to-width", "256", "--validate", *QUICK, "transfer.correct=true"]
        monkeypatch.setattr(decided, "judge_target", partial(judged_by_trend, warranted=False))
        answer = sweeper(*words)
        assert "not used: because." in answer.out
        source = read_json(ladder_study / "transfer/w256-d1/plan.json")["source"]
        assert source["eta_from"] == "the study" and source["correction"] is None


def test_a_ladder_that_settles_ends_with_its_budget_and_trains_nothing_twice(
    sweeper: Run, study: Path
) -> None:
    settle = [*VALIDATE, "--settle", "--budget", "12", "study=a", "--json"]
    assert "begins with 12 runs" in sweeper(*settle[:-1], "--dry-run").out
    answer = sweeper(*settle)
    assert answer.code == 0 and "12 runs" in answer.err
    told = json.loads(answer.out)
    assert told["settled"].startswith("Not settled with 12 runs")
    kept = read_json(study / "transfer/w32-d1/validation.json")
    assert kept["settled"] == told["settled"]
    assert {verdict.get("confidence") for verdict in kept["axes"]} == {0.97}
    results = len(StudyRecord.read(study).results())
    assert json.loads(sweeper(*settle).out)["settled"] == told["settled"]
    assert len(StudyRecord.read(study).results()) == results
    dry = sweeper(*settle[:-1], "--dry-run", "--json").document
    assert told["settled"] in dry["settle"]["sentence"]
    assert dry["settle"]["runs"] == sum(size["missing"] for size in dry["sizes"]) == 0


def test_ladders_of_all_hyperparameters_are_those_that_a_search_may_move(
    sweeper: Run, study: Path
) -> None:
    words = [*VALIDATE, "study=a", "--settle", "--budget", "12", "transfer.hyperparameter=all"]
    ladders = sweeper(*words, "--dry-run", "--json").document["ladders"]
    best = read_json(study / "search.json")["best_log2"]
    assert {*ladders} == {*best} and len(ladders) > 1


def test_a_verdict_on_more_of_the_same_runs_stays(
    sweeper: Run, ladder_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parabolas(ladder_study, {16: 0.0, 32: 0.0})
    sweeper(*VALIDATE)
    path = ladder_study / "transfer/w32-d1/validation.json"
    record = read_document(path, Validation, [])
    assert record is not None
    monkeypatch.setattr(ladders, "_rests_on_less", lambda *_: True)
    answer = sweeper(*VALIDATE, "--settle", "--verbose")
    assert "the verdict that was there stays" in answer.out + answer.err
    assert read_json(path)["axes"] == to_json(record.axes)
