"""A sleep of the C library ends early while a gang joins, and only then."""

import ctypes
import signal
import threading

from resnetboost_trainer.distributed.short_sleeps import short_sleeps

SLEEP = ctypes.CDLL(None).sleep
LONG_SECONDS = 60


def test_a_sleep_is_interrupted() -> None:
    with short_sleeps():
        left = SLEEP(LONG_SECONDS)
    assert 0 < left <= LONG_SECONDS


def test_the_block_leaves_no_timer_and_no_handler() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with short_sleeps():
        assert signal.getitimer(signal.ITIMER_REAL)[1] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_another_thread_joins_without_signals() -> None:
    seen: list[float] = []

    def join() -> None:
        with short_sleeps():
            seen.append(signal.getitimer(signal.ITIMER_REAL)[1])

    thread = threading.Thread(target=join)
    thread.start()
    thread.join()
    assert seen == [0]
