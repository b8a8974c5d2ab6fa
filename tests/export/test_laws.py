"""What a law changed reaches every trainer: betas beside the groups, and the law in the header."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.export.exporter import EXPORTERS
from sweeper.laws.law import AppliedLaw, Factors, Scale
from sweeper.plan.plan import TransferPlan
from sweeper.trial import PlainHps, log2, plain
from tests.export.plans import made
from tests.export.plans import plan as planned

BASE = Scale(width=32, depth=2, batch=8, steps=64, tokens=512, betas={"beta1": 0.9, "beta2": 0.999})


def with_law() -> TransferPlan:
    """A plan at four times the batch and a quarter of the steps, by Adam's square-root rule."""
    law = AppliedLaw(
        name="batch",
        arguments={},
        source="arXiv:2205.10287",
        fixed="the number of tokens",
        base=BASE,
        target=replace(BASE, batch=32, steps=16),
        factors=Factors(eta=2.0, eps=0.5, betas={"beta1": 0.6, "beta2": 0.996}),
    )
    tuned = planned("mup")
    hps = plain(law.apply(log2(PlainHps(tuned.hps))))
    return replace(tuned, hps=hps, law=law)


@pytest.mark.parametrize("to", EXPORTERS)
def test_a_law_s_betas_and_words_are_in_the_files(to: str) -> None:
    exported = with_law()
    text = "\n".join(made(exported, to).values())
    assert "Law: batch, from 512 tokens" in text
    assert "0.996" in text and "0.6" in text
