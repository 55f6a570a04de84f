"""Planted faults: what a model learns from a text."""

from tests.planted.fault import Edit, Fault

TEXT = "tests/guarantees/test_text.py"
GENERATION = f"{TEXT}::test_a_generative_model_learns_each_target_and_the_end_of_its_text"
LONG_PROMPT = f"{TEXT}::test_a_long_prompt_is_cut_at_its_end_and_the_target_is_whole"
LABEL_WORDS = f"{TEXT}::test_a_label_word_is_the_token_that_follows_a_blank"
MASKED = f"{TEXT}::test_a_masked_model_reads_no_padding"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="text/prompt-learned",
        breaks="The loss is that of the target, given the prompt.",
        edits=(
            Edit(
                "dpft/data/encoding.py",
                '    ignored_prompt = np.where(_flags(examples, "learns_prompt"), np.minimum(1, prompts)',
                "    ignored_prompt = np.where(np.ones_like(is_empty), np.minimum(1, prompts)",
            ),
        ),
        tests=(GENERATION, LONG_PROMPT),
    ),
    Fault(
        name="text/loss-averaged-over-the-batch",
        breaks="The loss of a row does not depend on the other rows of its batch.",
        edits=(
            Edit(
                "dpft/models/losses.py",
                "return nll / tokens.clamp(min=1) if mean else nll, tokens",
                "return nll * len(nll) / tokens.sum().clamp(min=1) if mean else nll, tokens",
            ),
        ),
        tests=(GENERATION,),
        stops_private_runs=True,
    ),
    Fault(
        name="text/target-not-shifted",
        breaks="A causal model predicts each token from the tokens before it.",
        edits=(
            Edit(
                "dpft/models/losses.py",
                "return functional.pad(labels[:, 1:], (0, 1), value=filling)",
                "return labels",
            ),
        ),
        tests=(GENERATION,),
    ),
    Fault(
        name="text/end-of-text-not-learned",
        breaks="A model learns where a text ends.",
        edits=(
            Edit(
                "dpft/data/encoding.py",
                "    return lists.values, lists.bounds[places], lengths\n",
                "    lengths[:, END] = 0\n    return lists.values, lists.bounds[places], lengths\n",
            ),
        ),
        tests=(GENERATION, LONG_PROMPT),
    ),
    Fault(
        name="text/padding-learned",
        breaks="The loss of a row does not depend on how far its batch is padded.",
        edits=(
            Edit(
                "dpft/data/batches.py",
                "            return _padded(targets, longest, IGNORED_LABEL), {}",
                "            return _padded(targets, longest, self.pad_token_id), {}",
            ),
        ),
        tests=(GENERATION,),
        stops_private_runs=True,
    ),
    Fault(
        name="text/target-cut-in-favor-of-the-prompt",
        breaks="A row that is too long loses tokens of its prompt, and its target stays whole.",
        edits=(
            Edit(
                "dpft/data/encoding.py",
                '    _cut_targets(begins, lengths, max_length, _flags(examples, "cut_target_end"))',
                "    left = np.maximum(1, max_length - lengths[:, :TARGET].sum(axis=1))\n"
                "    _cut_targets(begins, lengths, left, np.ones_like(is_empty))",
            ),
        ),
        tests=(LONG_PROMPT,),
    ),
    Fault(
        name="text/decoder-input-not-shifted",
        breaks="A decoder predicts each token from the tokens before it.",
        edits=(
            Edit(
                "dpft/data/batches.py",
                "shifted = [[self.decoder_start_token_id, *target[:-1]] for target in targets]",
                "shifted = [list(target) for target in targets]",
            ),
        ),
        tests=(f"{TEXT}::test_a_decoder_reads_its_target_one_step_late",),
    ),
    Fault(
        name="text/padding-attended",
        breaks="What a model reads of a row does not depend on how far its batch is padded.",
        edits=(
            Edit(
                "dpft/data/batches.py",
                '"attention_mask": _padded([[1] * length for length in lengths], longest, 0),',
                '"attention_mask": _padded([[1] * length for length in lengths], longest, 1),',
            ),
        ),
        tests=(MASKED,),
    ),
    Fault(
        name="text/label-words-of-another-tokenizer",
        breaks="The ids of label words come from the tokenizer that reads the records.",
        edits=(
            Edit(
                "dpft/data/classification_rows.py",
                "        return spelled[0]\n",
                """        other = sorted(tokenizer.get_vocab())  # the same words in another order
        return other.index(tokenizer.convert_ids_to_tokens(spelled[0]))
""",
            ),
        ),
        tests=(LABEL_WORDS, MASKED),
    ),
    Fault(
        name="text/label-words-without-the-blank",
        breaks="A label word is the token that the tokenizer reads at its place in the template.",
        edits=(
            Edit(
                "dpft/data/classification_rows.py",
                'token_ids([f" {word}" if after_blank else word, word], tokenizer)',
                "token_ids([word, word], tokenizer)",
            ),
        ),
        tests=(LABEL_WORDS,),
    ),
    Fault(
        name="text/label-word-read-before-the-mask",
        breaks="A masked model predicts a label word at the mask.",
        edits=(
            Edit(
                "dpft/data/classification_rows.py",
                "answer = len(start) + sum(map(len, cut[:before]))",
                "answer = sum(map(len, cut[:before]))",
            ),
        ),
        tests=(MASKED,),
    ),
    Fault(
        name="text/held-out-rows-learned",
        breaks="No row that is held out to be scored is trained on.",
        edits=(
            Edit(
                "dpft/commands/splits.py",
                "return Division(kept=kept, scored=scored, key=key,",
                "return Division(kept=range(len(data.examples)), scored=scored, key=key,",
            ),
        ),
        tests=(f"{TEXT}::test_no_row_that_was_held_out_is_learned",),
    ),
    Fault(
        name="text/bound-of-rows-per-unit-ignored",
        breaks="At most privacy.records_per_unit rows of a unit are trained on.",
        edits=(
            Edit(
                "dpft/data/training_records.py",
                "kept.append(sorted(at for _, at in numbered[:records_per_unit]))",
                "kept.append(sorted(at for _, at in numbered))",
            ),
        ),
        tests=(f"{TEXT}::test_rows_beyond_the_bound_of_a_unit_are_not_learned",),
    ),
    Fault(
        name="text/card-with-private-scores",
        breaks="A model card has scores of public splits only.",
        edits=(
            Edit(
                "dpft/reports/card.py",
                "entry for entry in record.after() if entry.split_is_public and entry.metrics",
                "entry for entry in record.after() if entry.metrics",
            ),
        ),
        tests=(
            "tests/reports/test_card.py"
            "::test_the_card_names_no_folder_and_no_score_of_a_private_split",
        ),
    ),
)
