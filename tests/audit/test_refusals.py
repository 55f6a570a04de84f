"""Whatever an audit refuses was refused before epsilon was spent, or could not be known then."""

import ast
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import dpft.audit
from dpft.config.schema import check_suffixes
from dpft.constants import SEQ2SEQ
from dpft.data.batches import TextLayout
from dpft.data.canaries import (
    FEWEST_SUFFIXES,
    MOST_SUFFIXES,
    CanaryConfig,
    check_suffixes_learned,
    make_canaries,
)
from dpft.data.corpus_objectives import (
    CorpusEncoding,
)
from dpft.errors import InputError
from dpft.tasks.corpus import CorpusTask
from dpft.tokenizers import save_tokenizer

ROOM = Path(dpft.audit.__file__).parent
ASKED = "about the words of dpft audit itself, which it refuses before it looks at the run"
FILES = "about files of the run, or of the user, which are lost or changed after training"
SCORES = "about what the trained model says, or how an audit's own functions are called"
INSTALLED = "about what is installed when the audit is made"
NOT_WANTED = "about what the run was trained without, which only who audits it misses"
CHECKED = "checked when a run begins: the two tests of exposure canaries below"

WHERE = {
    "base.AuditConfig._check_fields": ASKED,
    "membership.MembershipConfig._check_fields": ASKED,
    "prompted_rows.hidden_part": ASKED,
    "synthetic.read_synthetic": FILES,
    "membership._reference": ASKED,
    "audited_run._missing_key": FILES,
    "audited_run._other_records": FILES,
    "audited_run.kept_canaries": FILES,
    "memorization.import_extra": INSTALLED,
    "membership.MembershipConfig.find": NOT_WANTED,
    "audited_run.check_writes_texts": NOT_WANTED,
    "exposure.ExposureConfig.find": NOT_WANTED,
    "one_run.OneRunConfig.find": NOT_WANTED,
    "trade_off": SCORES,
    "membership": SCORES,
    "guessing": SCORES,
    "exposure.exact_exposure": SCORES,
    "exposure.fit_skew_normal": CHECKED,
    "exposure._finite": SCORES,
}
"""Function, or module, of the room to why its refusals may come after training."""


def refusals() -> dict[str, list[int]]:
    """Returns every function of the room that makes an ``InputError``, and in which lines."""
    found: dict[str, list[int]] = {}
    for path in sorted(ROOM.rglob("*.py")):
        module = ".".join(path.relative_to(ROOM).with_suffix("").parts)
        scopes: list[tuple[ast.AST, str]] = [(ast.parse(path.read_text()), module)]
        while scopes:
            node, name = scopes.pop()
            for child in ast.iter_child_nodes(node):
                is_scope = isinstance(child, ast.FunctionDef | ast.ClassDef)
                scopes.append((child, f"{name}.{child.name}" if is_scope else name))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InputError":
                found.setdefault(name, []).append(node.lineno)
    return found


def known(name: str) -> str | None:
    return WHERE.get(name) or WHERE.get(name.partition(".")[0])


def test_every_refusal_of_the_room_has_a_reason_to_come_after_training() -> None:
    made = refusals()
    assert len(made) > 20
    assert [f"{name}, lines {lines}" for name, lines in made.items() if known(name) is None] == []
    unused = [
        name
        for name in WHERE
        if not any(each == name or each.startswith(f"{name}.") for each in made)
    ]
    assert unused == []


@pytest.mark.parametrize(
    ("vocabulary", "suffix_words"), [(FEWEST_SUFFIXES - 1, 1), (MOST_SUFFIXES + 1, 1), (2, 24)]
)
def test_canaries_whose_exposure_cannot_be_computed_are_refused_before_a_run_begins(
    vocabulary: int, suffix_words: int
) -> None:
    config = CanaryConfig(exposure_canaries=1, vocabulary=vocabulary, suffix_words=suffix_words)
    with pytest.raises(InputError, match=f"must be 20 to 1e\\+07, got {vocabulary} "):
        check_suffixes(config, None)
    check_suffixes(config, "outputs/run")  # such a run, begun before this was checked, goes on


def test_as_few_and_as_many_suffixes_as_can_be_ranked_are_taken() -> None:
    for vocabulary in (FEWEST_SUFFIXES, MOST_SUFFIXES):
        CanaryConfig(exposure_canaries=1, vocabulary=vocabulary, suffix_words=1).check_suffixes()


@pytest.mark.parametrize("span_corruption", [True, False])
def test_canaries_whose_suffix_is_not_learned_as_a_whole_are_refused_before_a_run_begins(
    tmp_path: Path, span_corruption: bool
) -> None:
    """A hidden span, or what follows a beginning, is another part of a text than the suffix."""
    words = ("one", "two", "six", "ten", "red")
    pieces = (("▁", -9.0), *((f"▁{word}", -1.0) for word in words), ("q", -2.0))
    save_tokenizer(tmp_path, pieces, algorithm="unigram", sentinels=40)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    config = CanaryConfig(exposure_canaries=1, vocabulary=3, suffix_words=3)
    encoding = CorpusEncoding(
        tokenizer=tokenizer,
        layout=TextLayout(kind=SEQ2SEQ, pad_token_id=0),
        max_length=64,
        span_corruption=span_corruption,
    )
    canaries = make_canaries(config, tokenizer, bytes(32))
    with pytest.raises(InputError, match="learns each word of a suffix as one token, got"):
        check_suffixes_learned(canaries, config, tokenizer, CorpusTask(name="corpus"), encoding)
