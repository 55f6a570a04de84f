"""Label words for infilling are found in the vocabulary, by public records alone."""

import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dpft.data.batches import Batch
from dpft.errors import InputError
from dpft.runs import label_words
from dpft.runs.exit_codes import exit_code_of_job
from dpft.runs.label_words import main
from tests.models import small

FILMS = [
    "the film is great",
    "a dull play",
    "bright song",
    "a long short play",
    "a play",
    "the pub",
]
PLANTED = {
    "bad": ("[SEP]", "##likely", "?", "dull", "terrible"),
    "good": ("[CLS]", "great", "bright"),
}
"""Of each label its likeliest tokens at the mask, likeliest first; some are no words."""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    with (tmp_path / "films.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "mood"])
        table.writerows([text, ("bad", "good")[n % 2]] for n, text in enumerate(FILMS))
    (tmp_path / "data").mkdir()
    (tmp_path / "films.csv").rename(tmp_path / "data" / "test.csv")
    return [
        f"model.path={small.save('bert', tmp_path / 'bert')}",
        "task=custom", f"task.data_dir={tmp_path / 'data'}", 'task.text="{text}"',
        "task.label=mood", "task.labels=[bad,good]", "task.objective=infilling",
        'task.template="<S1> It was [MASK] ."', "+task.label_words={bad: no, good: yes}",
        "task.max_length=32", "eval.batch_size=4",
    ]  # fmt: skip


def planted(model: torch.nn.Module, batch: Batch) -> Tensor:
    """Logits at the mask of each record, the words of its own label the likeliest."""
    tokenizer = small.tokenizer_of("bert", Path(model.name_or_path))
    assert batch.words is not None and len(batch.words) == len(tokenizer)
    logits = torch.zeros(len(batch), len(tokenizer))
    for row, label in enumerate(batch.labels.argmax(dim=1).tolist()):
        tokens = tokenizer.convert_tokens_to_ids(list(PLANTED[("bad", "good")[label]]))
        logits[row, tokens] = torch.arange(len(tokens) + 3.0, 3.0, -1.0)
    return logits


def test_each_label_gets_its_likeliest_word_of_the_whole_vocabulary(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(label_words, "answer_logits", planted)
    main([*words, "eval.split_is_public=true"])
    first, best, *others = capsys.readouterr().out.splitlines()
    assert "16 public records of each label" in first
    assert best.split()[0] == "1.000" and best.endswith("'task.label_words={bad:dull,good:great}'")
    assert len(others) == label_words.SHOWN - 1
    assert not [line for line in others if "likely" in line or "?" in line]


def test_the_words_of_a_model_are_those_that_its_own_zero_shot_answers_rank(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*words, "eval.split_is_public=true"])
    lines = capsys.readouterr().out.splitlines()[1:]
    shares = [float(line.split()[0]) for line in lines]
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.5


def test_private_records_choose_no_words(words: list[str]) -> None:
    with pytest.raises(InputError, match="by public records, got eval.split=test .* is private"):
        main(words)
    assert exit_code_of_job(lambda: main(words)) == 2


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("task.objective=cls", "task.objective=infilling, got task=custom"),
        ("task.labels=[bad,good,dull]", "label_words"),
        ("eval.limit=1", "got none of 'good'"),
    ],
)
def test_what_no_words_can_be_found_for_is_refused(words: list[str], word: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        main([*words, "eval.split_is_public=true", word])
    assert said in str(error.value)
