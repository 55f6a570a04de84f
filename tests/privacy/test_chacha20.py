"""The same keystream as the library's, bit for bit, in operations that an accelerator has."""

import pytest
import torch

from dpft.privacy import chacha20
from dpft.privacy.chacha20 import keystream_words
from dpft.privacy.cipher import Address, Purpose, keystream

KEY = bytes(range(32))
CPU = torch.device("cpu")
ADDRESSES = [
    Address(Purpose.NOISE),
    Address(Purpose.NOISE, step=2**32 - 1, parameter=2**24 - 1, block=2**32 - 1),
    Address(Purpose.DROPOUT, step=1, parameter=255, block=2**31),
]


@pytest.mark.parametrize("address", ADDRESSES, ids=str)
def test_torchs_integer_operations_give_the_librarys_bits(address):
    (words,) = keystream_words(KEY, [address], [1001], CPU)
    assert words.dtype == torch.int64
    assert words.numpy().tobytes() == bytes(keystream(KEY, address, 8 * 1001))


@pytest.mark.slow
def test_operations_compiled_as_for_an_accelerator_give_the_same_bits(monkeypatch):
    run = chacha20._rounds_on.__wrapped__("cuda")
    monkeypatch.setattr(chacha20, "_rounds_on", lambda _: run)
    for count in (16, 1000, 1001):
        (words,) = keystream_words(KEY, [ADDRESSES[1]], [count], CPU)
        assert words.numpy().tobytes() == bytes(keystream(KEY, ADDRESSES[1], 8 * count))


def test_where_the_compiler_fails_the_bits_are_the_same_and_it_is_said_once(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    run = chacha20._rounds_on.__wrapped__("cuda")
    monkeypatch.setattr(chacha20, "_rounds_on", lambda _: run)
    for _ in range(2):
        (words,) = keystream_words(KEY, [ADDRESSES[1]], [16], CPU)
        assert words.numpy().tobytes() == bytes(keystream(KEY, ADDRESSES[1], 128))
    assert caplog.text.count("torch.compile failed") == 1


def test_several_addresses_in_one_call_have_each_its_own_bits():
    counts = [1, 8, 1001, 16]
    addresses = [*ADDRESSES, Address(Purpose.NOISE, block=3)]
    for count, address, words in zip(
        counts, addresses, keystream_words(KEY, addresses, counts, CPU), strict=True
    ):
        assert words.numpy().tobytes() == bytes(keystream(KEY, address, 8 * count))
