from dpft.parallel.described import described, sharding
from dpft.reports.run.provenance import network_sentences, process_record, process_rows

ALONE = described(1, on_one_node=True)
HERE, ACROSS = (described(2, on_one_node=here) for here in (True, False))


def test_a_run_of_one_process_says_nothing_of_processes() -> None:
    assert process_record([ALONE, ALONE]) == {}
    assert process_rows({}) == network_sentences({}) == []


def test_each_group_of_processes_that_took_steps_is_named_once() -> None:
    record = process_record([ALONE, HERE, HERE])
    assert record == {"processes": [ALONE, HERE]}
    assert [name for name, _ in process_rows(record)] == ["processes", "processes"]


def test_what_epsilon_assumes_of_a_network_is_said_where_there_was_one() -> None:
    assert network_sentences(process_record([ALONE, HERE])) == []
    (sentence,) = network_sentences(process_record([HERE, ACROSS]))
    assert "trusted or encrypted network" in sentence
    assert "loopback" in str(process_rows({"processes": [HERE]}))


def test_what_each_process_held_is_said() -> None:
    in_shards = HERE | {"sharding": sharding(2, 1, accumulates_shards=True)}
    (_, whole), (_, cut) = process_rows(process_record([HERE, in_shards]))
    assert whole.startswith("2, each with the whole model (sharding: none);")
    assert "2, each with a shard of the model (sharding: fsdp, 2 shards, sums" in cut
