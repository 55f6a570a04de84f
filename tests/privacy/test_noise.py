import math
import random

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpft.parallel.rank_sums import Piece
from dpft.privacy import gaussians
from dpft.privacy import noise as noise_module
from dpft.privacy.cipher import Address, AgingKey, Purpose, fill_with_keystream, keystream
from dpft.privacy.noise import BLOCK, NoiseStream, add_noise, grid
from dpft.privacy.randomness import make_randomness
from tests.privacy.linear_complexity import ORDER_OF_MT19937, linear_complexity
from tests.privacy.noise_blocks import block_noise

CPU = torch.device("cpu")


def source(seed: int = 1) -> NoiseStream:
    return make_randomness(CPU, noise_seed=seed).noise


def noise_of_a_step(
    sizes: list, noise_std: float, noise: NoiseStream, step: int = 0
) -> list[np.ndarray]:
    """What one step adds to parameters of these shapes, flat and in float64."""
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    add_noise(parameters, noise_std, noise, step=step)
    return [parameter.grad.flatten().double().numpy() for parameter in parameters]


def test_noise_has_the_standard_deviation_asked_for():
    parameter = nn.Parameter(torch.zeros(200, 500))
    parameter.grad = torch.full_like(parameter, 3.0)
    add_noise([parameter], 0.7, source())
    draws = (parameter.grad - 3).flatten().numpy() / 0.7
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(draws.var() - 1) < 5 * np.sqrt(2 / draws.size)


def assert_standard_normal(draws: np.ndarray, tails: dict[float, float]) -> None:
    """Kolmogorov-Smirnov; moments by their standard errors; counts beyond each tail."""
    size = draws.size
    assert stats.kstest(draws[:10_000_000], "norm").pvalue > 1e-3
    assert abs(draws.mean()) < 4 / np.sqrt(size)
    assert abs(draws.var() - 1) < 4 * np.sqrt(2 / size)
    assert abs(stats.kurtosis(draws)) < 4 * np.sqrt(24 / size)
    for tail, expected in tails.items():  # 2 (1 - Phi(t)) size
        assert expected == pytest.approx(2 * stats.norm.sf(tail) * size, rel=1e-3)
        low, high = stats.poisson.interval(1 - 1e-4, expected)
        assert low <= (np.abs(draws) > tail).sum() <= high, tail


@pytest.mark.slow
def test_a_million_draws_are_standard_normal_tails_included():
    draws = noise_of_a_step([(1000, 1000)], 2.5, source())[0] / 2.5
    assert_standard_normal(draws, {3: 2699.8, 4: 63.34, 4.5: 6.795, 5: 0.5733, 6: 0.001973})


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_hundred_million_draws_are_standard_normal_to_six_standard_deviations():
    draws = noise_of_a_step([(10_000, 10_000)], 1.0, source(2))[0]
    assert_standard_normal(draws, {4: 6334, 5: 57.33, 5.5: 3.798, 6: 0.1973})


def test_steps_parameters_and_runs_are_uncorrelated_and_so_are_neighbors():
    """|r| < 4 / sqrt(n) for each pair of 2 runs x 2 steps x 3 parameters, and for lags within."""
    count = 100_000
    rows = [
        row
        for seed in (1, 2)
        for step in (0, 1)
        for row in noise_of_a_step([count] * 3, 1.0, source(seed), step)
    ]
    correlations = np.corrcoef(rows)[np.triu_indices(12, k=1)]
    lagged = [np.corrcoef(row[:-lag], row[lag:])[0, 1] for row in rows for lag in (1, 2, 16, 1024)]
    assert correlations.size == 66
    assert np.abs([*correlations, *lagged]).max() < 4.5 / np.sqrt(count - 1024)
    halves = [np.corrcoef(row[: count // 2], row[count // 2 :])[0, 1] for row in rows]
    assert np.abs(halves).max() < 4 / np.sqrt(count / 2), "cosines and sines of one pair"


def test_differences_of_steps_parameters_and_runs_are_normal_of_twice_the_variance():
    """Kolmogorov-Smirnov: draws that shared bits would have another difference."""
    base = noise_of_a_step([50_000] * 2, 1.0, source())
    others = (
        base[1],
        noise_of_a_step([50_000], 1.0, source(), step=1)[0],
        noise_of_a_step([50_000], 1.0, source(2))[0],
    )
    for other in others:
        assert stats.kstest((base[0] - other) / 2**0.5, "norm").pvalue > 1e-3


def test_squares_of_two_steps_are_uncorrelated_too():
    """Plain correlation would miss a step whose noise is another's with new signs."""
    first, second = (noise_of_a_step([100_000], 1.0, source(), s)[0] ** 2 for s in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(100_000)


def test_blocks_drawn_in_any_order_are_equal():
    """By one stream or by many, as many processes would; those of a step are all different."""
    addresses = [(s, p, b) for s in (3, 4) for p in (0, 1, 2**24 - 1) for b in (0, 1, 2**32 - 1)]

    def draw(noise, address):
        step, parameter, block = address
        return block_noise(noise, 1001, step=step, parameter=parameter, block=block)

    noise = source()
    in_order = {address: draw(noise, address) for address in addresses}
    shuffled = random.Random(0).sample(addresses, len(addresses))
    for address in shuffled:
        assert torch.equal(draw(source(), address), in_order[address])
        assert torch.equal(draw(noise, address), in_order[address])
    assert len({float(values[0]) for values in in_order.values()}) == len(addresses)


def test_a_gradient_gets_the_blocks_of_its_flattened_parameter():
    size = 2 * BLOCK + 1001
    parameter = nn.Parameter(torch.zeros(size, dtype=torch.float64))
    add_noise([nn.Parameter(torch.zeros(3)), parameter], 1.0, source(), step=5)
    counts = (BLOCK, BLOCK, 1001)
    blocks = [block_noise(source(), n, step=5, parameter=1, block=i) for i, n in enumerate(counts)]
    expected = (torch.cat(blocks) / grid(1.0)).round() * grid(1.0)
    assert torch.equal(parameter.grad, expected)


def test_noise_follows_a_parameters_place_among_all_not_among_the_trainable():
    """Two phases that train different parameters share no noise, and freezing one moves none."""
    parameters = {name: nn.Parameter(torch.zeros(1000)) for name in ("first", "second", "third")}
    add_noise(parameters, 1.0, source())
    before = parameters["third"].grad.clone()
    parameters["third"].grad = None
    parameters["first"].requires_grad_(False)
    parameters["first"].grad = None
    add_noise(parameters, 1.0, source())
    assert parameters["first"].grad is None
    assert torch.equal(parameters["third"].grad, before)


def test_trust_rule_4_every_draw_has_an_address_of_its_own(monkeypatch):
    """Bits and refinement of each block, drawn under the step's key: all uniforms near 0 here."""
    drawn = []

    def filled(key, address, out, *, zeros):
        drawn.append((key, address))
        fill_with_keystream(key, address, out, zeros=zeros)

    def words(key, address, size):
        drawn.append((key, address))
        return keystream(key, address, size)

    monkeypatch.setattr(noise_module, "fill_with_keystream", filled)
    monkeypatch.setattr(noise_module, "keystream", words)
    monkeypatch.setattr(noise_module, "BLOCK", 4)
    monkeypatch.setattr(gaussians, "_SIGNIFICANT", 2**53)
    key = AgingKey(bytes(32))
    for step in (0, 7):
        parameters = [nn.Parameter(torch.zeros(size)) for size in (3, 0, 10)]
        add_noise(parameters, 1.0, NoiseStream(CPU, key), step=step)
    assert drawn == [
        (key.at(step), Address(purpose, step, parameter, block))
        for step in (0, 7)
        for parameter, blocks in ((0, 1), (2, 3))
        for block in range(blocks)
        for purpose in (Purpose.NOISE, Purpose.REFINEMENT)
    ]


def test_a_zero_has_no_sign():
    """-0.0 would tell on which side of zero the sum lay: here the whole noise rounds to 0."""
    parameter = nn.Parameter(torch.zeros(1000))
    parameter.grad = -1e-9 * noise_in_float64(1000).sign().float()
    parameter.grad -= noise_in_float64(1000).float()
    add_noise([parameter], 1.0, source())
    zeros = parameter.grad == 0
    assert zeros.sum() > 900 and not parameter.grad[zeros].signbit().any()


def noise_in_float64(count: int) -> torch.Tensor:
    return block_noise(source(), count)


def test_a_parameter_without_a_gradient_gets_noise():
    parameter = nn.Parameter(torch.zeros(100))
    add_noise([parameter], 1.0, source())
    assert parameter.grad.unique().numel() == 100


@pytest.mark.parametrize("count", [1, 2, 3, 767])
def test_odd_sizes_get_noise_throughout(count):
    assert np.unique(noise_of_a_step([count], 1.0, source())[0]).size == count


@pytest.mark.parametrize("transposed", [False, True])
def test_a_large_gradient_gets_independent_noise_throughout(transposed, monkeypatch):
    monkeypatch.setattr("dpft.privacy.noise.BLOCK", 1000)
    parameter = nn.Parameter(torch.zeros(150, 70).t() if transposed else torch.zeros(70, 150))
    parameter.grad = torch.zeros_like(parameter)
    assert parameter.grad.is_contiguous() != transposed
    add_noise([parameter], 2.0, source())
    draws = parameter.grad.flatten().numpy() / 2
    assert len(set(draws)) > 0.99 * draws.size
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    row_by_row = nn.Parameter(torch.zeros(70, 150))
    add_noise([row_by_row], 2.0, source())
    assert torch.equal(parameter.grad, row_by_row.grad)


def test_noise_is_cast_to_the_gradients_own_dtype():
    for dtype in (torch.float32, torch.float64):
        parameter = nn.Parameter(torch.zeros(3, dtype=dtype))
        add_noise([parameter], 1.0, source())
        assert parameter.grad.dtype == dtype


@pytest.mark.parametrize("noise_std", [1e-11, 0.3, 1.0, 1.5, 2.0, 7e5])
def test_the_grid_is_a_power_of_two_between_2_to_the_minus_21_and_minus_20_of_the_noise(noise_std):
    spacing = grid(noise_std)
    assert math.frexp(spacing)[0] == 0.5
    assert 2.0**-21 < spacing / noise_std <= 2.0**-20


@pytest.mark.parametrize("noise_std", [0.0, -1.0, math.inf, math.nan])
def test_noise_that_is_none_is_refused(noise_std):
    with pytest.raises(ValueError, match="noise_std must be positive and finite"):
        add_noise([nn.Parameter(torch.zeros(2))], noise_std, source())


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e-9, 12345.678])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_outcome_is_on_the_grid_whatever_the_sum(value, dtype):
    """Else digits below the noise's would show which sums an outcome can come from."""
    parameter = nn.Parameter(torch.zeros(200_000, dtype=dtype))
    parameter.grad = torch.full_like(parameter, value)
    add_noise([parameter], 0.7, source())
    multiples = parameter.grad.double() / grid(0.7)
    assert torch.equal(multiples, multiples.round())


@pytest.mark.slow
def test_outcomes_near_zero_show_nothing_of_the_sum():
    """Of two sums: near zero the same multiples are reached, each as often, odd ones as even."""
    spacing = grid(1.0)
    seen = []
    for value in (0.0, 0.3 * spacing):
        parameter = nn.Parameter(torch.zeros(4_000_000))
        parameter.grad = torch.full_like(parameter, value)
        add_noise([parameter], 1.0, source())
        near = parameter.grad[parameter.grad.abs() < 20 * spacing].double() / spacing
        seen.append(np.bincount(near.long().numpy() + 20, minlength=40))
    expected = 4_000_000 * spacing * stats.norm.pdf(0)
    for counts in seen:
        assert counts[1:40].sum() == pytest.approx(39 * expected, abs=4 * (39 * expected) ** 0.5)
        odd, even = counts[1:40:2].sum(), counts[2:40:2].sum()
        assert abs(odd - even) < 4 * (39 * expected) ** 0.5 + 2 * expected
    assert not seen[0][0] > 0 or len(np.unique(seen[0])) < 20


def half_plane_bits(noise: np.ndarray) -> list[int]:
    """The first bit of each angle's uniform: whether the sine of the pair is negative."""
    return (noise[noise.size // 2 :] < 0).astype(int).tolist()


@pytest.mark.slow
def test_trust_rule_4_the_linear_attack_finds_torchs_generator_in_its_normals():
    """That the attack below can succeed: every 16th sine sign of torch.randn is one bit of MT19937.

    40,000 signs determine the recurrence, and the next 1,000 follow from it without an error.
    """
    generator = torch.Generator().manual_seed(5)
    draws = torch.randn(16 * 41_000, generator=generator).view(-1, 16)
    bits = (draws[:, 8] < 0).int().tolist()
    assert linear_complexity(bits[:40_000]) == linear_complexity(bits) == ORDER_OF_MT19937


def test_trust_rule_4_the_linear_attack_is_inconsistent_on_released_noise():
    """No linear recurrence of an order up to 20,000 explains 41,000 observed bits."""
    bits = half_plane_bits(noise_of_a_step([82_000], 1.3, source())[0])
    assert abs(linear_complexity(bits) - 41_000 / 2) < 50, "that of coin tosses"


def test_trust_rule_4_signs_of_one_step_say_nothing_of_the_next():
    first, second = (
        half_plane_bits(noise_of_a_step([40_000], 1.0, source(), s)[0]) for s in (0, 1)
    )
    assert abs(np.mean(np.equal(first, second)) - 0.5) < 4 * 0.5 / 20_000**0.5
    both = [a ^ b for a, b in zip(first, second, strict=True)]
    assert abs(linear_complexity(both) - 10_000) < 50


def test_blocks_drawn_at_once_give_the_same_bits_as_one_after_the_other(monkeypatch):
    """As on an accelerator; with uniforms near 0 in three of the blocks, and blocks cut in two."""
    monkeypatch.setattr(noise_module, "BLOCK", 1000)
    own_words, low = gaussians.keystream_words, {(1, 0): 3, (1, 1): 499, (2, 0): 0}

    def lowered(place, block, words):
        if (place, block) in low:
            words[low[place, block]] = (5 + place + block) << 11
        return words

    def together(key, addresses, counts, device):
        found = own_words(key, addresses, counts, device)
        return [lowered(a.parameter, a.block, w) for a, w in zip(addresses, found, strict=True)]

    def alone(blocks, place, block, count):
        return lowered(place, block, own_alone(blocks, place, block, count))

    own_alone = noise_module.BlockNoise._words
    monkeypatch.setattr(noise_module, "keystream_words", together)
    monkeypatch.setattr(noise_module.BlockNoise, "_words", alone)
    pieces = [Piece(0, 0, 0, 7), *(Piece(1, n, 0, 1000) for n in (0, 1)), Piece(2, 0, 0, 1)]
    first, second = (noise_module.BlockNoise(source(), 4) for _ in range(2))
    second.draws_at_once = True
    expected = [torch.cat(halves).clone() for halves in first.halves(pieces)]
    found = [torch.cat(halves) for halves in second.halves(pieces)]
    assert all(map(torch.equal, found, expected))
    radius = math.hypot(float(expected[1][3]), float(expected[1][503]))
    assert radius > 8, "a uniform must be near 0"

    outcomes = []
    for at_once in (False, True):
        parameters = [nn.Parameter(torch.ones(size)) for size in (7, 2500, 1)]
        for parameter in parameters:
            parameter.grad = torch.arange(len(parameter), dtype=torch.float32)
        with monkeypatch.context() as patch:
            patch.setattr(noise_module, "BlockNoise", forced(at_once))
            add_noise(parameters, 0.7, source(), 4)
        outcomes.append(torch.cat([parameter.grad for parameter in parameters]))
    assert torch.equal(*outcomes) and not torch.equal(outcomes[0], outcomes[0].round())


def forced(at_once: bool) -> type[noise_module.BlockNoise]:
    """Noise that is drawn as on an accelerator, or not."""

    class Forced(noise_module.BlockNoise):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            self.draws_at_once = at_once

    return Forced
