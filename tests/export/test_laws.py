"""What a law changed reaches every trainer: betas beside the groups, and the law in the header."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.export.exporter import EXPORTERS
from tests.export.plans import made, plan
from tests.plan.test_plan_laws import LAW


@pytest.mark.parametrize("to", EXPORTERS)
def test_a_law_s_betas_and_words_are_in_the_files(to: str) -> None:
    law = replace(LAW, factors=replace(LAW.factors, betas={"beta1": 0.6, "beta2": 0.996}))
    text = "\n".join(made(replace(plan("mup"), law=law), to).values())
    assert "Law: mine, from 512 tokens" in text
    assert "0.996" in text and "0.6" in text
