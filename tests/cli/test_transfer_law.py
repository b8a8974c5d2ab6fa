"""`sweeper transfer` with a law: another batch and horizon, ladders that judge it, and its fit."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from sweeper.files import read_json
from sweeper.plan.plan import TransferPlan
from sweeper.study.study import StudyRecord
from sweeper.trial import Trial
from tests.cli.driver import Run, assert_refused, measured, results, rewrite_losses
from tests.golden import Golden

LADDER = ["transfer.widths=[]", "transfer.steps=[1,2,4,8]", "transfer.span=1"]
LADDER += ["transfer.step=0.5", "transfer.extend=0", "transfer.seeds=2"]
VALIDATE = ["transfer", "--to-width", "16", "--validate", *LADDER]


def write_parabolas(study: Path, exponent: float) -> None:
    """Losses of 3 + x^2 nats in the ladder's place, x off an optimum that goes as steps^exponent.

    The base has 4 steps.
    """

    def loss_of(trial: Trial, away: float) -> float | None:
        at = exponent * math.log2(trial.spec.train.steps / 4)
        if at == 0 and abs(away) > 1:
            return None
        return 3 + (away - at) ** 2 + 1e-9 * math.sin(9 * away + trial.seed)

    rewrite_losses(study, loss_of)


def test_a_plan_for_another_batch_and_horizon(sweeper: Run, study: Path, golden: Golden) -> None:
    # The base takes 4 steps of 2 x 16 = 128 tokens; four times the batch, 16 times the tokens.
    argv = ["transfer", "--to-width", "32", "--to-tokens", "2048", "--to-batch", "8", "law=joint"]
    answer = sweeper(*argv)
    assert answer.code == 0, answer.err
    golden.says(re.sub(r"about \d+ s", "about # s", answer.out[answer.out.index("Law:") :]))
    folder = study / "transfer/w32-d1-b8-s16"
    plan, best = TransferPlan.load(folder), read_json(study / "search.json")["best"]
    assert plan.hps["eta"] == pytest.approx(best["eta"] * 2 * 16**-0.3)
    assert plan.law is not None and plan.law.target.tokens == 2048 and plan.betas is not None
    assert plan.betas == (0.9, pytest.approx(0.999**4)) and "Law: joint" in str(plan)
    page = (study / "report.html").read_text()
    assert "Plan for width 32, depth 1, 16 steps of 8" in page and "held fixed: beta1" in page


def test_a_law_of_ones_own(
    sweeper: Run, study: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "own_law.py").write_text(
        "from sweeper.laws.law import Factors\n\n\n"
        "class Halving:\n"
        "    source, fixed = 'a blog', 'all else'\n\n"
        "    def factors(self, base, target):\n"
        "        return Factors(eta=(base.tokens / target.tokens) ** 0.5)\n\n\n"
        "class Wrong(Halving):\n"
        "    def factors(self, base, target):\n"
        "        return {'eta': 1.0}\n\n\n"
        "class Broken(Halving):\n"
        "    def factors(self, base, target):\n"
        "        return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(workplace)
    argv = ["transfer", "--to-width", "32", "--to-tokens", "512"]
    answer = sweeper(*argv, "law._target_=own_law.Halving", "--json")
    assert answer.document["plan"]["law"]["factors"]["eta"] == 0.5
    assert answer.document["plan"]["law"]["name"] == "own_law.Halving"
    for name, text in (("Wrong", "whose factors are"), ("Broken", "ZeroDivisionError")):
        assert_refused(sweeper(*argv, f"law._target_=own_law.{name}"), text)


def test_ladders_judge_the_law_and_fit_it(sweeper: Run, study: Path, golden: Golden) -> None:
    assert sweeper(*VALIDATE).code == 0
    write_parabolas(study, -0.25)
    trained = results(study)
    # Without a law the optimum moves by a quarter a doubling; with the right one nothing is left.
    bare = sweeper(*VALIDATE, "--json").document
    assert "exponents" not in bare and "law" not in bare["verdicts"][0]
    shifts = [size["shift_log2"]["value"] for size in bare["verdicts"][0]["sizes"]]
    assert shifts == pytest.approx([0.5, 0.25, 0.0, -0.25], abs=1e-3)
    right_law = [*VALIDATE, "law=horizon", "law.tokens=-0.25", "--json"]
    assert sweeper(*right_law).code == 0
    write_parabolas(study, -0.25)  # there is one more point
    right = sweeper(*right_law).document
    (verdict,) = right["verdicts"]
    assert verdict["law"] == "law=horizon"
    assert [size["planned_log2"] for size in verdict["sizes"]] == [0.5, 0.25, 0.0, -0.25]
    remaining = [size["shift_log2"]["value"] for size in verdict["sizes"]]
    assert remaining == pytest.approx([0.0] * 4, abs=1e-3)
    fitted = sweeper(*VALIDATE, "law=fit", "--to-tokens", "512", "--json").document
    (each,) = fitted["exponents"]["exponents"]
    assert each["direction"] == "tokens at a fixed batch"
    assert each["measured"]["value"] == pytest.approx(-0.25, abs=1e-3)
    inside = {law["law"]: law["inside"] for law in each["published"]}
    assert inside["Complete(d)P"] is False
    assert "no independent test" in fitted["verdicts"][0]["law"]
    assert fitted["plan"]["law"]["factors"]["eta"] == pytest.approx(2**-0.5, abs=1e-3)
    # From what the study holds, without training; the verdict of another law does not stay.
    answer = sweeper("transfer", "--to-width", "16", "--to-tokens", "4096", "law=fit", *LADDER)
    golden.says(measured(answer.out))
    assert_refused(
        sweeper("transfer", "--to-width", "16", "--to-batch", "4", "law=fit", *LADDER), golden
    )
    # A law's curves lie on the grid that was trained without it: where eta is planned at twice
    # the root, one more point of two seeds.
    assert results(study).keys() > trained.keys() and len(results(study)) == len(trained) + 2
    last = sweeper("transfer", "--to-width", "16", *LADDER).out
    golden.says(next(line for line in last.splitlines() if line.startswith("Note:")))


def test_a_ladder_trains_what_the_law_plans(sweeper: Run, study: Path) -> None:
    argv = ["transfer.widths=[]", "transfer.batches=[2,8]", "transfer.span=0.5"]
    answer = sweeper(
        "transfer", "--to-width", "16", "--validate", "law=joint", "transfer.extend=0", *argv
    )
    assert answer.code == 0 and "Planned by law=joint" in answer.out and "+0.40" in answer.out
    trials = [
        r.trial for r in StudyRecord.read(study).results() if r.trial.spec.train.batch_size == 8
    ]
    assert {round(trial.hps["one_minus_beta2"], 3) for trial in trials} == {3.994}
    # At four times the batch and as many steps eta goes as 2^0.4, on the grid 2^0.5; eps stays.
    best = read_json(study / "search.json")["best_log2"]["eta"]
    assert sorted({t.log2_hps["eta"] - best for t in trials}) == pytest.approx([0.0, 0.5, 1.0])
    assert all("eps" not in trial.hps for trial in trials)
    outside = sweeper(
        "transfer", "--to-width", "16", "--validate", "law=horizon", "transfer.extend=0", *argv
    )
    assert "law=horizon, but as at the base at 1 of 2 sizes" in outside.out
