import pytest

from dpft.config.load import published_num_train_examples
from dpft.errors import InputError


def test_the_size_is_the_published_one() -> None:
    assert published_num_train_examples("sst2") == 67349
    assert published_num_train_examples("e2e") == 42061


def test_an_unknown_task_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match="got 'sst', which is none; did you mean sst2?"):
        published_num_train_examples("sst")
