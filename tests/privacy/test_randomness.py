import numpy as np
import pytest
import torch
from scipy import stats

from dpft.privacy.randomness import (
    NormalStream,
    fill_cpu_state,
    make_randomness,
    private_dropout,
)
from dpft.privacy.secure_noise import SecureNormalStream
from dpft.privacy.uniform import UniformStream

CPU = torch.device("cpu")


def test_trust_rule_4_two_runs_never_share_randomness():
    first, second = make_randomness(CPU), make_randomness(CPU)
    assert not np.array_equal(first.sampling.draw(8), second.sampling.draw(8))
    shape = torch.Size([8])
    assert not torch.equal(first.noise.draw(shape), second.noise.draw(shape))
    assert first.dropout != second.dropout
    assert not first.reproducible


def test_trust_rule_4_a_noise_seed_makes_the_run_reproducible_and_says_so():
    first, second = make_randomness(CPU, noise_seed=1), make_randomness(CPU, noise_seed=1)
    assert np.array_equal(first.sampling.draw(8), second.sampling.draw(8))
    shape = torch.Size([8])
    assert torch.equal(first.noise.draw(shape), second.noise.draw(shape))
    assert first.dropout == second.dropout
    assert first.reproducible and second.reproducible


def test_the_three_sources_are_keyed_apart():
    randomness = make_randomness(CPU, noise_seed=1)
    keys = {randomness.sampling.state()["key"], randomness.dropout.hex()}
    assert len(keys) == 2


def test_training_seeds_do_not_reach_the_noise():
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        draws.append(make_randomness(CPU).noise.draw(torch.Size([4])))
    assert not torch.equal(*draws)


def test_the_whole_generator_state_depends_on_the_entropy():
    """No 32-bit bottleneck: with one, states from different entropy would coincide somewhere."""
    states = []
    for number in range(2):
        generator = torch.Generator()
        fill_cpu_state(generator, bytes([number]) * 32)
        words = generator.get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
        states.append(words)
    assert (states[0] != states[1]).mean() > 0.99
    assert all((words < 2**32).all() and (words >> np.uint64(31)).any() for words in states)


@pytest.mark.parametrize("make", [NormalStream, SecureNormalStream], ids=["plain", "secure"])
def test_each_of_the_32_bytes_of_entropy_changes_the_noise(make):
    """Keys that agree in their low 32, 64 or 248 bits give unrelated noise."""
    keys = [bytes(32), *(bytes(i) + b"\1" + bytes(31 - i) for i in range(32))]
    draws = np.array([make(CPU, key).draw(torch.Size([1000])).numpy() for key in keys])
    assert np.unique(draws[:, 0]).size == len(keys)
    assert np.abs(np.corrcoef(draws)[np.triu_indices(len(keys), k=1)]).max() < 5 / np.sqrt(1000)


def test_a_filled_generator_draws_standard_normals():
    draws = NormalStream(CPU, bytes(32)).draw(torch.Size([100_000])).numpy()
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert draws.dtype == np.float32


def test_uniforms_are_uniform_with_53_bits():
    draws = UniformStream(bytes(32)).draw(100_000)
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert (draws >= 0).all() and (draws < 1).all()
    assert np.unique(draws * 2**53 % 2**21).size > 90_000, "the low bits vary too"


def test_consecutive_draws_of_a_stream_share_no_number():
    stream = UniformStream(bytes(32))
    assert np.intersect1d(stream.draw(1000), stream.draw(1000)).size == 0


def test_streams_go_on_from_their_state():
    uniform = UniformStream(bytes(32))
    uniform.draw(5)
    again = UniformStream.from_state(uniform.state())
    assert np.array_equal(uniform.draw(7), again.draw(7))
    normal = NormalStream(CPU, bytes(32))
    normal.draw(torch.Size([5]))
    other = NormalStream.from_state(CPU, normal.state())
    assert torch.equal(normal.draw(torch.Size([7])), other.draw(torch.Size([7])))


def test_dropout_is_keyed_inside_and_the_global_generator_is_restored():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    masks = []
    for _ in range(2):
        with private_dropout(make_randomness(CPU, noise_seed=7), CPU):
            masks.append(torch.nn.functional.dropout(torch.ones(64), 0.5))
    assert torch.equal(*masks)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_come_in_the_type_asked_for(dtype):
    assert NormalStream(CPU, bytes(32)).draw(torch.Size([3]), dtype).dtype == dtype
