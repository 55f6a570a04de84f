import torch

from dpft.generation.repetition import repetition_processors


def test_an_ngram_of_the_prompt_may_be_written_and_one_of_the_text_may_not_be_again() -> None:
    read, scores = [1, 2, 3, 1], torch.zeros(1, 5)
    copied = repetition_processors(4, ngram=2, penalty=1.0)
    assert not copied(torch.tensor([[*read, 1]]), scores.clone()).isinf().any()
    again = copied(torch.tensor([[*read, 1, 2, 1]]), scores.clone())
    assert again.isinf().nonzero().tolist() == [[0, 2]]


def test_a_penalty_is_of_written_tokens_alone() -> None:
    (made,) = repetition_processors(2, ngram=0, penalty=2.0)(
        torch.tensor([[0, 1, 2]]), torch.full((1, 4), 4.0)
    )
    assert made.tolist() == [4.0, 4.0, 2.0, 4.0]


def test_nothing_changes_what_may_be_repeated() -> None:
    assert len(repetition_processors(3, ngram=0, penalty=1.0)) == 0
