"""Handwritten digits that come with scikit-learn: 1797 gray images of 8 x 8 (UCI, Alpaydin 1998).

They need no network and no files. Their splits are fixed and public: every fifth is of the test
split, the others are to train on; of those every second one is the half called public.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpft.data.local_forms import LocalForm
from dpft.data.readers import Row
from dpft.errors import InputError
from dpft.tasks.image_records import ImagePlace

SIZE, DARKEST = 8, 16
EVERY = 5


def digit_rows(task: Any, split: str) -> Iterator[Row]:
    """Yields the digits of a split, train or test; of train, ``task.half`` of them.

    Raises:
        InputError: scikit-learn is not installed, or there is no such split.
    """
    if split not in ("train", "test"):
        raise InputError(f"task=digits has a train and a test split, got {split}.")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError(
            "task=digits needs scikit-learn, which has the images; pip install scikit-learn."
        ) from error
    images, labels = load_digits(return_X_y=True)
    pixels = (images * 255 / DARKEST).round().astype(np.uint8)
    for number in places(len(labels), split, task.half):
        place = ImagePlace(content=pixels[number].tobytes(), shape=(1, SIZE, SIZE))
        values = {"image": place, "label": int(labels[number])}
        yield Row(f"digits of scikit-learn, number {number}", values)


def places(count: int, split: str, half: str) -> list[int]:
    """Returns the places of a split's digits.

    >>> places(11, "test", "all"), places(11, "train", "public"), places(11, "train", "private")
    ([0, 5, 10], [1, 3, 6, 8], [2, 4, 7, 9])
    """
    test = range(0, count, EVERY)
    if split == "test":
        return list(test)
    train = [number for number in range(count) if number not in test]
    return {"all": train, "public": train[::2], "private": train[1::2]}[half]


FORM = LocalForm(rows=digit_rows, splits=lambda _: {"train", "test"})
