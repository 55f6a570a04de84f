import json
import math
from dataclasses import replace
from functools import partial

import pytest

from dpft.tasks.base import LabeledExample, chosen_task_class
from dpft.tasks.custom import ChatExample, CustomChats, CustomLabels, CustomTexts, Message
from dpft.tasks.templates import spelled
from tests.refused import refusal

QA = {"prompt_template": r"Q: {question}\nA: ", "target_template": "{answer}"}
ROW = {"question": "Why?", "answer": "So."}
CLASSES = {"text_template": "{text}", "label_column": "mood", "labels": ("bad", "good")}
SECRET = "secret"


def texts(**settings: object) -> CustomTexts:
    return CustomTexts(name="custom", **{**QA, **settings})


def plain(template: str, **settings: object) -> CustomTexts:
    return CustomTexts(name="custom", text_template=template, **settings)


def labels(**settings: object) -> CustomLabels:
    return CustomLabels(name="custom", **{**CLASSES, **settings})


def chats(**settings: object) -> CustomChats:
    return CustomChats(name="custom", messages_column="talk", **settings)


def talk(*roles: str) -> dict[str, object]:
    return {"talk": [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)]}


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ({"prompt": "{q}", "target": "{a}"}, CustomTexts),
        ({"text": "{a}"}, CustomTexts),
        ({"messages": "talk"}, CustomChats),
        ({"text": "{a}", "label": "mood"}, CustomLabels),
    ],
)
def test_the_keys_that_are_given_choose_the_form(values, made):
    assert chosen_task_class({"name": "custom", "prompt": None, **values}) is made


@pytest.mark.parametrize(
    "given",
    [
        {"prompt"},
        {"target"},
        {"label"},
        {"prompt", "text"},
        {"prompt", "target", "text"},
        {"messages", "text"},
        {"label", "prompt"},
    ],
)
def test_other_combinations_are_refused_with_the_four_forms(given):
    sentence = refusal(chosen_task_class, {"name": "custom", **dict.fromkeys(given, "{x}")})
    assert all(f"task.{key}" in sentence.rpartition("got ")[2] for key in given)
    assert "task.prompt and task.target" in sentence and "task.messages" in sentence


def test_every_form_has_the_keys_of_one_yaml():
    names = [set(kind.model_fields) for kind in (CustomTexts, CustomLabels)]
    assert names[0] == names[1] == set(CustomChats.model_fields)


def test_classes_without_a_label_column_are_refused():
    assert "task.label=COLUMN" in refusal(texts, labels=("a", "b"))


def test_a_written_label_that_is_none_makes_no_row_and_a_wrong_one_of_a_file_is_refused():
    labeled = texts(
        prompt_template="{mood}:\n",
        target_template="{text}",
        label_column="mood",
        labels=("positive", "negative"),
        learn_prompt=True,
    )
    whole = labeled.from_nothing
    assert whole.record({}, "positive:\nGood.") == {"mood": "positive", "text": "Good."}
    assert whole.record({}, "pgative:\nGood.") is None
    sentence = refusal(labeled.examples, {"mood": "pgative", "text": "Good."})
    assert "mood, which task.label names, must hold one of positive, negative" in sentence
    assert "pgative" not in sentence, "the row is private"
    assert "must be a column of task.prompt or task.target" in refusal(
        texts, label_column="mood", labels=("a", "b")
    )
    assert "give task.labels=[positive,negative]" in refusal(texts, label_column="answer")


@pytest.mark.parametrize("source", ["hub", "local", "url"])
def test_trust_rule_8_nothing_of_it_counts_as_published(source):
    task = texts(source=source, hub_name="someone/qa")
    assert not any(task.is_published(split) for split in ("train", "validation", "test"))
    assert task.public_num_train_examples is None


def test_prompt_and_target_are_filled_and_what_the_prompt_says_itself_survives_cutting():
    (made,) = texts().examples(ROW)
    assert (made.prompt, made.target, made.group) == ("Q: Why?\nA: ", "So.", "Q: Why?\nA: ")
    assert (made.lead, made.separator, made.cut_start) == ("Q: ", "\nA: ", False)
    assert texts().columns == ("question", "answer")


def test_a_prompt_is_the_example_without_its_target_and_a_record_has_the_files_columns():
    task = texts()
    (made,) = task.examples(ROW)
    assert task.prompt({"question": "Why?"}) == replace(made, target="")
    assert task.record(ROW | {"id": 7}, "So.") == ROW


def test_a_row_whose_target_says_nothing_has_no_target():
    task = texts(target_template="{answer}.")
    assert [e.target for e in task.examples({"question": "Why?", "answer": " "})] == [""]


def test_a_plain_text_is_learned_as_a_whole_and_cut_at_its_end():
    (made,) = plain("{title}\n{body}").examples({"title": "A", "body": "B"})
    assert (made.prompt, made.target, made.cut_target_end) == ("", "A\nB", True)
    assert plain("{body}").prompt_columns == ()


def test_a_generated_text_is_read_as_its_template_or_is_no_record():
    task = plain("{title}\n{body}")
    assert task.record({}, "A\nB\nC") == {"title": "A", "body": "B\nC"}
    assert task.record({}, "A B") is None
    assert task.written_columns == ("title", "body")


@pytest.mark.parametrize("text", ["", " \n "])
def test_a_generated_text_that_says_nothing_is_no_record(text):
    assert plain("{body}").record({}, text) is None
    assert texts().record(ROW, text) is None


def test_a_record_has_the_columns_of_the_template_in_its_order_under_the_files_names():
    task = texts(column_aliases={"q": "question", "a1": "answer", "a2": "answer"})
    assert list(task.record(ROW, "So.").items()) == [("q", "Why?"), ("answer", "So.")]
    assert task.written_columns == ("answer",)


def test_a_given_column_that_the_target_names_too_stays_as_it_was_given():
    task = texts(target_template="{answer} ({question})")
    assert task.record(ROW | {"question": 7}, "So. (8)") == {"question": 7, "answer": "So."}


def test_a_prompt_is_learned_where_that_is_asked_for_and_the_example_is_else_the_same():
    (plainly,), (learned,) = (texts(learn_prompt=on).examples(ROW) for on in (False, True))
    assert (plainly.after_start, plainly.learns_prompt) == (False, False)
    assert learned == replace(plainly, after_start=True, learns_prompt=True)
    assert texts(learn_prompt=True).prompt(ROW) == replace(learned, target="")


def test_whole_rows_are_written_from_nothing_where_the_prompt_was_learned_or_there_is_none():
    assert texts().from_nothing is None
    assert plain("{a}").from_nothing == plain("{a}")
    task = texts(learn_prompt=True)
    (learned,), whole = task.examples(ROW), task.from_nothing
    assert (whole.prompt_columns, whole.prompt({}).prompt) == ((), "")
    assert whole.record({}, learned.prompt + learned.target) == ROW
    assert whole.record({}, "Q:  Why?\nA:  So.") == ROW
    assert whole.record({}, "Q: Why? So.") is None
    assert whole.written_columns == ("question", "answer")


def test_a_prompt_that_cannot_be_told_from_its_target_is_not_learned():
    sentence = refusal(texts, learn_prompt=True, prompt_template="{question}")
    assert "got none after {question}; end task.prompt with" in sentence
    assert texts(prompt_template="{question}").learn_prompt is False
    assert texts(prompt_template="{question}", target_template=" {answer}", learn_prompt=True)


def test_other_forms_have_no_prompt_to_learn():
    for make in (partial(plain, "{a}"), labels, chats):
        assert make()
        assert "task.learn_prompt=true is for" in refusal(make, learn_prompt=True)
        assert "task.json_weights is for" in refusal(make, json_weights=(2.0,))
    for weight in (0.0, -1.0, math.inf, math.nan):
        assert "json_weights.1" in refusal(texts, json_weights=(1.0, weight))


def test_the_metrics_are_those_of_the_form_unless_given():
    two, three = labels(), labels(labels=("a", "b", "c"))
    written = ("bleu", "rouge_l", "perplexity", "distinct_1", "distinct_2", "mean_length")
    assert texts().metrics == chats().metrics == written
    assert plain("{a}").metrics == ("perplexity",)
    assert (two.metrics, three.metrics) == (("accuracy", "f1"), ("accuracy",))
    assert texts(metrics=("bleu",)).metrics == ("bleu",)


def test_bad_braces_are_refused_as_the_task_is_made():
    assert "task.prompt must hold columns" in refusal(texts, prompt_template="{q")
    assert "target" in refusal(texts, target_template="yes")
    assert "task.text may hold nothing but" in refusal(labels, text_template="{a.b}")


def test_a_column_is_known_by_the_key_that_names_it():
    assert [texts().column_key(column) for column in ("question", "answer")] == [
        "task.prompt",
        "task.target",
    ]
    assert [labels().column_key(column) for column in ("text", "mood")] == [
        "task.text",
        "task.label",
    ]


def test_a_class_is_read_by_name_or_place():
    (made,) = labels().examples({"text": " fine ", "mood": "good"})
    assert made == LabeledExample(texts=("fine",), label=1.0)
    assert [labels().label(value) for value in (0, "1", " bad ", 1.0)] == [0.0, 1.0, 0.0, 1.0]


def test_classes_named_by_numbers_are_names_not_places():
    stars = labels(labels=("1", "2", "3"))
    assert [stars.label(value) for value in (1, "3", 2.0)] == [0.0, 2.0, 1.0]
    assert "must hold one of 1, 2, 3." in refusal(stars.label, 0)
    assert labels(labels=("-1", "1")).label(-1) == 0.0
    assert labels(labels=("false", "true")).label(True) == 1.0


@pytest.mark.parametrize("value", [SECRET, None, "", 2, -1, [SECRET], float("nan"), 1e400])
def test_a_label_that_is_no_class_is_refused_and_never_quoted(value):
    sentence = refusal(labels().label, value)
    assert sentence == (
        "the column mood, which task.label names, must be one of 0 (bad), 1 (good)"
        f"{', and is empty' if value in ('', None) or value != value else ''}."
    )
    assert spelled(value) not in ("bad", "good")


def test_classes_must_be_given():
    assert "labels" in refusal(labels, labels=())


def test_infilling_takes_a_template_and_words_as_glue_does():
    words = {"bad": "terrible", "good": "great"}
    filled = labels(
        objective="infilling",
        template="<S1> It was [MASK] .",
        causal_template="<S1> It was [MASK]",
        label_words=words,
    )
    (made,) = filled.examples({"text": "fun", "mood": "good"})
    assert [piece.text for piece in filled.pieces(made, causal=True)] == ["fun", " It was", ""]
    assert "task.template" in refusal(labels, objective="infilling")


def test_the_assistants_last_message_is_learned_and_those_before_are_read():
    (made,) = chats().examples(talk("system", "user", "assistant", "user", "assistant"))
    assert isinstance(made, ChatExample)
    assert made.target == "assistant 4"
    assert made.messages[1] == Message(role="user", content="user 1")
    assert len(made.messages) == 4
    assert made.group.endswith("\nuser: user 3")


def test_a_conversation_without_its_answer_is_a_prompt():
    task, whole = chats(), talk("user", "assistant")
    (made,) = task.examples(whole)
    assert task.prompt(talk("user")) == replace(made, target="")
    assert task.record(talk("user"), "assistant 1") == whole


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (SECRET, "must hold a list of messages"),
        ([], "must hold a list of messages"),
        (None, "must hold a list of messages"),
        ([SECRET], "messages of the form {role, content}"),
        ([{"role": SECRET, "content": "x"}], "a role of system, developer, user, assistant"),
        ([{"role": "user", "content": [SECRET]}], "a text as its content"),
        ([{"role": "user"}], "a text as its content"),
        (
            [{"role": "user", "content": [{"type": "image", "text": SECRET}]}],
            "a text as its content",
        ),
        ([{"role": "user", "content": "x", "name": "\ud800"}], "values of JSON"),
        ([{"role": "user", "content": "x", "tool_calls": [SECRET]}], "the name of a function"),
        ([{"role": "user", "content": "x", "tool_calls": 5}], "tool_calls as a list"),
        (
            [
                {"role": "user", "content": "x"},
                {"role": "assistant", "tool_calls": [{"function": {"name": SECRET}}]},
            ],
            "a message that calls a tool",
        ),
        ([{"role": "user", "content": "x\ud800"}], "a text as its content"),
        ([{"role": "user", "content": SECRET}], "must end with a message of the assistant"),
        ([{"role": "assistant", "content": SECRET}], "a message before the assistant's answer"),
    ],
)
def test_messages_of_another_shape_are_refused_and_never_quoted(value, reason):
    sentence = refusal(chats().examples, {"talk": value})
    assert reason in sentence and "task.messages" in sentence
    assert SECRET not in sentence


def test_infilling_needs_the_template_of_its_kind_of_model_alone():
    words = {"a": "x", "b": "y"}
    causal = labels(
        labels=("a", "b"),
        objective="infilling",
        causal_template="<S1> is [MASK]",
        label_words=words,
    )
    assert causal.blank_before_mask(causal=True)
    assert "masked model needs task.template" in refusal(causal.blank_before_mask, causal=False)
    assert "got neither" in refusal(labels, objective="infilling", label_words=words)


@pytest.mark.parametrize(
    "messages",
    [
        [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}],
        [{"from": "user", "value": "Why?"}, {"from": "chatgpt", "value": "So."}],
        [{"role": "human", "content": "Why?"}, {"role": "model", "content": "So."}],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y?"}],
            },  # noqa: E501
            {"role": "assistant", "content": [{"type": "text", "text": "So."}], "tool_calls": None},
        ],
    ],
    ids=["sharegpt", "other roles", "roles", "parts"],
)
def test_other_forms_of_messages_are_the_same_conversation(messages):
    (made,) = chats().examples({"talk": messages})
    assert (made.messages, made.target) == ((Message(role="user", content="Why?"),), "So.")


def test_a_generated_row_has_the_form_of_the_prompt():
    asked = [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Why?"}]
    expected = {"talk": [*asked, {"from": "gpt", "value": "So."}]}
    assert chats().record({"talk": asked}, "So.") == expected
    assert chats().replace(merge_system=True).record({"talk": asked}, "So.") == expected


def test_prompt_and_completion_may_be_two_columns():
    task = CustomChats(name="custom", messages_column="prompt", completion_column="completion")
    row = {
        "prompt": [{"role": "user", "content": "Why?"}],
        "completion": [{"role": "assistant", "content": "So."}],
    }
    (made,) = task.examples(row)
    assert (made.messages, made.target) == ((Message(role="user", content="Why?"),), "So.")
    assert task.given_columns == ("prompt",)
    assert task.prompt({"prompt": row["prompt"]}) == replace(made, target="")
    assert task.record({"prompt": row["prompt"]}, "So.") == row
    assert task.canary(["a"], ["b"], number=0).target == "b"


def test_turns_of_tools_are_context():
    call = {"function": {"name": "look", "arguments": '{"place": "shelf"}'}, "id": "1"}
    messages = [
        {"role": "user", "content": "Is it there?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "yes", "tool_call_id": "1"},
        {"role": "assistant", "content": "It is."},
    ]
    (made,) = chats().examples({"talk": messages})
    assert made.target == "It is."
    assert [message.role for message in made.messages] == ["user", "assistant", "tool"]
    assert "shelf" in made.messages[1].more and "shelf" in made.prompt
    share_gpt = [
        {"from": "human", "value": "Is it there?"},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"place": "shelf"}}'},
        {"from": "observation", "value": "yes"},
        {"from": "gpt", "value": "It is."},
    ]
    (same,) = chats().examples({"talk": share_gpt})
    calls = [json.loads(each.messages[1].more)["tool_calls"][0] for each in (same, made)]
    assert calls[1].pop("id") == "1" and calls[0] == calls[1]


def test_a_merged_system_message_begins_the_user_s_first_message():
    task = chats().replace(merge_system=True)
    (made,) = task.examples(talk("system", "user", "assistant"))
    assert made.messages == (Message(role="user", content="system 0\n\nuser 1"),)


@pytest.mark.parametrize(
    "keys", [{"completion_column": "c"}, {"merge_system": True}, {"date": "2026-11-29"}]
)
def test_keys_of_conversations_are_refused_with_another_form(keys):
    assert "task.messages" in refusal(CustomTexts, name="custom", text_template="{a}", **keys)


@pytest.mark.parametrize("day", ["today", "20261129", "2026-13-01"])
def test_a_date_is_a_day(day):
    assert "task.date" in refusal(CustomChats, name="custom", messages_column="m", date=day)
