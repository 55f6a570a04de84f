"""The attack on linear generators: the shortest linear recurrence that explains observed bits.

Massey 1969 (Shift-register synthesis and BCH decoding). A generator that is linear over GF(2) with
n bits of state, such as MT19937, gives sequences of bits whose recurrence has an order of at most
n, whatever its seed: 2n bits determine it, and it predicts all further ones. Of a sequence without
such structure N bits have an order of about N / 2, which predicts nothing.
"""

from collections.abc import Sequence

ORDER_OF_MT19937 = 19_937


def linear_complexity(bits: Sequence[int]) -> int:
    """Return the order of the shortest linear recurrence over GF(2) that gives ``bits``."""
    connection, previous = 1, 1
    order, since, reversed_bits = 0, 1, 0
    for place, bit in enumerate(bits):
        reversed_bits = (reversed_bits << 1) | bit
        window = reversed_bits & ((1 << (order + 1)) - 1)
        if (connection & window).bit_count() % 2 == 0:
            since += 1
            continue
        before = connection
        connection ^= previous << since
        if 2 * order <= place:
            order, previous, since = place + 1 - order, before, 1
        else:
            since += 1
    return order
