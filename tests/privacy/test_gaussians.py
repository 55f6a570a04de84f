import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy import stats

from dpft.privacy import gaussians
from dpft.privacy.cipher import Address, Purpose, keystream
from dpft.privacy.gaussians import (
    REACH,
    REFINING_WORDS,
    BoxMuller,
    keystream_words,
    refined_logarithm,
)

CPU, KEY = torch.device("cpu"), bytes(range(32))


def bits(count: int, block: int = 0) -> torch.Tensor:
    """Words of 64 bits, int64."""
    stream = keystream(KEY, Address(Purpose.NOISE, block=block), 8 * count)
    return torch.frombuffer(stream, dtype=torch.int64).clone()


def refining(count: int) -> bytearray:
    return keystream(KEY, Address(Purpose.REFINEMENT), 8 * count)


def no_refining(count: int) -> bytearray:
    raise AssertionError("no uniform here is near 0")


def gaussians_near_the_end(pairs: int, leading_zeros: int) -> np.ndarray:
    """Gaussians of pairs whose radius has a uniform below ``2^-leading_zeros``."""
    words, zeros = bits(2 * pairs), min(leading_zeros, 53)
    words[:pairs] = (words[:pairs] >> zeros) & (2 ** (64 - zeros) - 1)

    def refining_from_zeros(count: int) -> bytearray:
        extensions = np.frombuffer(refining(count), dtype=np.uint64).reshape(-1, REFINING_WORDS)
        extensions[:, : (leading_zeros - zeros) // 64] = 0
        return bytearray(extensions.tobytes())

    return torch.cat(BoxMuller(CPU).pairs(words, refining_from_zeros)).numpy()


def test_a_pair_is_the_one_that_box_and_mullers_formula_gives():
    """K = 2^52 and 3 * 2^50: u = 1/2 and 3/8, each plus 2^-54."""
    words = torch.tensor([-(2**63), 3 << 61], dtype=torch.int64)
    cosine, sine = BoxMuller(CPU).pairs(words, no_refining)
    radius = math.sqrt(-2 * math.log(0.5))
    assert cosine.item() == pytest.approx(radius * math.cos(2 * math.pi * 3 / 8), rel=1e-15)
    assert sine.item() == pytest.approx(radius * math.sin(2 * math.pi * 3 / 8), rel=1e-15)


def test_the_lowest_eleven_bits_of_a_word_do_not_matter_and_the_others_all_do():
    words = bits(64 * 2)
    words[:64] = words[0]
    words[64:] = words[64]
    flipped = words.clone()
    for place in range(64):
        flipped[place] ^= torch.tensor(-(2**63) if place == 63 else 1 << place)
    first, second = (BoxMuller(CPU).pairs(each, refining)[0].clone() for each in (words, flipped))
    assert (first != second).nonzero()[:, 0].tolist() == list(range(11, 64))


def test_memory_that_is_used_again_changes_nothing():
    once = BoxMuller(CPU)
    large = [half.clone() for half in once.pairs(bits(2000), refining)]
    small = [half.clone() for half in once.pairs(bits(10, block=1), refining)]
    assert all(map(torch.equal, small, BoxMuller(CPU).pairs(bits(10, block=1), refining)))
    assert all(map(torch.equal, large, once.pairs(bits(2000), refining)))


@pytest.mark.parametrize("number", [0, 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1])
@pytest.mark.parametrize(
    "extension", [bytes(32), b"\xff" * 32, bytes(range(32))], ids=["zeros", "ones", "both"]
)
def test_a_refined_logarithm_is_exact(number, extension):
    """Against 60-digit arithmetic on the number that the bits spell."""
    k, size = number, 53
    for place in range(REFINING_WORDS):
        if k.bit_length() > 32:
            break
        k = k * 2**64 + int.from_bytes(extension[8 * place : 8 * place + 8], "big")
        size += 64
    with localcontext() as context:
        context.prec = 120
        expected = ((Decimal(k) + Decimal("0.5")) / Decimal(2) ** size).ln()
    assert refined_logarithm(number, extension) == pytest.approx(float(expected), rel=4e-16)


def test_the_smallest_uniform_reaches_beyond_what_the_plan_counts_on():
    """The largest radius, at k = 0 in all words; and there are 32 significant bits at REACH."""
    assert math.sqrt(-2 * refined_logarithm(0, bytes(32))) > 20.7 > REACH
    at_reach = 2.0 ** (53 + 64 * REFINING_WORDS) * math.exp(-(REACH**2) / 2)
    assert at_reach > 2**32


@pytest.mark.slow
def test_uniforms_near_zero_are_uniform_and_no_two_are_equal():
    """Of u below 2^-21: -ln u is 21 ln 2 and an exponential; on 53 bits alone half would repeat."""
    halves = gaussians_near_the_end(100_000, leading_zeros=21)
    cosines, sines = halves[:100_000], halves[100_000:]
    exponents = (cosines**2 + sines**2) / 2 - 21 * math.log(2)
    assert stats.kstest(exponents, "expon").pvalue > 1e-3
    assert exponents.min() > -1e-9
    assert len(np.unique(exponents)) == 100_000
    deep = gaussians_near_the_end(100_000, leading_zeros=45)
    squares = deep[:100_000] ** 2 + deep[100_000:] ** 2
    assert len(np.unique(squares)) > 99_990, "k of 19 bits: 525,000 values, before refinement"
    assert stats.kstest(squares / 2 - 45 * math.log(2), "expon").pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leading_zeros", "tails"),
    [
        (21, (5.4, 6.0, 6.4)),
        (53, (8.58, 9.0)),
        (53 + 64, (12.74, 13.0)),
        (53 + 2 * 64, (15.85, 16.0)),
        (53 + 3 * 64, (18.44, 18.7)),
    ],
)
def test_tails_are_a_gaussians_far_beyond_where_53_bits_end(leading_zeros, tails):
    """Beyond sqrt(2 n ln 2) only uniforms below 2^-n reach, so counts are 2^n (1 - Phi) times.

    53 bits end at 8.65, and torch's float32 normals at 5.77.
    """
    pairs = 300_000
    draws = np.abs(gaussians_near_the_end(pairs, leading_zeros))
    assert math.sqrt(2 * leading_zeros * math.log(2)) < tails[0]
    for tail in tails:
        log_expected = math.log(4 * pairs) + stats.norm.logsf(tail) + leading_zeros * math.log(2)
        expected = math.exp(log_expected)
        assert expected > 100
        assert abs((draws > tail).sum() - expected) < 4 * math.sqrt(expected), tail


def test_normals_equal_those_of_another_library_to_1e_12():
    """What another kind of device must reach, too: here numpy's logarithm, cosine and sine."""
    words = bits(200_000)
    halves = torch.cat(BoxMuller(CPU).pairs(words, refining)).numpy()
    numbers = (words.numpy().view(np.uint64) >> np.uint64(11)).astype(np.float64)
    uniforms = (numbers + 0.5) * 2.0**-53
    radii, angles = np.sqrt(-2 * np.log(uniforms[:100_000])), 2 * np.pi * uniforms[100_000:]
    expected = np.concatenate([radii * np.cos(angles), radii * np.sin(angles)])
    assert numbers[:100_000].min() >= 2**32, "no uniform here is refined"
    assert np.abs(halves - expected).max() < 1e-12


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
    run = gaussians._rounds_on.__wrapped__("cuda")
    monkeypatch.setattr(gaussians, "_rounds_on", lambda _: run)
    for count in (16, 1000, 1001):
        (words,) = keystream_words(KEY, [ADDRESSES[1]], [count], CPU)
        assert words.numpy().tobytes() == bytes(keystream(KEY, ADDRESSES[1], 8 * count))


def test_where_the_compiler_fails_the_bits_are_the_same_and_it_is_said_once(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    run = gaussians._rounds_on.__wrapped__("cuda")
    monkeypatch.setattr(gaussians, "_rounds_on", lambda _: run)
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
