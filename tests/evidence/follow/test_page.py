from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sweeper.evidence.follow.decision import Watch
from sweeper.evidence.follow.page import presented
from sweeper.evidence.follow.verb import FollowAnswer
from sweeper.evidence.follow.words import code_of, said_of
from sweeper.report.sections import tone_of
from tests.evidence.follow.test_decision import watched
from tests.evidence.made import prediction, run


@pytest.mark.parametrize(
    ("seen", "change", "tone", "said"),
    [
        (0, 0.0, "open", "Not enough yet"),
        (700, 0.08, "bad", "Above the band since about step 300"),
    ],
)
def test_the_page_draws_what_is_seen(
    seen: int, change: float, tone: str, said: str, tmp_path: Path
) -> None:
    losses = run(7) * np.exp(change * (np.arange(1000) >= 300))
    watch = watched(losses[:seen]) if seen else Watch(prediction())
    answer = said_of(watch.look())
    assert answer.startswith(said)
    assert tone_of(code_of(watch.seen)) == tone
    answers = FollowAnswer(watch=watch, seen=watch.seen, folder=tmp_path)
    places = presented(answers).places
    page = Path(str(places["page"])).read_text()
    assert said in page and "<svg" in page
    assert Path(str(places["figure"])).stat().st_size > 10_000
