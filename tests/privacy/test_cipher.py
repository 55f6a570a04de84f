import hashlib
import hmac
import itertools
import secrets

import pytest

from dpft.privacy.cipher import Address, AgingKey, Purpose, keystream, secret_key

KEY = bytes(range(32))


def rfc_8439_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """A block as RFC 8439, section 2.3, writes it down, with Python's integers."""

    def quarter_round(s: list[int], a: int, b: int, c: int, d: int) -> None:
        for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & 0xFFFFFFFF
            s[z] ^= s[x]
            s[z] = ((s[z] << bits) | (s[z] >> (32 - bits))) & 0xFFFFFFFF

    content = b"expand 32-byte k" + key + counter.to_bytes(4, "little") + nonce
    start = [int.from_bytes(content[i : i + 4], "little") for i in range(0, 64, 4)]
    state = list(start)
    for _ in range(10):
        for columns in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
            quarter_round(state, *columns)
        for diagonals in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            quarter_round(state, *diagonals)
    mixed = ((a + b) & 0xFFFFFFFF for a, b in zip(state, start, strict=True))
    return b"".join(word.to_bytes(4, "little") for word in mixed)


def test_the_reference_agrees_with_the_vector_of_rfc_8439_section_2_3_2():
    nonce = bytes.fromhex("000000090000004a00000000")
    expected = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert rfc_8439_block(KEY, 1, nonce).hex() == expected


def test_the_first_blocks_of_an_all_zero_key_are_those_of_rfc_8439_appendix_a_1():
    """Vectors 1 and 2: the keystream of address zero, whose nonce is zero but for the purpose."""
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert rfc_8439_block(bytes(32), 0, bytes(12)).hex() == expected


ADDRESSES = [
    Address(Purpose.NOISE),
    Address(Purpose.NOISE, step=2**32 - 1, parameter=2**24 - 1, block=2**32 - 1),
    Address(Purpose.SAMPLING, step=7, parameter=0, block=3),
    Address(Purpose.DROPOUT, step=1, parameter=255, block=2**31),
]


@pytest.mark.parametrize("address", ADDRESSES, ids=str)
def test_keystream_is_chacha20_with_the_address_as_nonce_and_a_counter_from_0(address):
    expected = b"".join(rfc_8439_block(KEY, counter, address.nonce()) for counter in range(5))
    assert keystream(KEY, address, 300) == expected[:300]


def test_no_keystream_of_neighbouring_addresses_overlaps_another():
    """Every 16-byte window, at every offset, of 512 bytes from each of 200 addresses is unique.

    The addresses are neighbors in each field, at its ends and where one field meets the next.
    """
    steps, blocks = (0, 1, 255, 256, 2**32 - 1), (0, 1, 2**24, 2**32 - 1)
    parameters = (0, 1, 2, 2**16, 2**24 - 1)
    fields = itertools.product((Purpose.NOISE, Purpose.REFINEMENT), steps, parameters, blocks)
    seen: set[bytes] = set()
    windows = 0
    for address in itertools.starmap(Address, fields):
        bits = bytes(keystream(KEY, address, 512))
        found = {bits[i : i + 16] for i in range(len(bits) - 15)}
        windows += len(found)
        seen |= found
    assert windows == 200 * 497 and len(seen) == windows


def test_every_field_has_bits_of_its_own_in_the_nonce():
    one = Address(Purpose.REFINEMENT, step=0x01020304, parameter=0x050607, block=0x08090A0B)
    assert one.nonce().hex() == "02" + "01020304" + "050607" + "08090a0b"


@pytest.mark.parametrize(
    "field", [{"step": 2**32}, {"step": -1}, {"parameter": 2**24}, {"block": 2**32}], ids=str
)
def test_an_address_that_would_run_into_another_is_refused(field):
    with pytest.raises(ValueError, match="step must be in"):
        Address(Purpose.NOISE, **field).nonce()


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
