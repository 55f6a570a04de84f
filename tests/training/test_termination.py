import os
import signal
import threading

from dpft.parallel.rank_environment import termination_requests


def test_inside_the_block_a_termination_is_only_noted():
    before = signal.getsignal(signal.SIGTERM)
    with termination_requests() as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_is_told_of_no_signal():
    answers = []

    def elsewhere():
        with termination_requests() as asked:
            answers.append(asked())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert answers == [False]
