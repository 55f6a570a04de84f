import torch

from dpft.data.collation import collate
from dpft.data.tokenization import TokenizedExample

SHORT = TokenizedExample(input_ids=[5, 6], labels=[-100, 6])
LONG = TokenizedExample(input_ids=[7, 8, 9], labels=[-100, 8, 9])


def test_shorter_examples_are_padded_on_the_right_without_attention_or_loss():
    batch = collate([SHORT, LONG], pad_token_id=0)
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.labels.tolist() == [[-100, 6, -100], [-100, 8, 9]]


def test_every_row_has_position_ids_of_its_own():
    batch = collate([SHORT, LONG], pad_token_id=0)
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert batch.inputs["position_ids"].stride(0) == 3  # not one row broadcast over the batch


def test_every_tensor_is_int64_and_moves_with_the_batch():
    batch = collate([SHORT], pad_token_id=0).to("meta")
    tensors = [*batch.inputs.values(), batch.labels]
    assert {(t.dtype, t.device.type, tuple(t.shape)) for t in tensors} == {
        (torch.int64, "meta", (1, 2))
    }


def test_the_length_of_a_batch_is_its_number_of_examples():
    assert len(collate([SHORT, LONG, LONG], pad_token_id=0)) == 3
