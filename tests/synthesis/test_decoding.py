"""Whatever a model would like to write, rows come out: every one parses, every value in range."""

from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from dpft.models.source import EMBEDDED_MODEL
from dpft.synthesis.decoding import RowConstraint, RowGrammar
from dpft.synthesis.rows import RowFormat, count
from dpft.synthesis.schema import schema_of
from tests.slowness import slow_but_each

ROOM = 6
SCHEMA = schema_of(
    {
        "columns": {
            "city": {"type": "category", "values": ["Rome", 'O"slo', "東京"], "missing": True},
            "price": {"type": "decimal", "minimum": "-1.5", "maximum": 10, "step": 0.5},
            "note": {"type": "text", "max_tokens": ROOM, "missing": True},
            "day": {"type": "date", "minimum": "2019-12-30", "maximum": "2020-03-01"},
            "sure": {"type": "boolean"},
            "more": {"type": "text", "max_tokens": ROOM},
        }
    }
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


def written(grammar: RowGrammar, likes: torch.Tensor, rows: int, most: int) -> list[list[int]]:
    """Returns rows drawn by the same logits at every step, held to the grammar."""
    draw = torch.Generator().manual_seed(0)
    held = RowConstraint(grammar, rows, before=1, top_p=1.0)
    ids = torch.zeros((rows, 1), dtype=torch.long)
    over = torch.zeros(rows, dtype=torch.bool)
    for _ in range(most):
        chosen = torch.multinomial(held(ids, likes.expand(rows, -1)).softmax(-1), 1, generator=draw)
        chosen[over] = grammar.end
        ids = torch.cat([ids, chosen], 1)
        over |= chosen[:, 0] == grammar.end
        if over.all():
            return [row[1 : row.index(grammar.end, 1)] for row in ids.tolist()]
    raise AssertionError("a row did not end where its room does")


@pytest.mark.parametrize(
    ("liked", "condition", "form"),
    slow_but_each(
        ["nothing", "backslashes", "torn letters", "blanks", "never end"],
        [(), ("city", "sure")],
        ["object", "array"],
    ),
)
def test_every_text_is_a_row_in_range(
    tokenizer: Any, form: str, condition: tuple[str, ...], liked: str
) -> None:
    """A model that likes backslashes, or half letters, would tear a text where its room ends."""
    rows = RowFormat(schema=SCHEMA, condition=condition, form=form)
    grammar = RowGrammar(rows, tokenizer)
    likes = torch.zeros(1, len(tokenizer))
    first = {"backslashes": (b"\\",), "torn letters": (b"\xe6", b"\xc3"), "blanks": (b" ",)}
    for token, text in enumerate(grammar.bytes):
        if text[:1] in first.get(liked, ()):
            likes[0, token] = 9
        if liked == "never end" and b'"' in text:
            likes[0, token] = -30
    prompt, target = rows.longest(tokenizer)
    given = {"city": None, "sure": True}
    found = 0
    for ids in written(grammar, likes, 24, target):
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        row = rows.read(rows.prompt(given), text)
        assert row is not None, text
        assert {name: row[name] for name in condition} == {name: given[name] for name in condition}
        for name in ("note", "more"):
            spelled = SCHEMA.named[name].spell(row[name])
            assert row[name] is None or count(spelled, tokenizer) <= 6 * (ROOM + 2)
        found += 1
    assert found == 24
    assert prompt <= count(rows.prompt(given), tokenizer) + 12


def test_a_mask_is_the_grammars_own_at_every_place(tokenizer: Any) -> None:
    """What is kept by place is what llguidance says of all that was written."""
    import numpy as np

    rows = RowFormat(schema=SCHEMA)
    grammar = RowGrammar(rows, tokenizer)
    compared = 0
    likes = torch.zeros(1, len(tokenizer))
    for token, text in enumerate(grammar.bytes):
        likes[0, token] = 6 if text in (b"\\", b"u") else 0  # escapes of six letters, too
    for ids in written(grammar, likes, 12, rows.longest(tokenizer)[1]):
        matcher, place = grammar._start.deep_copy(), grammar.start
        for at, token in enumerate(ids):
            own = grammar.mask(place, is_full=False, so_far=ids[:at])
            theirs = np.frombuffer(matcher.compute_bitmask(), np.uint8)[: len(own)]
            assert (own == theirs).all(), ids[:at]
            assert matcher.consume_token(token)
            place = grammar.after(place, token)
            compared += 1
        assert matcher.is_accepting()
    assert compared > 100


def test_values_keep_their_chances_and_texts_are_cut_to_their_nucleus(tokenizer: Any) -> None:
    """A rare category must stay as rare as it is: only texts lose their tails."""
    schema = schema_of(
        {"columns": {"c": {"type": "category", "values": ["aa", "bb"]},
                     "t": {"type": "text", "max_tokens": 9}}}
    )  # fmt: skip
    rows = RowFormat(schema=schema, form="array")
    grammar = RowGrammar(rows, tokenizer)
    held = RowConstraint(grammar, 2, before=1, top_p=0.5)
    likes = torch.randn((2, len(tokenizer)), generator=torch.Generator().manual_seed(1))
    first = held(torch.zeros((2, 1), dtype=torch.long), likes)
    open_text = tokenizer('"aa","', add_special_tokens=False)["input_ids"]
    ids = torch.zeros((2, 1), dtype=torch.long)
    for token in open_text:
        ids = torch.cat([ids, torch.full((2, 1), token)], 1)
        later = held(ids, likes)
    assert (first > -torch.inf).sum() == 2 * sum(grammar.bytes[t] in (b'"', b'"a', b'"b', b" ",
                                                 b' "') for t in range(len(tokenizer)))  # fmt: skip
    kept = later[0].softmax(-1)
    assert 1 < (kept > 0).sum() < len(tokenizer) / 2


def test_without_llguidance_one_sentence_says_so(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from dpft.errors import InputError

    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"pip install 'dpft\[synthesis\]'"):
        RowGrammar(RowFormat(schema=SCHEMA), tokenizer)
