"""Folding a multiplier into init and learning rate, so that a plain forward pass trains the same.

With `W_eff = multiplier * W` (abc symmetry, papers: Everett et al.; FORMULAS section 1) a model
that computes `y = W_eff x` takes the same steps as one that computes `y = multiplier * W x`:
the gradient to W is `multiplier` times the one to W_eff, and a step of W moves W_eff by
`multiplier` times as much.
"""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.scaling.spec import Update


@dataclass(frozen=True, kw_only=True)
class AbsorbedParam:
    """What one parameter of a plain model is given: no multiplier is left.

    `init` is "normal", drawn with standard deviation `value`, or "constant", all `value`. `lr`
    and `eps` are absolute; `decay` is the share of a weight that one step at the schedule's peak
    removes, whatever the learning rate (independent weight decay).
    """

    name: str
    shape: tuple[int, ...]
    init: str
    value: float
    lr: float
    eps: float
    decay: float


def factors(update: Update, multiplier: float) -> tuple[float, float]:
    """What learning rate and eps are multiplied by when `multiplier` (positive) is folded.

    With g the gradient to W_eff, W sees multiplier * g:

    - SIGN: multiplier * lr * (multiplier g) / (multiplier |g| + eps), so lr x multiplier and
      eps / multiplier. ORTHOGONAL and NORMALIZED likewise forget the gradient's scale.
    - GRADIENT: multiplier * lr * (multiplier g), so lr x multiplier squared.
    - PARAMETER: the step has the scale of W, and lr stays.

    An independent weight decay stays as it is under all of them.
    """
    match update:
        case Update.GRADIENT:
            return multiplier**2, 1.0
        case Update.PARAMETER:
            return 1.0, 1 / multiplier
    return multiplier, 1 / multiplier
