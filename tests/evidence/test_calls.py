"""What a notebook calls of runs that are there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import sweeper
from sweeper.api.shown import Answer
from sweeper.errors import BadInput, SweeperError
from sweeper.evidence.predict.decision import NoLossLaw
from tests.refusals import raises_config_error


@pytest.mark.usefixtures("undrawn")
def test_studies_are_compared_and_a_loss_is_predicted(made: Path) -> None:
    shutil.copytree("runs/nb", "runs/nc")
    done = sweeper.compare("nb", sweeper.open_study("nc"), anyway=True)
    shutil.rmtree("runs/nc")
    assert done.answer == "cannot say" and "nb" in repr(done)
    assert done.document["variants"][0]["name"] == "nc"
    planned = sweeper.transfer("nb", 64, horizons=True, steps=[4])
    assert isinstance(planned, sweeper.Transfer) and planned.plan.target.width == 64
    few = sweeper.predict(sweeper.open_study("nb"), to_width=64)
    assert isinstance(few, NoLossLaw) and few.answer == "cannot say yet" and few.reasons
    dry = sweeper.transfer("nb", 64, horizons=True, dry_run=True)
    assert isinstance(dry, Answer)
    with pytest.raises(SweeperError, match="the transfer over width"):
        sweeper.transfer(
            "nb", 64, validate=True, strict=True, seeds=2, step=1.0, span=1.0, extend=0
        )


def test_too_few_runs_of_a_table_are_no_error() -> None:
    few = sweeper.predict({"params": [1e6, 2e6], "tokens": [2e7, 4e7], "loss": [3.0, 2.8]})
    assert isinstance(few, NoLossLaw) and few.answer == "cannot say yet" and few.prediction is None


def test_a_name_that_is_none_says_what_it_may_be(made: Path) -> None:
    with raises_config_error("flops"):
        sweeper.predict({"params": [1e6], "tokens": [1e7], "loss": [3.0]}, flops=-1)
    with pytest.raises(BadInput, match="compare takes two studies or more"):
        sweeper.compare("nb")
