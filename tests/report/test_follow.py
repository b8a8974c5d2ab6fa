"""The page of a run that is followed: its drawing, on the band, off it, and before anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sweeper.course.watch import Watch
from sweeper.report.follow import hint_lines, said_of, tone_of, write_follow
from tests.course.made import prediction, run


@pytest.mark.parametrize(
    ("seen", "change", "tone", "said"),
    [
        (0, 0.0, "open", "Not enough yet"),
        (700, 0.0, "good", "On the band"),
        (700, 0.08, "bad", "Above the band since about step 300"),
    ],
)
def test_the_page_draws_what_is_seen(
    seen: int, change: float, tone: str, said: str, tmp_path: Path
) -> None:
    watch = Watch(prediction())
    losses = run(7) * np.exp(change * (np.arange(1000) >= 300))
    for step, loss in enumerate(losses[:seen].tolist()):
        watch.update(step, loss)
    answer = said_of(watch.look())
    assert answer.startswith(said)
    assert tone_of(watch.seen) == tone
    assert bool(hint_lines(watch.seen)) == (tone == "bad")
    places = write_follow(watch, tmp_path, live=True)
    page = places["page"].read_text()
    assert said in page and "<svg" in page
    assert places["figure"].stat().st_size > 10_000
