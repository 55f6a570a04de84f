import hashlib
import hmac
import secrets

import pytest

from dpft.privacy.keys import AgingKey, secret_key


def test_trust_rule_4_every_bit_of_a_key_is_the_operating_systems(monkeypatch):
    """A key with 32 bits of entropy, stretched, would not hold all the bytes that were drawn."""
    drawn = []

    def token_bytes(count):
        drawn.append(bytes(range(100, 100 + count)))
        return drawn[-1]

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
    assert secret_key("noise") == bytes(range(100, 132))
    assert drawn == [bytes(range(100, 132))]


def test_fresh_keys_differ_in_every_byte_place():
    keys = [secret_key("noise") for _ in range(200)]
    for place in range(32):
        assert len({key[place] for key in keys}) > 60, "200 draws of a byte: 139 values expected"


def test_keys_of_a_test_seed_differ_by_purpose_and_by_seed():
    keys = {secret_key(purpose, seed) for purpose in ("noise", "sampling") for seed in (1, 2)}
    assert len(keys) == 4 and secret_key("noise", 1) in keys


def test_the_key_of_the_next_step_is_a_one_way_function_of_this_steps():
    key = AgingKey(bytes(32), step=5)
    expected = bytes(32)
    for _ in range(3):
        expected = hmac.new(expected, b"dpft key of the next step", hashlib.sha256).digest()
    assert key.at(5) == bytes(32)
    assert key.at(8) == expected
    assert key.at(6) == AgingKey(key.at(6), step=6).at(6)


def test_a_forgotten_key_is_nowhere_in_the_object_and_is_refused():
    key = AgingKey(bytes(range(32)), step=0)
    later = key.at(2)
    key.forget(2)
    assert key.at(2) == later
    assert bytes(range(32)) not in _bytes_in(vars(key))
    with pytest.raises(ValueError, match="forgotten"):
        key.at(1)


def test_a_key_must_have_256_bits():
    with pytest.raises(ValueError, match="32 bytes, got 4"):
        AgingKey(bytes(4))


def _bytes_in(value) -> set[bytes]:
    if isinstance(value, bytes):
        return {value}
    inside = value.values() if isinstance(value, dict) else value
    return set().union(*map(_bytes_in, inside)) if isinstance(value, dict | tuple | list) else set()
