import pytest

from dpft.tasks.base import CorpusForm, Example
from dpft.tasks.corpus import CorpusTask
from tests.rejections import rejects


def corpus(**settings: object) -> CorpusTask:
    return CorpusTask(name="corpus", **settings)


def test_a_text_is_one_record_learned_as_a_whole_and_cut_at_its_end():
    text = "  Two\nlines. "
    whole = Example(prompt="", target=text, group=text, cut_target_end=True)
    assert corpus().examples({"text": text}) == (whole,)
    assert corpus().columns == ("text",)
    assert corpus().prompt_columns == ()


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u2028\u3000"])
def test_a_blank_text_is_no_record(text):
    assert corpus().examples({"text": text}) == ()
    assert corpus().record({}, text) is None


def test_a_text_is_written_from_nothing_into_the_column_it_is_read_from():
    task = corpus(text_column="body")
    assert task.from_nothing is task
    assert (task.prompt({}).prompt, task.prompt({}).target) == ("", "")
    written = task.record({}, "A text.")
    assert written == {"body": "A text."}
    assert [example.target for example in task.examples(written)] == ["A text."]
    assert task.written_columns == ("body",)


def test_a_canary_is_a_text_as_others_are():
    (whole,) = corpus().examples({"text": "one two three four"})
    assert corpus().canary(["one", "two"], ["three", "four"], number=0) == whole


def test_the_record_says_what_is_hidden_and_how_text_files_are_read():
    line, document = corpus(), corpus(record_kind="document")
    assert line.unit_definition.startswith("line of a text file, or row of ")
    assert document.unit_definition.startswith("text file as a whole, or row of ")
    assert line.corpus_form == CorpusForm(column="text", by_document=False)
    assert document.corpus_form == CorpusForm(column="text", by_document=True)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_trust_rule_8_c4_from_the_hub_is_published_and_nothing_else(split):
    from_hub = {"source": "hub", "hub_config": "en"}
    assert corpus(**from_hub, hub_name="allenai/c4").is_published(split)
    c4 = corpus(**from_hub, hub_name="allenai/c4")
    assert c4.public_num_train_examples == 364868892
    assert c4.replace(hub_config="realnewslike").public_num_train_examples == 13799838
    assert c4.replace(hub_config="de").public_num_train_examples is None
    assert c4.replace(num_train_examples=5).public_num_train_examples == 5
    assert not corpus(**from_hub, hub_name="someone/c4").is_published(split)
    own = corpus(**from_hub, hub_name="allenai/c4", data_dir="texts")
    assert not own.is_published(split)
    assert own.public_num_train_examples is None


@pytest.mark.parametrize(
    ("objective", "given", "written"),
    [
        ("causal", (), "num"),
        (None, (), "num"),
        ("span_corruption", ("text",), "prompts"),
        ("prefix_lm", ("text",), "prompts"),
        ("mlm", (), None),
    ],
)
def test_what_a_model_writes_from_follows_from_what_it_learned(
    objective: str | None, given: tuple[str, ...], written: str | None
) -> None:
    task = CorpusTask(name="corpus", objective=objective)
    assert (task.given_columns, task.written_from) == (given, written)
    assert task.prompt_columns == (), "a record has no prompt"


def test_gaps_are_filled_in_order_and_prompt_and_fills_stand_beside_the_text() -> None:
    task = CorpusTask(name="corpus", objective="span_corruption")
    row = {"text": "A ____ by the ______, ____."}
    assert task.prompt(row).prompt == row["text"]
    text = "<extra_id_0> red pub <extra_id_1> river <extra_id_2> cheap"
    assert task.record(row, text) == {
        "prompt": row["text"],
        "fills": ["red pub", "river", "cheap"],
        "text": "A red pub by the river, cheap.",
    }
    assert task.record(row, "<extra_id_0> red <extra_id_1>  <extra_id_2> x") is None
    assert task.record(row, "red pub") is None
    for text in ("no gap", "three ___", ""):
        with rejects("text"):
            task.prompt({"text": text})


def test_a_beginning_is_written_on_after_a_blank() -> None:
    task = CorpusTask(name="corpus", objective="prefix_lm")
    for given in ("The Inn", "The Inn "):
        whole = {"prompt": given, "text": "The Inn is a pub."}
        assert task.record({"text": given}, "is a pub.") == whole
    assert task.record({"text": "The"}, " ") is None
    with rejects("text"):
        task.prompt({"text": " "})
