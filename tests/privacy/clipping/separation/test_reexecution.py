"""Snapshots of a model's state, and runs in which nothing is drawn."""

import functools
import weakref
from array import array
from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils import _pytree as pytree
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from dpft.privacy.clipping.recorder import WholeBatchAttention
from dpft.privacy.clipping.separation.reexecution import (
    DeterministicMode,
    HoldsItself,
    RandomState,
    batch_size_of,
    evaluating,
    knows_no_order,
    map_tensors,
    named_tensors,
    one_order_of_addition,
    random_state_restored_on_failure,
    sealed_types,
    state_preserved,
    take_rows,
)

CPU = torch.device("cpu")


def test_what_is_drawn_after_restoring_was_drawn_after_the_state_was_taken():
    state = RandomState.now(CPU)
    expected = torch.rand(4)
    torch.rand(3)
    state.restore()
    assert torch.equal(torch.rand(4), expected)


def test_a_failed_attempt_gives_its_numbers_back_and_a_successful_one_keeps_them():
    state = RandomState.now(CPU)
    first, second = torch.rand(4), torch.rand(4)
    state.restore()
    with pytest.raises(ZeroDivisionError), random_state_restored_on_failure(CPU):
        torch.rand(4)
        raise ZeroDivisionError
    with random_state_restored_on_failure(CPU):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.rand(4), second)


def test_state_is_put_back_after_an_error_too():
    model, before = nn.BatchNorm1d(3), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), state_preserved(model):
        model(torch.randn(4, 3))
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model.running_mean, torch.zeros(3))


def test_evaluation_mode_ends_with_each_modules_own_mode():
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False]


def test_recurrent_layers_drop_nothing_in_evaluation_and_can_still_be_run_back_by_cudnn():
    model = nn.Sequential(nn.LSTM(3, 3, num_layers=2, dropout=0.5), nn.GRU(3, 3).eval())
    with evaluating(model):
        assert [layer.training for layer in model] == [True, True]
        assert [layer.dropout for layer in model] == [0.0, 0.0]
    assert [layer.training for layer in model] == [True, False]
    assert [layer.dropout for layer in model] == [0.5, 0.0]


X = torch.randn(4, 2, 3, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.5),
        nn.AlphaDropout(0.5),
        lambda x: F.dropout(x, p=0.9),
        lambda x: F.dropout2d(x, 0.9, True),
        lambda x: torch.dropout(x, 0.9, True),
    ],
)
def test_dropout_passes_everything_whoever_asks_for_it(drop):
    with DeterministicMode():
        assert torch.equal(drop(X), X)
    assert not torch.equal(drop(X), X)


def test_attention_drops_nothing():
    expected = F.scaled_dot_product_attention(X, X, X)
    with DeterministicMode():
        by_name = F.scaled_dot_product_attention(X, X, X, dropout_p=0.9)
        by_place = F.scaled_dot_product_attention(X, X, X, None, 0.9)
    assert torch.allclose(by_name, expected) and torch.allclose(by_place, expected)


def test_attention_on_the_whole_batch_of_a_map_drops_nothing_either():
    def attend(token, x):
        with WholeBatchAttention(token):
            return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.9)[0]

    with DeterministicMode():
        got = torch.vmap(attend, randomness="different")(torch.zeros(4), X)
    assert torch.allclose(got, F.scaled_dot_product_attention(X, X, X), atol=1e-6)


def test_what_is_drawn_is_the_same_for_every_row_and_moves_no_generator():
    state = torch.get_rng_state()
    with DeterministicMode():
        drawn = [
            torch.rand(3),
            torch.randn_like(X),
            X.clone().uniform_(),
            torch.bernoulli(X.sigmoid()),
        ]
        order = torch.randperm(4)
    assert all(len(each.unique()) == 1 for each in drawn) and order.tolist() == [3, 2, 1, 0]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_callers_own_draws_are_left_where_only_dropout_is_held():
    with DeterministicMode(noise=False):
        assert len(torch.rand(9).unique()) > 1
        assert torch.equal(F.dropout(X, 0.5), X)
    with DeterministicMode():
        seeded = torch.rand(9, generator=torch.Generator().manual_seed(1))
    assert len(seeded.unique()) > 1


@pytest.mark.parametrize("kind, asked", [("cuda", True), ("cpu", False)])
def test_an_accelerators_kernels_add_in_one_order_for_a_while(kind, asked, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with pytest.raises(ZeroDivisionError), one_order_of_addition(torch.device(kind)):
        assert torch.are_deterministic_algorithms_enabled() is asked
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        raise ZeroDivisionError
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_a_kernel_that_knows_no_order_is_told_from_other_errors():
    said = "cumsum_cuda_kernel does not have a deterministic implementation, but you set"
    assert knows_no_order(RuntimeError(said))
    assert not knows_no_order(RuntimeError("CUDA out of memory"))
    assert not knows_no_order(ValueError(said))


ROWS = torch.arange(6.0).view(2, 3)
Pair = namedtuple("Pair", "a b")


class Color(Enum):
    RED = 1


@dataclass
class Node:
    value: object
    others: list = field(default_factory=list)


class Secret:
    __slots__ = ("__rows", "unset")

    def __init__(self, rows):
        self.__rows = rows

    @property
    def __dict__(self):
        return {}


class Liar(dict):
    """Shows nothing of what it holds, and cannot be made by a call."""

    def __init__(self, rows, *, needed):
        dict.__setitem__(self, "rows", rows)

    def items(self):
        return []

    def __iter__(self):
        return iter(())


class Registered:
    def __init__(self, rows):
        self.rows = rows


pytree.register_pytree_node(Registered, lambda kept: ([], kept), lambda _, kept: kept)


def cache():
    made = DynamicCache()
    made.update(ROWS[:, None, None], ROWS[:, None, None], 0)
    return made


OPENED = {
    "dataclass": (Node(ROWS), [".value"]),
    "slots": (Secret(ROWS), ["._Secret__rows"]),
    "liar": (Liar(ROWS, needed=1), ["['rows']"]),
    "registered with pytree": (Registered(ROWS), [".rows"]),
    "namespace": (SimpleNamespace(a={"b": (ROWS,)}), [".a['b'][0]"]),
    "named tuple": (Pair(ROWS, 2), ["[0]"]),
    "user dict": (UserDict(a=ROWS), [".data['a']"]),
    "default dict": (defaultdict(list, a=ROWS), ["['a']"]),
    "ordered dict": (OrderedDict(a=ROWS), ["['a']"]),
    "read-only dict": (MappingProxyType({"a": ROWS}), ["['a']"]),
    "deque": (deque([ROWS], 3), ["[0]"]),
    "results of torch": (torch.max(ROWS, 1), ["[0]", "[1]"]),
    "distribution": (torch.distributions.Normal(ROWS, ROWS + 1), [".loc", ".scale"]),
    "cache": (cache(), [".layers[0].keys", ".layers[0].values"]),
    "model output": (CausalLMOutputWithPast(logits=ROWS), ["['logits']"]),
}


@pytest.mark.parametrize("name", OPENED)
def test_all_tensors_are_found_and_replaced_in_a_copy(name):
    value, places = OPENED[name]
    assert list(named_tensors(value)) == places and sealed_types(value) == {}
    copied = map_tensors(value, lambda _, tensor: tensor[:1])
    assert type(copied) is type(value)
    assert [len(tensor) for tensor in named_tensors(copied).values()] == [1] * len(places)
    assert all(len(tensor) == 2 for tensor in named_tensors(value).values())


def test_the_items_of_a_model_output_stay_its_attributes():
    copied = map_tensors(CausalLMOutputWithPast(logits=ROWS), lambda _, tensor: tensor[:1])
    assert copied.logits is copied["logits"] is copied.to_tuple()[0] and len(copied.logits) == 1


def test_a_packed_sequence_keeps_its_class_and_its_numbers():
    packed = pack_padded_sequence(ROWS[..., None], torch.tensor([3, 2]), True)
    copied = map_tensors(packed, lambda _, tensor: tensor + 0)
    assert torch.equal(copied.data, packed.data) and copied.batch_sizes.tolist() == [2, 2, 1]


def test_cycles_end_and_are_copied_as_cycles():
    node = Node(ROWS)
    node.others += [node, {"back": node}]
    assert list(named_tensors(node)) == [".value"]
    copied = map_tensors(node, lambda _, tensor: tensor[:1])
    assert copied is not node and copied.others[0] is copied and copied.others[1]["back"] is copied
    around = ([],)
    around[0].append(around)
    with pytest.raises(HoldsItself):
        map_tensors(around, lambda _, tensor: tensor)


def test_a_cache_is_copied_without_tensors_too_and_an_object_is_not():
    empty, name = DynamicCache(), SimpleNamespace(name="name")
    given, kept = map_tensors([empty, name], lambda _, tensor: tensor)
    assert given is not empty and given.layers is not empty.layers and kept is name


def closed():
    return lambda: (lambda rows: lambda: rows)(ROWS)


def attributed():
    tensor = torch.zeros(2)
    tensor.rows = ROWS
    return tensor


class Number(float):
    pass


def number():
    made = Number(1.0)
    made.rows = ROWS
    return made


SEALED = {
    "closure": (lambda: (lambda rows: lambda: rows)(ROWS), "function"),
    "default of a function": (lambda: lambda rows=ROWS: rows, "function"),
    "class of its own": (lambda: type("Local", (), {"rows": ROWS}), "type"),
    "generator": (lambda: (row for row in ROWS), "generator"),
    "iterator": (lambda: iter([ROWS]), "list_iterator"),
    "partial": (lambda: functools.partial(torch.add, ROWS), "partial"),
    "method": (lambda: Node(ROWS).__repr__, "method"),
    "method of a tensor": (lambda: ROWS.clone, "builtin_function_or_method"),
    "weak reference": (lambda: weakref.ref(ROWS), "ReferenceType"),
    "numpy": (lambda: ROWS.numpy(), "ndarray"),
    "array": (lambda: array("d", [1.0]), "array"),
    "module": (lambda: torch.nn.Identity(), "Identity"),
    "slice": (lambda: slice(ROWS, None), "slice"),
    "exception": (lambda: ValueError(ROWS), "ValueError"),
    "key": (lambda: {(1, ROWS): 1}, "tuple"),
    "factory": (lambda: defaultdict(lambda rows=ROWS: rows), "function"),
    "number with attributes": (number, "Number"),
    "tensor with attributes": (attributed, "Tensor with attributes"),
}


@pytest.mark.parametrize("name", SEALED)
def test_what_cannot_be_opened_is_named_wherever_it_is(name):
    make, kind = SEALED[name]
    assert list(sealed_types(make()).values()) == [kind]
    assert list(sealed_types([Node({"a": make()})]).values()) == [kind]


@pytest.mark.parametrize(
    "value",
    [
        *(None, 1, 2.5, "text", b"", range(3), torch.float32, torch.device("cpu"), ROWS.shape),
        *(Color.RED, {Color.RED: 1}, dict, Node, torch.nn.functional.gelu, len, closed),
        *(Counter("aab"), frozenset({1}), np.float64(1), object(), torch, Number(1.0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_names_and_what_is_global_are_plain(value):
    assert sealed_types(value) == {} and named_tensors(value) == {}
    assert map_tensors(value, lambda _, tensor: tensor) == value


def test_the_first_tensor_with_rows_says_how_many_examples_there_are():
    assert batch_size_of(((), {"scale": torch.tensor(2.0), "x": torch.ones(5, 2)})) == 5
    assert batch_size_of(((None, "text"), {})) == 0


def test_rows_are_repeated_until_there_are_enough_and_what_has_another_size_stays():
    shared, scalar = torch.ones(5), torch.tensor(2.0)
    (rows, *others), kwargs = take_rows(
        ((torch.tensor([[1], [2]], dtype=torch.float), shared, scalar), {"text": "text"}), 3
    )
    assert rows.tolist() == [[1.0], [2.0], [1.0]]
    assert others[0] is shared and others[1] is scalar and kwargs == {"text": "text"}
