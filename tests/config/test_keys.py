import pytest

from dpft.config.keys import known_keys, nearest_keys, unknown_key
from dpft.config.schema import TrainConfig

KNOWN = {
    "privacy",
    "privacy.eps",
    "privacy.engine",
    "optimizer",
    "optimizer.eps",
    "train",
    "train.steps",
    "train.seed",
    "train.learning_rate",
    "train.expected_batch_size",
    "train.micro_batch_size",
    "eval",
    "eval.batch_size",
}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("privacy.epz", ["privacy.eps"]),
        ("eps", ["optimizer.eps", "privacy.eps"]),
        ("privcy.eps", ["privacy.eps"]),
        ("privacy.learning_rate", ["train.learning_rate"]),
        ("learning_rat", ["train.learning_rate"]),
        ("train.batch_size", ["train.expected_batch_size", "train.micro_batch_size"]),
        ("tran", ["train"]),
        ("train.lr", ["train.learning_rate"]),
    ],
)
def test_a_misspelt_key_is_told_what_it_may_have_been(key: str, meant: list[str]) -> None:
    assert nearest_keys(key, KNOWN) == meant


def test_where_nothing_is_near_the_keys_of_the_section_are_listed() -> None:
    sentence = unknown_key("train.zz", KNOWN)
    assert "the known keys here are train.expected_batch_size, train.learning_rate" in sentence


def test_a_key_of_an_earlier_version_is_refused_with_what_has_become_of_it() -> None:
    sentence = unknown_key("privacy.secure_noise", known_keys(TrainConfig))
    assert sentence.startswith("configuration key privacy.secure_noise is gone: noise always comes")
