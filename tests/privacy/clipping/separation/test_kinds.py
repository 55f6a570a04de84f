"""When a kind of call is proved: at its first batch, at the 16th, and at each doubling."""

from dpft.privacy.clipping.separation.kinds import Kinds


def test_the_rule_is_public_and_counts_batches_of_a_kind():
    kinds, due = Kinds(), []
    for number in range(1, 70):
        if kinds.are_due("a"):
            due.append(number)
            kinds.passed(["a"])
            assert not kinds.are_due("a")
        kinds.used(["a"])
    assert due == [1, 16, 32, 64] and kinds.are_due("b") and kinds.any_used


def test_a_kind_whose_proof_failed_stays_due():
    kinds = Kinds()
    assert kinds.are_due("a") and kinds.are_due("a") and not kinds.any_used
