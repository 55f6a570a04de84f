import json
from dataclasses import replace

import pytest

from dpft.tasks.base import LabeledExample, chosen_task_class
from dpft.tasks.custom import ChatExample, CustomChats, CustomLabels, CustomTexts, Message
from dpft.tasks.templates import spelled
from tests.rejections import rejects
from tests.tasks.test_conf import built

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
def test_other_combinations_are_rejected(given):
    with rejects("task"):
        chosen_task_class({"name": "custom", **dict.fromkeys(given, "{x}")})


PAIR = {"prompt": "Q: {question}", "target": "{answer}"}
PLAIN = {"text": "{a}"}
LABELED = {"text": "{text}", "label": "mood", "labels": ["bad", "good"]}


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (PAIR | {"labels": ["a", "b"]}, "task.label"),
        (PAIR | {"prompt": "{q"}, "task.prompt"),
        (PAIR | {"target": "yes"}, "task.target"),
        (LABELED | {"text": "{a.b}"}, "task.text"),
        (LABELED | {"labels": []}, "task.labels"),
        (LABELED | {"objective": "infilling"}, "task.template"),
        (PAIR | {"label": "mood", "labels": ["a", "b"]}, "task.label"),
        (PAIR | {"label": "answer"}, "task.labels"),
        (PAIR | {"learn_prompt": True, "prompt": "{question}"}, "task.prompt"),
        (PLAIN | {"learn_prompt": True}, "task.learn_prompt"),
        (LABELED | {"learn_prompt": True}, "task.learn_prompt"),
        ({"messages": "talk", "json_weights": [2.0]}, "task.json_weights"),
        (PAIR | {"json_weights": [1.0, 0.0]}, "task.json_weights[1]"),
        (PLAIN | {"completion": "c"}, "task.messages"),
        (PLAIN | {"merge_system": True}, "task.messages"),
        (PLAIN | {"date": "2026-11-29"}, "task.messages"),
        ({"messages": "m", "date": "20261129"}, "task.date"),
        ({"messages": "m", "date": "2026-13-01"}, "task.date"),
    ],
)
def test_a_bad_setting_is_rejected_by_its_key(settings, key):
    with rejects(key):
        built({"name": "custom", **settings})


def test_a_written_label_that_is_none_makes_no_row_and_a_wrong_one_of_a_file_is_rejected():
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
    with rejects("mood") as faults:
        labeled.examples({"mood": "pgative", "text": "Good."})
    assert "pgative" not in repr(faults), "the row is private"


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


def test_the_metrics_are_those_of_the_form_unless_given():
    two, three = labels(), labels(labels=("a", "b", "c"))
    written = ("bleu", "rouge_l", "perplexity", "distinct_1", "distinct_2", "mean_length")
    assert texts().metrics == chats().metrics == written
    assert plain("{a}").metrics == ("perplexity",)
    assert (two.metrics, three.metrics) == (("accuracy", "f1"), ("accuracy",))
    assert texts(metrics=("bleu",)).metrics == ("bleu",)


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
    with rejects("mood"):
        stars.label(0)
    assert labels(labels=("-1", "1")).label(-1) == 0.0
    assert labels(labels=("false", "true")).label(True) == 1.0


@pytest.mark.parametrize("value", [SECRET, None, "", 2, -1, [SECRET], float("nan"), 1e400])
def test_a_label_that_is_no_class_is_rejected_and_never_quoted(value):
    with rejects("mood") as faults:
        labels().label(value)
    assert SECRET not in repr(faults)
    assert spelled(value) not in ("bad", "good")


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


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        [],
        None,
        [SECRET],
        [{"role": SECRET, "content": "x"}],
        [{"role": "user", "content": [SECRET]}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "image", "text": SECRET}]}],
        [USER | {"name": "\ud800"}],
        [USER | {"tool_calls": [SECRET]}],
        [USER | {"tool_calls": 5}],
        [USER, {"role": "assistant", "tool_calls": [{"function": {"name": SECRET}}]}],
        [{"role": "user", "content": "x\ud800"}],
        [{"role": "user", "content": SECRET}],
        [{"role": "assistant", "content": SECRET}],
    ],
)
def test_malformed_messages_are_rejected_and_never_quoted(value):
    with rejects("talk") as faults:
        chats().examples({"talk": value})
    assert SECRET not in repr(faults)


def test_infilling_needs_the_template_of_its_kind_of_model_alone():
    words = {"a": "x", "b": "y"}
    causal = labels(
        labels=("a", "b"),
        objective="infilling",
        causal_template="<S1> is [MASK]",
        label_words=words,
    )
    assert causal.blank_before_mask(causal=True)
    with rejects("task.template"):
        causal.blank_before_mask(causal=False)


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
