import numpy as np
from scipy import stats

from dpft.privacy.uniform import UniformStream


def test_uniforms_are_uniform_with_53_bits():
    draws = UniformStream(bytes(32)).draw(100_000)
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert (draws >= 0).all() and (draws < 1).all()
    assert np.unique(draws * 2**53 % 2**21).size > 90_000, "the low bits vary too"


def test_consecutive_draws_of_a_stream_share_no_number():
    stream = UniformStream(bytes(32))
    assert np.intersect1d(stream.draw(1000), stream.draw(1000)).size == 0


def test_each_of_the_32_bytes_of_a_key_changes_the_numbers():
    keys = [bytes(32), *(bytes(i) + b"\1" + bytes(31 - i) for i in range(32))]
    assert len({UniformStream(key).draw(1)[0] for key in keys}) == len(keys)
