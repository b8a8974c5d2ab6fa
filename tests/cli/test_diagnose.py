import json

import pytest

from tests.cli.driver import TINY, Run, measured
from tests.golden import Golden

REAL = [
    *TINY,
    "parameterization=standard",
    "study=a",
    "train.steps=40",
    "train.seq_len=16",
    "train.batch_size=4",
    "runner.batched_trials=9",
    "search.line={points: 9, extend: 4}",
]
LADDER = ["transfer.widths=[16,96]", "transfer.step=1.0", "transfer.extend=6"]


@pytest.mark.usefixtures("drawn")
@pytest.mark.long
def test_a_real_failure_of_the_standard_parameterization(sweeper: Run, workplace) -> None:
    """One learning rate for all widths: muP's rule for the hidden layers mends it."""
    text = " ".join(f"{n} squared is {n * n}." for n in range(3000))
    (workplace / "text.txt").write_text(text)
    assert sweeper("search", *REAL).code == 0
    words = ["diagnose", *LADDER, "--only", "rules", "--only", "decay", "--json"]
    answer = sweeper(*words)
    assert answer.code == 0, answer.err
    found = answer.document["diagnosis"]
    assert found["answer"] == "fails"
    assert found["results"][0]["ablation"]["name"] == "rules"
    assert float(found["results"][0]["explained"]["value"]) > 0.5
    assert found["conclusion"].startswith("The likeliest cause (rules)")
    assert "Trying ablation 1 of 2, rules: muP's rules for all parameters" in answer.err
    kept = json.loads((workplace / "runs/a/transfer/diagnosis-width.json").read_text())
    assert kept == found
    assert "Report: runs/a/report.html" in answer.err
    assert "The likeliest cause (rules)" in (workplace / "runs/a/report.html").read_text()
    count = len(list((workplace / "runs/a/results").glob("*.jsonl")))
    again = sweeper(*words)
    assert again.document == answer.document
    assert len(list((workplace / "runs/a/results").glob("*.jsonl"))) == count


def test_what_does_not_fail_is_not_diagnosed(sweeper: Run, study, golden: Golden) -> None:
    words = ["transfer.widths=[16,32]", "transfer.seeds=1", "transfer.span=0.5"]
    answer = sweeper("diagnose", *words, "transfer.max_shift=50", "transfer.max_loss_gap=1000")
    assert answer.code == 0
    golden.says(measured(answer.out))
