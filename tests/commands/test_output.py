"""Sentences that several commands say of their trials."""

from __future__ import annotations

import math
from dataclasses import replace

from sweeper.commands.output import diverged
from tests.test_setup import BASE, result


def test_what_diverged_is_told_with_its_lowest_eta() -> None:
    fine = result(BASE, eta=-8.0)
    wild = [
        replace(result(BASE, eta=eta), status="diverged", objective=math.inf)
        for eta in (-4.0, -5.0)
    ]
    assert diverged([fine]) == []
    assert diverged([fine, wild[0]]) == [
        "1 trial diverged, the lowest at eta 2^-4; such a loss is infinite"
    ]
    (sentence,) = diverged([fine, *wild])
    assert sentence.startswith("2 trials diverged, the lowest at eta 2^-5")
