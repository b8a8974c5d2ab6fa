"""How many entries of the weights an optimizer's eps holds back."""

from __future__ import annotations

import math

import torch

from sweeper.control import UNCONTROLLED, Control
from sweeper.data.corpus import Corpus
from sweeper.training.pack import Pack, PackRun
from sweeper.training.precision import quiet_attention
from sweeper.trial import Trial


def fraction_below_eps(
    trial: Trial, corpus: Corpus, device: str = "cpu", control: Control = UNCONTROLLED
) -> float:
    """Fraction of the entries whose root of the second moment is below eps at the trial's end.

    Each parameter has the eps that its scheme gives it. Entries that never had a gradient (of
    tokens that did not occur, say) are left out. NaN where no entry remains, where a moment is
    not finite, and for optimizers that divide by no such root.
    """
    run = PackRun(Pack(trials=(trial,), corpus=corpus), device)
    second_moment_roots = getattr(run.prepared.optimizer, "second_moment_roots", None)
    if second_moment_roots is None:
        run.program.release()
        return math.nan
    with quiet_attention():
        try:
            while run.step_index < run.prepared.train.steps:
                control.leave_if_asked()
                run.step()
        finally:
            run.program.release()
    small = total = 0
    with torch.no_grad():
        roots = second_moment_roots(run.state, run.update_hps, run.step_index)
        for root, eps in zip(roots, run.update_hps.eps, strict=True):
            if not root.isfinite().all():
                return math.nan
            # A root of 0 is that of an entry that never had a gradient.
            total += int((root > 0).sum())
            small += int(((root > 0) & (root < eps)).sum())
    return small / total if total else math.nan
