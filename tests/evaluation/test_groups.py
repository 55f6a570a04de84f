from dpft.evaluation.groups import group_examples
from dpft.tasks.records import Example

EXAMPLES = [
    Example(prompt=group, target=target, group=group)
    for group, target in [("b", "1"), ("a", "2"), ("b", "3"), ("c", "4")]
]


def test_groups_stand_in_order_of_first_occurrence_with_all_their_references():
    groups = group_examples(EXAMPLES)
    assert [(group.input, group.references) for group in groups] == [
        ("b", ("1", "3")),
        ("a", ("2",)),
        ("c", ("4",)),
    ]


def test_limit_counts_groups_and_keeps_their_later_references():
    assert [group.references for group in group_examples(EXAMPLES, limit=1)] == [("1", "3")]


def test_an_empty_target_is_a_reference_only_where_there_is_no_other():
    texts = [("a", ""), ("a", "1"), ("b", "")]
    groups = group_examples([Example(prompt="x", target=t, group=g) for g, t in texts])
    assert [group.references for group in groups] == [("1",), ("",)]
