"""The start-up of an attempt: steps of learners become steps of the gang."""

from __future__ import annotations

from services.core.domain.startup import Span, is_news, observed


def test_a_step_of_a_gang_begins_with_its_first_learner_and_ends_with_its_last() -> None:
    learners = [{"data": Span(began=10, ended=30)}, {"data": Span(began=20, ended=25)}, {"data": Span(began=12)}]
    assert observed({}, learners, expected=3, now=100) == {"data": Span(began=10)}
    learners[2] = {"data": Span(began=12, ended=40)}
    assert observed({}, learners, expected=3, now=100) == {"data": Span(began=10, ended=40)}
    assert observed({}, learners, expected=4, now=100) == {"data": Span(began=10)}, "one has not begun"


def test_the_first_step_of_the_training_is_that_of_any_learner() -> None:
    learners = [{"first_step": Span(began=10, ended=30)}, {}, {"first_step": Span(began=9, ended=20)}]
    assert observed({}, learners, expected=3, now=100) == {"first_step": Span(began=9, ended=20)}


def test_a_step_that_has_ended_stays_so_when_a_helper_fetches_again() -> None:
    recorded = observed({}, [{"code": Span(began=10, ended=20)}], expected=1, now=100)
    assert observed(recorded, [{"code": Span(began=50)}], expected=1, now=100) == recorded


def test_a_step_keeps_its_beginning_while_it_lasts() -> None:
    recorded = observed({}, [{"code": Span(began=10)}], expected=1, now=100)
    assert observed(recorded, [{"code": Span(began=50, ended=60)}], expected=1, now=100) == {
        "code": Span(began=10, ended=60)
    }


def test_times_beyond_now_count_as_now() -> None:
    assert observed({}, [{"code": Span(began=200, ended=300)}], expected=1, now=100) == {
        "code": Span(began=100, ended=100)
    }


def test_names_that_are_no_step_of_a_helper_or_a_cluster_are_left_out() -> None:
    forged = {"queue": Span(began=1), "x" * 1000: Span(began=1), "image": Span(began=1)}
    assert observed({}, [forged], expected=1, now=100) == {"image": Span(began=1)}


def test_a_change_is_news_once_it_is_old_enough() -> None:
    recorded, current = {"code": Span(began=10)}, {"code": Span(began=10, ended=20)}
    assert not is_news(recorded, current, now=29, after_ms=10)
    assert is_news(recorded, current, now=30, after_ms=10)
    assert not is_news(current, current, now=30, after_ms=10)
