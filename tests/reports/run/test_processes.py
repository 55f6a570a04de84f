from dataclasses import replace

from dpft.parallel.described import described, sharding
from dpft.records.promises import PrivateRun, Process
from dpft.reports.run.provenance import network_sentences, process_rows, processes_of
from tests.reports.run.plain import privacy_of
from tests.reports.run.test_privacy_record import record as private

ALONE = Process(**described(1, on_one_node=True))
HERE, ACROSS = (Process(**described(2, on_one_node=here)) for here in (True, False))


def run(*sessions: Process) -> PrivateRun:
    return replace(privacy_of(private()), processes=processes_of(sessions))


def test_a_run_of_one_process_says_nothing_of_processes() -> None:
    assert processes_of([ALONE, ALONE]) is None
    assert process_rows(run()) == network_sentences(run()) == []


def test_each_group_of_processes_that_took_steps_is_named_once() -> None:
    assert processes_of([ALONE, HERE, HERE]) == (ALONE, HERE)
    assert [name for name, _ in process_rows(run(ALONE, HERE, HERE))] == ["processes", "processes"]


def test_what_epsilon_assumes_of_a_network_is_said_where_there_was_one() -> None:
    assert network_sentences(run(ALONE, HERE)) == []
    (sentence,) = network_sentences(run(HERE, ACROSS))
    assert "trusted or encrypted network" in sentence
    assert "loopback" in str(process_rows(run(HERE)))


def test_what_each_process_held_is_said() -> None:
    in_shards = replace(HERE, sharding=sharding(2, 1, accumulates_shards=True))
    (_, whole), (_, cut) = process_rows(run(HERE, in_shards))
    assert whole.startswith("2, each with the whole model (sharding: none);")
    assert "2, each with a shard of the model (sharding: fsdp, 2 shards, sums" in cut
