"""What an audit of exposure says beside its numbers."""

import math

from dpft.audit.exposure import chance_bound
from dpft.audit.exposure_findings import Exposed, finding
from dpft.data.canaries import EXPOSURE, Canary
from tests.reports.plain import privacy_of
from tests.reports.test_privacy_record import record as private

PRIVACY = privacy_of({**private(), "epsilon": 1.0, "delta": 1e-6})


def canary(copies: int) -> Canary:
    return Canary(kind=EXPOSURE, read=(), learned=("a",), number=0, copies=copies, unit=f"{copies}")


def exposed(bits: float) -> Exposed:
    return Exposed(exact=bits, fitted=bits, goodness_of_fit=0.01, suffixes=2**16)


def test_the_chance_is_of_the_largest_of_all_canaries_inserted_once() -> None:
    """A mean of several is no draw of one, so that the bound of one says nothing of it."""
    bits = {0: [9.0, 1.0], 1: [1.0, 8.0, 3.0], 10: [16.0]}
    canaries = [canary(copies) for copies, found in bits.items() for _ in found]
    after = [exposed(each) for found in bits.values() for each in found]
    said = finding(canaries, after, after, PRIVACY).notes[-1]
    chance = 3 * chance_bound(8.0, epsilon=1.0, delta=1e-6)
    assert (
        f"of any of 3 the 8.00 bits found of one, or more, with a chance of at most {chance:.2g}"
        in said
    )
    assert math.isclose(chance, 3 * (math.e / 256 + 1e-6))
