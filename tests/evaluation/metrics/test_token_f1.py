import pytest

from dpft.evaluation.metrics.token_f1 import token_f1


# worked by hand on ParlAI's rules (parlai/core/metrics.py): lower case, punctuation to blanks,
# no articles, words counted as often as both have them
@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        # "i love dog" and "i love my dogs": 2 in common, P = 2/3, R = 2/4
        ("I love the dog.", ["I love my dogs"], 4 / 7),
        # only articles and punctuation differ
        ("The cat!", ["a CAT"], 1),
        # "it s" and "its" share no word
        ("it's", ["its"], 0),
        # a word counts at most as often as the other text has it: P = 1/3, R = 1/2
        ("so so so", ["so what"], 2 / 5),
        # the best reference counts: 0 and 1
        ("yes", ["no", "yes"], 1),
        # "theme" is not an article and a word
        ("theme", ["me"], 0),
        ("", ["yes"], 0),
        # articles alone leave no word, and ParlAI gives 0
        ("the", ["a"], 0),
    ],
)
def test_f1_of_worked_examples(prediction, references, expected):
    assert token_f1([prediction], [references]) == pytest.approx(expected)


def test_inputs_count_alike():
    assert token_f1(["yes", "no"], [["yes"], ["yes"]]) == pytest.approx(1 / 2)
