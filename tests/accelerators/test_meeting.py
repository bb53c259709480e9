"""Ranks meet, whatever others have left in the store in which they do."""

import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from lightloop_plugins.accelerators._launcher.control import RankError
from lightloop_plugins.accelerators._launcher.environment import Place
from lightloop_plugins.accelerators._launcher.meeting import Meeting

PATIENCE = timedelta(seconds=30)


def meet(store, ranks, size, timeout=PATIENCE):
    """What each of ``ranks`` comes to, all at once."""
    answers = {}

    def run(rank):
        try:
            answers[rank] = Meeting(store, Place(rank, rank, size, "torchrun")).wait(timeout, lambda: None)
        except RankError as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[rank] for rank in ranks]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_come_to_one_name_and_the_next_time_to_another(size):
    store = HashStore()
    names = [meet(store, range(size), size) for _ in range(4)]
    assert all(len(set(each)) == 1 for each in names)
    assert len({each[0] for each in names}) == 4


@pytest.mark.parametrize("gone", [[0], [1], [2], [0, 2], [1, 2]])
def test_those_that_are_gone_are_not_waited_for_and_not_taken_for_others(gone):
    store = HashStore()
    first = meet(store, range(3), 3)
    late = meet(store, gone, 3, timedelta(seconds=0.2))  # a start that some did not live to see
    for error in late:
        assert isinstance(error, RankError)
        assert "of the 3 processes that torchrun announces have come" in str(error)
    again = meet(store, range(3), 3)
    assert len(set(again)) == 1
    assert again[0] not in first


def test_one_that_comes_later_is_waited_for_beside_what_was_left():
    store = HashStore()
    meet(store, range(2), 2)
    answers = []
    early = threading.Thread(target=lambda: answers.extend(meet(store, [0], 2)))
    early.start()
    threading.Event().wait(0.2)  # whichever is first: both orders are right
    answers += meet(store, [1], 2)
    early.join()
    assert len(set(answers)) == 1


def test_whoever_watches_over_the_others_may_end_the_wait():
    def alive():
        raise RankError("rank 1 has ended")

    with pytest.raises(RankError, match="rank 1 has ended"):
        Meeting(HashStore(), Place(0, 0, 2, "torchrun")).wait(PATIENCE, alive)
