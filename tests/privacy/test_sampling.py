from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from dpft.privacy import sampling
from dpft.privacy.accounting.mechanism import RATE_MARGIN
from dpft.privacy.cipher import AgingKey
from dpft.privacy.sampling import (
    CHUNK,
    GROUPED,
    LEAST_BLOCK,
    BinomialBlocks,
    CyclicPoissonSampler,
    PoissonSampler,
    SamplingStream,
    block_size,
)


def sampler(sample_rate: float, key: int = 0) -> PoissonSampler:
    return PoissonSampler(sample_rate, stream(key))


def stream(key: int = 0) -> SamplingStream:
    return SamplingStream(AgingKey(bytes([key]) * 32))


def test_batch_sizes_are_binomial_with_the_plans_sample_rate():
    draws = sampler(0.25)
    sizes = np.array([len(draws.draw(400, step=step)) for step in range(1000)])
    # Binomial(400, 1/4): mean 100, variance 75; five standard errors each.
    assert abs(sizes.mean() - 100) < 5 * np.sqrt(75 / 1000)
    assert abs(sizes.var() / 75 - 1) < 5 * np.sqrt(2 / 1000)


@pytest.mark.slow
def test_each_record_joins_independently_of_the_others():
    draws = sampler(0.5)
    members = np.zeros((4000, 8))
    for step in range(4000):
        members[step, draws.draw(8, step=step)] = 1
    correlation = np.corrcoef(members.T) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)


def test_a_tiny_sample_rate_is_not_rounded():
    """float32 uniforms are multiples of 2**-24, so that 1e-7 would become 1.19e-7."""
    draws = sampler(1e-7)
    drawn = sum(len(draws.draw(10_000_000, step=step)) for step in range(10))
    assert abs(drawn - 10) < 5 * np.sqrt(10)


def test_a_rate_of_one_takes_every_record_and_an_empty_draw_is_possible():
    assert sampler(1.0).draw(5, step=0) == [0, 1, 2, 3, 4]
    assert sampler(1e-6).draw(5, step=0) == []


@pytest.mark.parametrize("num_records", [0, 10, 1000])
def test_the_rate_does_not_follow_the_real_number_of_records(num_records):
    """The plan says 40 examples; how many there really are moves nothing but the draw."""
    sizes = [len(sampler(0.25, key).draw(num_records, step=0)) for key in range(100)]
    assert np.mean(sizes) == pytest.approx(num_records / 4, abs=5 * np.sqrt(num_records / 400) + 1)


@pytest.mark.parametrize("rate", [1 / 16, 1 / 64])
def test_units_of_a_block_join_independently_too(rate):
    """A pair of one block, of 16 or 64, joins as often as one of two: by the rate squared."""
    draws = sampler(rate)
    times, size = 6000, draws._blocks.size
    drawn = [[] for _ in range(times)]
    for member in draws.draw(times * 2 * size, step=0):
        drawn[member // (2 * size)].append(member % (2 * size))
    pairs = Counter(pair for members in drawn for pair in combinations(members, 2))
    expected = times * rate**2
    for same_block in (True, False):
        chosen = [
            pair
            for pair in combinations(range(2 * size), 2)
            if (pair[0] // size == pair[1] // size) == same_block
        ]
        found = sum(pairs[pair] for pair in chosen)
        assert abs(found / len(chosen) / expected - 1) < 6 / np.sqrt(len(chosen) * expected)
    singles = np.bincount([one for members in drawn for one in members], minlength=2 * size)
    assert stats.chisquare(singles).pvalue > 1e-3


def test_a_draw_is_ascending_and_takes_nobody_twice():
    draws = sampler(1 / 16)
    for step in range(100):
        members = draws.draw(1000, step=step)
        assert members == sorted(set(members)) and all(0 <= one < 1000 for one in members)


def test_a_draw_costs_what_it_gives_and_not_what_there_is(monkeypatch):
    """C4's 5,240,387,307 examples in batches of 8192 (Ponomareva et al. 2022, Appendix C)."""
    taken = []

    def counted(key, address, size):
        taken.append(size)
        return keystream(key, address, size)

    keystream = sampling.keystream
    monkeypatch.setattr(sampling, "keystream", counted)
    members = sampler(8192 / 5_240_387_307).draw(5_240_387_307, step=0)
    assert abs(len(members) - 8192) < 5 * np.sqrt(8192)
    assert sum(taken) < 64 * 8192
    assert stats.kstest(np.array(members) / 5_240_387_307, "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_more_blocks_than_share_an_address_are_drawn_too():
    draws = sampler(0.5)
    num_units = CHUNK + 1000
    members = draws.draw(num_units, step=0)
    assert abs(len(members) - num_units / 2) < 5 * np.sqrt(num_units / 4)
    beyond = [one for one in members if one >= CHUNK]
    assert abs(len(beyond) - 500) < 5 * np.sqrt(250)
    first = [one for one in members if one < 1000]
    assert [one - CHUNK for one in beyond] != first, "chunks do not repeat each other"


def test_words_are_uniform_in_every_bit():
    words = stream().words(100_000, step=0)
    for shift in (0, 32):
        numbers = ((words >> np.uint64(shift)) & np.uint64(2**32 - 1)) / 2**32
        assert stats.kstest(numbers, "uniform").pvalue > 1e-3


def test_a_steps_draw_needs_no_other_steps_draw_and_no_step_repeats_another():
    one = stream()
    forwards = [one.words(1000, step=step).tolist() for step in range(3)]
    backwards = [stream().words(1000, step=step).tolist() for step in (2, 1, 0)]
    assert forwards == backwards[::-1]
    parts = [one.words(1000, step=2, part=part, chunk=chunk) for part in (1, 2) for chunk in (0, 1)]
    assert np.unique([*sum(forwards, []), *np.concatenate(parts)]).size == 7000


def cyclic(groups: int = 4, rate: float = 0.5, key: bytes = b"g" * 32) -> CyclicPoissonSampler:
    return CyclicPoissonSampler(rate, stream(), groups=groups, key=key)


def test_a_unit_joins_the_steps_of_its_group_alone_throughout():
    """Many times around: groups are never drawn anew."""
    sampler = cyclic(groups=3)
    residues: dict[int, set[int]] = {}
    for step in range(60):
        for unit in sampler.draw(50, step=step):
            residues.setdefault(unit, set()).add(step % 3)
    assert len(residues) == 50 and all(len(found) == 1 for found in residues.values())
    assert {unit: found.pop() for unit, found in residues.items()} == {
        unit: cyclic(groups=3).group_of(unit) for unit in range(50)
    }


def test_groups_are_of_the_secret_key_and_of_about_one_size():
    sampler, other = cyclic(), cyclic(key=b"h" * 32)
    units = range(GROUPED - 2000, GROUPED + 2000)
    groups = [sampler.group_of(unit) for unit in units]
    counts = [groups.count(group) for group in range(4)]
    assert sum(counts) == 4000 and all(900 < count < 1100 for count in counts)
    # a place alone says nothing: any two maps agree on a quarter
    for others in ([other.group_of(unit) for unit in units], [unit % 4 for unit in units]):
        agree = sum(one == two for one, two in zip(groups, others, strict=True))
        assert 900 < agree < 1100


def test_a_member_of_the_group_joins_at_the_rate_and_independently():
    sampler = cyclic(groups=2, rate=0.3)
    members = [unit for unit in range(4000) if sampler.group_of(unit) == 1]
    drawn = [set(sampler.draw(4000, step=step)) for step in (1, 3)]
    for found in drawn:
        assert found <= set(members)
        assert len(found) / len(members) == pytest.approx(0.3, abs=0.04)
    both = len(drawn[0] & drawn[1]) / len(members)
    assert both == pytest.approx(0.09, abs=0.03)
    assert sampler.draw(0, step=1) == []


RATES = (1e-9, 1e-7, 8192 / 5_240_387_307, 1024 / 42061, 1 / 16, 0.07, 0.25, 0.999, 1.0)


@pytest.mark.parametrize("rate", RATES)
def test_a_unit_joins_with_the_rate_far_within_the_accountants_margin(rate: float) -> None:
    blocks = BinomialBlocks(rate)
    # A mean is the sum of the chances to be above 0, 1, 2, ….
    mean = sum((1 - Fraction(one, 2**128) for one in blocks.thresholds), Fraction())
    error = abs(mean / blocks.size / Fraction(rate) - 1)
    assert error < Fraction(1, 2**120)
    assert error < Fraction(RATE_MARGIN) / 10**20


@pytest.mark.parametrize("rate", RATES)
def test_a_block_holds_about_one_drawn_unit(rate: float) -> None:
    size = block_size(rate)
    assert size == 1 or (size >= LEAST_BLOCK and size & (size - 1) == 0)
    assert size * rate <= 1
    assert size * rate > 0.5 or rate > 1 / LEAST_BLOCK


@pytest.mark.parametrize("rate", [1e-7, 1 / 16, 0.25])
def test_thresholds_are_the_binomial_distribution_function(rate: float) -> None:
    blocks = BinomialBlocks(rate)
    found = [one / 2**128 for one in blocks.thresholds[:8]]
    expected = stats.binom.cdf(range(len(found)), blocks.size, rate)
    assert np.allclose(found, expected, rtol=1e-9)


def test_a_number_on_a_threshold_is_above_it_in_both_halves_of_its_bits() -> None:
    blocks = BinomialBlocks(1 / 16)
    for count, threshold in enumerate(blocks.thresholds[:3]):
        words = [divmod(threshold + shift, 2**64) for shift in (-1, 0, 2**64)]
        counts = blocks.counts(np.array(words, dtype=np.uint64))
        assert counts.tolist() == [count, count + 1, count + 1]


def test_a_rate_of_one_always_counts_its_unit() -> None:
    words = np.array([(0, 0), (2**64 - 1, 2**64 - 1)], dtype=np.uint64)
    assert BinomialBlocks(1.0).counts(words).tolist() == [1, 1]
