from raylab.annotation.worker import Tally
from raylab.report.progress import AnnotationProgress, describe


def test_the_line_says_how_far_and_how_fast_without_what_is_zero() -> None:
    progress = AnnotationProgress(10, {"accepted": 2})
    assert describe(progress.figures()) == (
        "2/10 cases  2 accepted  0 adjudicated  0 human  0 failed  0.0 calls/s  0 tokens"
    )
    tally = Tally(sent=40, answered=3, tokens=12345, cost=0.25, concurrency={0: 10, 1: 12})
    tally.statuses.update({"accepted": 3, "human": 1})
    tally.failures.update({"timeout": 2})
    progress.tally.add(tally)
    # The second worker has lowered its share since.
    progress.tally.add(Tally(concurrency={1: 9}))
    line = describe(progress.figures())
    assert line.startswith("6/10 cases  5 accepted  0 adjudicated  1 human  0 failed  ")
    assert "12,345 tokens  up to 19 at once  3 answers known  2 attempts failed  cost 0.25" in line
