"""The bits of views: secret, of a step and a record, and forgotten with the step."""

import pytest

from dpft.privacy.keys import AgingKey, secret_key
from dpft.privacy.views import ViewStream


def test_bits_are_of_the_step_and_the_record() -> None:
    stream = ViewStream(AgingKey(secret_key("views", 3)))
    drawn = {(step, record): stream.bits(step, record, 32) for step in (0, 1) for record in (0, 7)}
    assert len(set(drawn.values())) == 4
    assert stream.bits(1, 7, 32) == drawn[1, 7]
    assert stream.bits(1, 7, 64)[:32] == drawn[1, 7]


def test_records_beyond_four_thousand_million_have_bits_of_their_own() -> None:
    stream = ViewStream(AgingKey(secret_key("views", 3)))
    assert stream.bits(0, 2**32 + 5, 16) != stream.bits(0, 5, 16)


def test_the_bits_of_a_forgotten_step_are_gone() -> None:
    key = AgingKey(secret_key("views"))
    key.forget(2)
    with pytest.raises(ValueError, match="forgotten"):
        ViewStream(key).bits(1, 0, 8)
