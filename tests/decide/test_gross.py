import math

import pytest

from sweeper.decide.gross import gross_loss
from sweeper.stats.ladder import LadderRule, LadderSize, SizeCurve

RULE = LadderRule(widths=(256, 512), seeds=1)


def curve(width: int, *losses: float, step: float = 1.0, planned: float = 0.0) -> SizeCurve:
    size = LadderSize(width=width, depth=1, batch_size=1, steps=1)
    return SizeCurve(
        size=size,
        losses={-9 + step * i: (loss,) for i, loss in enumerate(losses)},
        planned_log2=planned,
    )


@pytest.mark.parametrize(
    ("base", "larger", "at"),
    [
        ((3.55, 3.53, 3.529, 3.56), (3.12, 3.104, 7.84, 8.1), -7.0),
        ((3.55, 3.53, 3.529, 3.56), (3.12, 3.104, math.inf, math.inf), -7.0),
        # The base ends at its best: its optimum is no lower.
        ((3.55, 3.53, 3.529), (3.12, 3.104, 7.84), -7.0),
        # Beside a cliff of the base nothing tells how far it has moved.
        ((3.55, 3.53, 3.529, math.inf), (3.12, 3.104, 7.84, 8.1), None),
        # What the base loses an octave and a step further out, the size may lose here.
        ((3.55, 3.53, 3.6, 3.9, 4.5), (3.104, 3.2, 3.5, 4.1, 4.5), None),
        # A single run that came apart is no side of a valley.
        ((3.55, 3.53, 3.529, 3.56), (3.12, 3.104, 7.84, 3.2), None),
        ((3.55, 3.53, 3.529, 3.56), (3.12, 3.104, 3.12, 3.2), None),
    ],
)
def test_what_the_base_cannot_explain_is_lost(
    base: tuple[float, ...], larger: tuple[float, ...], at: float | None
) -> None:
    result = gross_loss(curve(512, *larger), curve(256, *base), RULE)
    assert (result and result.log2) == at


def test_a_curve_that_is_no_valley_loses_by_its_noise() -> None:
    base, larger = (3.5, 3.7, 3.4, 3.45), (2.9, 3.3, 3.15, 3.2)
    assert gross_loss(curve(512, *larger), curve(256, *base), RULE) is None
    apart = gross_loss(curve(512, 2.9, 3.0, 7.8, 8.0), curve(256, *base), RULE)
    assert apart is not None and apart.log2 == -7.0


def test_to_the_left_as_to_the_right() -> None:
    base, larger = curve(256, 3.1, 2.7, 2.5, 2.51, 2.9), curve(512, 9.0, 8.0, 7.0, 2.5, 2.4)
    result = gross_loss(larger, base, RULE)
    assert result is not None and result.log2 == -7.0 and result.share > 1


def test_a_law_moves_the_base() -> None:
    base, larger = curve(256, 3.55, 3.53, 3.529, 3.56), curve(512, 3.12, 3.104, 7.84, 8.1)
    moved = SizeCurve(size=larger.size, losses=larger.losses, planned_log2=-2.0)
    assert gross_loss(moved, base, RULE) is None
