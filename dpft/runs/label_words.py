"""Label words for infilling, found in the whole vocabulary by a few public records of each label.

The search is that of Gao et al. 2021 (arXiv 2012.15723, section 5.1), whose file the code of Li et
al. 2022 has: of each label the words that the model holds for likeliest at the mask, over the
label's own records; of all ways to take one for each label those that classify the records best
without training. The best are then to be trained and compared (experiment=li2022_label_words).

    python -m dpft.runs.label_words task=sst2 task.data_dir=DIR model=roberta-base

Records are those of ``eval.split``, which must be public: a choice by private records costs
epsilon (Li et al. 2022, Appendix N), and this one is accounted nowhere.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dpft.config.composing import compose
from dpft.config.load import load
from dpft.config.schema import TASK, EvaluateConfig
from dpft.data.classification_rows import LabelWordEncoding, label_word_ids
from dpft.errors import InputError
from dpft.evaluation.eval_config import eval_split_is_public
from dpft.generation.decoding import evaluation_mode
from dpft.kinds import MASKED
from dpft.models.loading import quiet_transformers
from dpft.models.losses import answer_logits
from dpft.runs.configuring import with_model_of_path
from dpft.runs.evaluation import trained_model_of
from dpft.runs.exit_codes import exit_code_of_job
from dpft.runs.held_out import records_to_score
from dpft.tasks.base import LabeledExample
from dpft.tasks.classification import ClassificationTask

SHOTS, SHOWN = 16, 10
"""Records of each label that are read, as many as Gao et al. 2021 take, and lines printed."""
MOST_CHOICES = 10_000
"""Ways to take a word for each label that are scored: of two labels 100 words each, of three 21."""


@dataclass(frozen=True, kw_only=True)
class LabelWords:
    """A word for each label, and what it is worth without training."""

    words: Mapping[str, str]
    """Label to word, ``task.label_words``."""
    accuracy: float
    """Share of the records whose own label's word is the likeliest of them."""
    log_probability: float
    """Of each record's own word at the mask, their mean, in nats."""


def search_label_words(config: EvaluateConfig, *, shots: int = SHOTS) -> list[LabelWords]:
    """Returns label words for a task of classes, the best first: by accuracy, then probability.

    Args:
        config: Task, model, device and the public split.
        shots: Records of each label, the first ones of the split.

    Raises:
        InputError: The split is private, the task has no label words, or a label has no record.
    """
    task = config.task
    if not isinstance(task, ClassificationTask) or task.objective != "infilling" or task.is_score:
        raise InputError(
            "label words are of a task of classes with task.objective=infilling, got"
            f" task={task.name}; choose one that has a template, such as task=sst2."
        )
    if not eval_split_is_public(task, config.eval):
        raise InputError(
            f"label words are chosen by public records, got eval.split={config.eval.split} of task"
            f" {task.name}, which is private: such a choice costs an epsilon that nothing accounts"
            " for; give public records, and eval.split_is_public=true with them."
        )
    parts = [part[: config.eval.limit] for part in records_to_score(config).values()]
    records = cast(list[LabeledExample], [record for part in parts for record in part])
    chosen = _first_of_each_label(task, records, shots)
    trained_model = trained_model_of(config)
    encoding = trained_model.encoding(task, max_new_tokens=None)
    assert isinstance(encoding, LabelWordEncoding)
    model = trained_model.on_device(task, config.train.prepare())
    answers, batch_size = [], config.eval.batch_size
    words = torch.arange(len(encoding.tokenizer), device=model.device)
    rows = encoding.rows(chosen)
    with evaluation_mode(model), torch.no_grad():
        for start in range(0, len(rows), batch_size):
            batch = encoding.layout.collate(rows[start : start + batch_size]).to(model.device)
            logits = answer_logits(model, replace(batch, words=words))
            answers.append(logits.log_softmax(dim=1).cpu())
    labels = torch.tensor([int(record.label) for record in chosen])
    is_blank_before = task.blank_before_mask(causal=encoding.layout.kind != MASKED)
    return _ranked(
        torch.cat(answers), labels, task.labels, encoding.tokenizer, after_blank=is_blank_before
    )


def _first_of_each_label(
    task: ClassificationTask, records: Sequence[LabeledExample], shots: int
) -> list[LabeledExample]:
    found: list[LabeledExample] = []
    for number, name in enumerate(task.labels):
        own = [record for record in records if int(record.label) == number][:shots]
        if not own:
            raise InputError(
                f"each of task.labels must have a record to choose its word by, got none of"
                f" {name!r}; give more, or raise eval.limit."
            )
        found += own
    return found


def _ranked(
    log_probabilities: Tensor,
    labels: Tensor,
    names: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    after_blank: bool,
) -> list[LabelWords]:
    """Returns the choices of a word for each label, the best first.

    Log probabilities are of each token at the mask of each record, shape (n, v); labels are the
    records', shape (n,), by number, and ``names`` their names. A blank may stand before the mask.
    """
    each = int(MOST_CHOICES ** (1 / len(names)) + 1e-9)
    candidates = []
    for label in range(len(names)):
        likely = log_probabilities[labels == label].mean(dim=0).argsort(descending=True)
        words = _words(likely.tolist(), tokenizer, after_blank=after_blank)
        candidates.append(list(itertools.islice(words, each)))
    found = []
    for choice in itertools.product(*candidates):
        tokens = torch.tensor([token for token, _ in choice])
        if len(tokens.unique()) < len(names):
            continue
        scores = log_probabilities[:, tokens]
        hits = scores.argmax(dim=1) == labels
        found.append(
            LabelWords(
                words=dict(zip(names, (word for _, word in choice), strict=True)),
                accuracy=float(hits.float().mean()),
                log_probability=float(scores[torch.arange(len(labels)), labels].mean()),
            )
        )
    return sorted(found, key=lambda words: (-words.accuracy, -words.log_probability))


def _words(
    tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase, *, after_blank: bool
) -> Iterator[tuple[int, str]]:
    """Yields those of the tokens that ``task.label_words`` can name: whole words of letters."""
    for token in tokens:
        word = str(tokenizer.decode([token])).strip()
        if not word.isalpha():
            continue
        try:
            known = label_word_ids([word], tokenizer, after_blank=after_blank)
        except InputError:
            continue
        if known == (token,):
            yield token, word


def main(words: Sequence[str]) -> None:
    """Prints the best label words as what ``dpft train`` takes, a line each."""
    composed = compose("eval", with_model_of_path(list(words)), EvaluateConfig)
    config = load(composed.values, EvaluateConfig, polymorphic=TASK)
    quiet_transformers()
    found = search_label_words(config)
    print(f"{'accuracy':<10}{'log p':<8}by {SHOTS} public records of each label, without training")
    for each in found[:SHOWN]:
        shown = ",".join(f"{name}:{word}" for name, word in each.words.items())
        print(f"{each.accuracy:<10.3f}{each.log_probability:<8.2f}'task.label_words={{{shown}}}'")


if __name__ == "__main__":
    sys.exit(exit_code_of_job(lambda: main(sys.argv[1:])))
