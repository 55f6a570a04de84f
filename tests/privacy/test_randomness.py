import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpft.privacy.cipher import AgingKey, secret_key
from dpft.privacy.randomness import (
    PURPOSES,
    DropoutStream,
    Randomness,
    ViewStream,
    fill_cpu_state,
    make_randomness,
    private_dropout,
    restore_randomness,
)
from tests.privacy.linear_complexity import ORDER_OF_MT19937, linear_complexity
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


def stream(key: bytes = bytes(32), step: int = 0) -> DropoutStream:
    made = DropoutStream(CPU, AgingKey(key))
    made.begin_step(step)
    return made


@pytest.fixture(autouse=True)
def torchs_generator_is_restored():
    with torch.random.fork_rng():
        yield


def kept(dropout: DropoutStream, size: int, p: float = 0.5) -> np.ndarray:
    return (dropout.dropout(torch.ones(size), p) != 0).numpy()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1 / 3])
def test_values_are_dropped_at_the_rate_asked_for_and_the_others_scaled(p):
    dropped = stream().dropout(torch.full((1000, 400), 3.0), p)
    share = (dropped == 0).double().mean()
    assert abs(share - p) < 4 * (p * (1 - p) / 400_000) ** 0.5 + 2**-17
    assert torch.allclose(dropped[dropped != 0], torch.tensor(3 / (1 - p)))


def test_gradients_pass_where_values_do():
    values = torch.ones(1000, requires_grad=True)
    out = stream().dropout(values, 0.25)
    out.sum().backward()
    assert torch.equal(values.grad, out.detach())


@pytest.mark.parametrize(
    "arguments", [{"training": False}, {"p": 0.0}, {"p": 1.0}, {"p": 0.5, "inplace": True}], ids=str
)
def test_the_other_ways_to_call_it_do_what_torchs_do(arguments):
    values = torch.ones(64)
    out = stream().dropout(values, **arguments)
    if arguments.get("inplace"):
        assert out is values and 10 < int((out == 0).sum()) < 54
    else:
        assert torch.equal(out, F.dropout(torch.ones(64), **arguments))


def test_trust_rule_4_no_linear_recurrence_explains_the_masks():
    """Torch's own masks are MT19937's: every other bit of it, found by the same attack."""
    bits = kept(stream(secret_key("dropout")), 41_000).astype(int).tolist()
    assert abs(linear_complexity(bits) - 20_500) < 50
    own = F.dropout(torch.ones(41_000), 0.5).bool().int().tolist()
    assert linear_complexity(own) <= ORDER_OF_MT19937 + 1


def test_trust_rule_4_dropout_is_keyed_the_runs_key_decides_every_mask_and_generator():
    """A generator that was never keyed would give what torch.manual_seed left it with."""
    draws = []
    for seed, key in ((0, b"a" * 32), (0, b"b" * 32), (1, b"b" * 32)):
        torch.manual_seed(seed)
        with private_dropout(DropoutStream(CPU, AgingKey(key))) as dropout:
            dropout.begin_step(0)
            draws.append((nn.Dropout(0.5)(torch.ones(64)).tolist(), torch.rand(8).tolist()))
    first, second, third = draws
    assert first[0] != second[0] and first[1] != second[1]
    assert second == third


def test_masks_differ_by_call_and_by_step_and_are_equal_after_the_state_is_restored():
    dropout = stream()
    state = torch.get_rng_state()
    first, second = kept(dropout, 1000), kept(dropout, 1000)
    torch.set_rng_state(state)
    assert np.array_equal(kept(dropout, 1000), first)
    rows = [first, second, kept(stream(step=1), 1000)]
    correlations = np.corrcoef(rows)[np.triu_indices(3, k=1)]
    assert np.abs(correlations).max() < 4 / 1000**0.5


def test_inside_the_block_every_dropout_layer_draws_secret_masks_and_outside_none_does():
    own, before = F.dropout, torch.get_rng_state()
    with private_dropout(DropoutStream(CPU, AgingKey(bytes(32)))) as dropout:
        dropout.begin_step(0)
        layer = nn.Dropout(0.5)(torch.ones(64))
        assert F.dropout is not own
    assert F.dropout is own and torch.equal(torch.get_rng_state(), before)
    assert torch.equal(layer, stream().dropout(torch.ones(64), 0.5))


def test_the_functional_form_is_restored_when_the_block_fails():
    own = F.dropout
    with pytest.raises(RuntimeError), private_dropout(stream()):
        raise RuntimeError
    assert F.dropout is own


def test_gradient_checkpointing_repeats_the_masks():
    values = torch.ones(500, requires_grad=True)
    with private_dropout(stream()):
        out = checkpoint(lambda x: F.dropout(x, 0.5) * x, values, use_reentrant=False)
        out.sum().backward()
    assert torch.equal(values.grad != 0, out.detach() != 0)


def test_inside_a_torch_func_transform_masks_are_torchs_own():
    with private_dropout(stream()):
        rows = torch.func.vmap(lambda x: F.dropout(x, 0.5), randomness="different")(
            torch.ones(3, 64)
        )
    assert not torch.equal(rows[0], rows[1])


def test_the_whole_generator_state_is_the_secret_bits():
    bits = np.random.default_rng(0).bytes(4 * 624)
    generator = torch.Generator()
    fill_cpu_state(generator, bits)
    words = generator.get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
    assert words.astype(np.uint32).tobytes() == bits and (words < 2**32).all()
    draws = torch.randn(100_000, generator=generator).numpy()
    assert stats.kstest(draws, "norm").pvalue > 1e-3


@pytest.mark.slow
def test_compiled_code_keeps_its_own_masks_and_breaks_no_graph():
    def twice(values: torch.Tensor) -> torch.Tensor:
        return F.dropout(values * 2, 0.5)

    with private_dropout(stream()):
        out = torch.compile(twice, backend="eager", fullgraph=True)(torch.ones(64))
    assert set(out.tolist()) == {0.0, 4.0}


def test_bits_are_of_the_step_and_the_record() -> None:
    stream = ViewStream(AgingKey(secret_key("views", 3)))
    drawn = {(step, record): stream.bits(step, record, 32) for step in (0, 1) for record in (0, 7)}
    assert len(set(drawn.values())) == 4
    assert stream.bits(1, 7, 32) == drawn[1, 7]
    assert stream.bits(1, 7, 64)[:32] == drawn[1, 7]


def test_records_beyond_four_thousand_million_have_bits_of_their_own() -> None:
    stream = ViewStream(AgingKey(secret_key("views", 3)))
    assert stream.bits(0, 2**32 + 5, 16) != stream.bits(0, 5, 16)


def test_the_bits_of_a_forgotten_step_are_gone() -> None:
    key = AgingKey(secret_key("views"))
    key.forget(2)
    with pytest.raises(ValueError, match="forgotten"):
        ViewStream(key).bits(1, 0, 8)
