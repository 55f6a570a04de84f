import numpy as np
import torch

from dpft.privacy.keys import AgingKey
from dpft.privacy.randomness import PURPOSES, Randomness, make_randomness, restore_randomness
from tests.privacy.noise_blocks import block_noise

CPU = torch.device("cpu")


def sources(keys) -> Randomness:
    return Randomness(keys, CPU, group_key=bytes(32), reproducible=True)


def drawn(randomness, step: int = 0) -> list[list[float]]:
    """What each source gives at a step."""
    randomness.dropout.begin_step(step)
    mask = randomness.dropout.dropout(torch.ones(64), 0.5)
    return [
        randomness.sampling.words(8, step=step).tolist(),
        block_noise(randomness.noise, 8, step=step).tolist(),
        mask.tolist(),
        torch.rand(8).tolist(),
    ]


def test_trust_rule_4_two_runs_never_share_randomness():
    with torch.random.fork_rng():
        first, second = make_randomness(CPU), make_randomness(CPU)
        pairs = zip(drawn(first), drawn(second), strict=True)
        assert all(one != other for one, other in pairs)
    assert not first.reproducible
    assert {key.at(0) for key in first._keys.values()}.isdisjoint(
        key.at(0) for key in second._keys.values()
    )
    assert first.group_key != second.group_key


def test_trust_rule_4_a_noise_seed_makes_the_run_reproducible_and_says_so():
    with torch.random.fork_rng():
        first, second = make_randomness(CPU, noise_seed=1), make_randomness(CPU, noise_seed=1)
        assert drawn(first) == drawn(second)
        assert drawn(first) != drawn(make_randomness(CPU, noise_seed=1, after=3))
    assert first.reproducible and second.reproducible


def test_trust_rule_4_each_purpose_has_a_key_of_its_own():
    for randomness in (make_randomness(CPU), make_randomness(CPU, noise_seed=1)):
        assert set(randomness._keys) == {"sampling", "noise", "dropout", "views"} == set(PURPOSES)
        keys = {key.at(0) for key in randomness._keys.values()}
        assert len(keys | {randomness.group_key}) == 5


def test_trust_rule_4_training_seeds_do_not_reach_any_source():
    draws = []
    with torch.random.fork_rng():
        for _ in range(2):
            torch.manual_seed(0)
            np.random.seed(0)
            draws.append(drawn(make_randomness(CPU)))
    assert all(one != other for one, other in zip(*draws, strict=True))


def test_sources_go_on_from_the_state_of_a_step_with_new_draws_at_each():
    with torch.random.fork_rng():
        randomness = make_randomness(CPU)
        first = drawn(randomness, 3)
        state = randomness.state(4)
        second = drawn(randomness, 4)
        assert drawn(restore_randomness(CPU, state), 4) == second
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_trust_rule_4_a_stolen_state_tells_nothing_of_the_steps_before():
    randomness = make_randomness(CPU)
    earlier = [key.at(step).hex() for key in randomness._keys.values() for step in range(4)]
    state = randomness.state(4)
    randomness.forget(4)
    assert not any(key in str(state) for key in earlier)
    stolen = restore_randomness(CPU, state)
    assert stolen.group_key == randomness.group_key, "groups are those of the whole stream"
    for each in (stolen, randomness):
        for key in each._keys.values():
            assert key.step == 4


def test_trust_rule_4_each_source_draws_from_the_key_of_its_own_purpose_and_step():
    """So none of them is moved by another's key, and each by its own, at every step."""
    with torch.random.fork_rng():
        keys = {name: AgingKey(bytes([number]) * 32) for number, name in enumerate(PURPOSES)}
        base = drawn(sources(keys), 3)
        for place, name in enumerate(("sampling", "noise", "dropout")):
            other = AgingKey(b"x" * 32)
            changed = drawn(sources(keys | {name: other}), 3)
            moved = [one != two for one, two in zip(base, changed, strict=True)]
            # torch's own generators are dropout's as well
            assert moved == [n == place or (n == 3 and name == "dropout") for n in range(4)]
            late = AgingKey(keys[name].at(3), step=3)
            assert drawn(sources(keys | {name: late}), 3) == base


def test_a_new_stream_has_groups_of_its_own():
    keys = [make_randomness(CPU, 1, after=steps).group_key for steps in (0, 3, 4)]
    assert len({*keys, make_randomness(CPU).group_key}) == 4
