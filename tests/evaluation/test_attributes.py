"""Attributes told by a model or a file, beside those that are there."""

import pytest

from dpft.errors import InputError
from dpft.evaluation.attributes import model_attributes, read_attributes, scored_attributes
from dpft.tasks.celeba import CelebA
from dpft.tasks.image_records import ImagePlace, LabeledImage

TASK = CelebA(name="celeba", labels=("Bald", "Male"), metrics=("mean_accuracy",))
RECORDS = [
    LabeledImage(image=ImagePlace(file=f"faces/{at}.jpg"), answer=answer)
    for at, answer in enumerate([(0.0, 1.0), (1.0, 1.0)])
]


def test_each_attribute_has_an_accuracy_of_its_own():
    scored = scored_attributes(TASK, RECORDS, [[0, 1], [0, 1]])
    assert scored.more == {"accuracy_Bald": 0.5, "accuracy_Male": 1.0}
    assert [(p.input, p.prediction, p.references) for p in scored.predictions] == [
        ("0: 0.jpg", "Male", ("Male",)),
        ("1: 1.jpg", "Male", ("Bald, Male",)),
    ]


def test_a_model_tells_what_is_likelier_than_not():
    class Answering:
        def answers(self, records, on_batch):
            on_batch(len(records))
            return [[0.4, 0.6], [0.51, 0.5]]

    scored = model_attributes(TASK, RECORDS, Answering())
    assert scored.columns["attributes"]["predicted"] == [[0, 1], [1, 0]]


def test_a_file_names_them_with_commas():
    assert read_attributes(TASK, ["Male, Bald", "", "Male"]) == [[1, 1], [0, 0], [0, 1]]
    with pytest.raises(InputError, match="record 2: it must name attributes") as error:
        read_attributes(TASK, ["Male", "secret"])
    assert "secret" not in str(error.value)
