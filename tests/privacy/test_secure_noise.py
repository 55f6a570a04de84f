import numpy as np
import torch

from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import make_randomness
from dpft.privacy.secure_noise import SecureNormalStream

CPU = torch.device("cpu")
KEY = bytes(range(32))


def draws(count: int, key: bytes = KEY) -> np.ndarray:
    return SecureNormalStream(CPU, key).draw(torch.Size([count])).numpy()


def test_the_sum_is_rounded_once_from_float64():
    parameter = torch.nn.Parameter(torch.zeros(1000))
    parameter.grad = torch.full((1000,), 0.1)
    add_noise([parameter], 0.3, SecureNormalStream(CPU, KEY))
    noise = torch.from_numpy(draws(1000)) * 0.3
    expected = (torch.full((1000,), 0.1).double() + noise).float()
    assert parameter.grad.dtype == torch.float32
    assert torch.equal(parameter.grad, expected)
    assert (noise.float().double() != noise).float().mean() > 0.99


def test_a_stream_continues_from_its_state():
    stream = SecureNormalStream(CPU, KEY)
    stream.draw(torch.Size([7]))
    again = SecureNormalStream.from_state(CPU, stream.state())
    assert torch.equal(stream.draw(torch.Size([3, 2])), again.draw(torch.Size([3, 2])))


def test_it_is_chosen_by_a_switch_and_keyed_anew_for_each_run():
    noises = [make_randomness(CPU, secure_noise=True).noise for _ in range(2)]
    assert all(isinstance(noise, SecureNormalStream) for noise in noises)
    first, second = (noise.draw(torch.Size([8])) for noise in noises)
    assert not torch.equal(first, second)
