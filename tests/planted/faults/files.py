"""Planted faults: files."""

from tests.planted.fault import Edit, Fault

TESTS = "tests/guarantees/test_private_files.py::"
RECEIVED = "tests/guarantees/test_received_files.py::"
STATE = "tests/privacy/test_release_guard.py::"
SAME_PUBLIC_FILES = (
    f"{TESTS}test_other_records_and_draws_change_nothing_in_public_except_the_weights"
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="files/private-scores-in-public-metrics",
        breaks="Scores of a split that is not public are only in private/.",
        edits=(
            Edit(
                "dpft/reports/run_record.py",
                "    if not entry.is_private:\n        return entry\n    rounded = ",
                "    if not entry.is_private or not rounded:\n        return entry\n    rounded = ",
            ),
        ),
        tests=(f"{TESTS}test_private_scores_are_only_in_private", SAME_PUBLIC_FILES),
    ),
    Fault(
        name="files/private-scores-in-the-log-of-a-job",
        breaks="The log of a submitted evaluation contains no score of a private split.",
        edits=(
            Edit(
                "dpft/commands/evaluate.py",
                "    is_logged = rank_environment.submitted_task() is not None\n",
                "    is_logged = False\n",
            ),
        ),
        tests=(
            f"{TESTS}test_only_the_output_of_eval_has_private_scores_and_the_log_of_a_submitted"
            "_job_has_none",
        ),
    ),
    Fault(
        name="files/private-texts-in-public-predictions",
        breaks="Texts of a split that is not public are only in private/.",
        edits=(
            Edit(
                "dpft/commands/scoring.py",
                "    shown = folder if public else private_folder(folder)\n",
                "    shown = folder\n",
            ),
        ),
        tests=(SAME_PUBLIC_FILES,),
    ),
    Fault(
        name="files/losses-in-a-public-log",
        breaks="Training losses are only in private/diagnostics.jsonl.",
        edits=(
            Edit(
                "dpft/training/diagnostics.py",
                "        if self._shows_losses and statistics.losses:\n",
                "        if statistics.losses:\n",
            ),
        ),
        tests=(
            f"{TESTS}test_no_loss_and_no_norm_is_public",
            f"{TESTS}test_nothing_but_the_ledger_appears_in_public_between_two_steps",
        ),
    ),
    Fault(
        name="files/drawn-batch-sizes-in-a-public-log",
        breaks="The size of a drawn batch is only in private/diagnostics.jsonl.",
        edits=(
            Edit(
                "dpft/training/loop.py",
                "    statistics = StepStatistics(step=step, batch_size=len(indices))\n",
                "    statistics = StepStatistics(step=step, batch_size=len(indices))\n"
                '    logging.getLogger(__name__).info("batch of %d examples", len(indices))\n',
            ),
            Edit("dpft/training/loop.py", "import math\n", "import logging\nimport math\n"),
        ),
        tests=(
            SAME_PUBLIC_FILES,
            f"{TESTS}test_nothing_but_the_ledger_appears_in_public_between_two_steps",
        ),
    ),
    Fault(
        name="files/durations-of-single-steps-are-public",
        breaks="No public line shows the duration of fewer than ten steps.",
        edits=(Edit("dpft/training/progress_record.py", "WINDOW = 10\n", "WINDOW = 1\n"),),
        tests=(f"{TESTS}test_nothing_but_the_ledger_appears_in_public_between_two_steps",),
    ),
    Fault(
        name="files/a-progress-line-for-each-step",
        breaks="progress.jsonl has no line between two boundaries of ten steps.",
        edits=(
            Edit(
                "dpft/training/progress.py",
                "        if not windows.shows(public.step):\n            return\n",
                "",
            ),
        ),
        tests=(f"{TESTS}test_nothing_but_the_ledger_appears_in_public_between_two_steps",),
    ),
    Fault(
        name="files/checkpoint-outside-private",
        breaks="Checkpoints, which contain keys and unreleased weights, are below private/.",
        edits=(
            Edit(
                "dpft/run_folder.py",
                'CHECKPOINTS = f"{PRIVATE}/checkpoints"\n',
                'CHECKPOINTS = "checkpoints"\n',
            ),
        ),
        tests=(
            f"{TESTS}test_weights_are_public_only_in_the_released_model",
            f"{TESTS}test_nothing_but_the_ledger_appears_in_public_between_two_steps",
        ),
    ),
    Fault(
        name="files/private-folder-readable-by-others",
        breaks="private/ has mode 0700.",
        edits=(
            Edit(
                "dpft/run_folder.py",
                "        folder.mkdir(mode=0o700, exist_ok=True)\n",
                "        folder.mkdir(exist_ok=True)\n",
            ),
            Edit("dpft/run_folder.py", "    folder.chmod(0o700)\n", ""),
        ),
        tests=(f"{TESTS}test_only_the_owner_can_read_private_files_at_any_time",),
    ),
    Fault(
        name="files/private-file-readable-by-others",
        breaks="Files below private/ have mode 0600.",
        edits=(
            Edit(
                "dpft/training/checkpoint.py",
                "    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)\n",
                "    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)\n",
            ),
        ),
        tests=(f"{TESTS}test_only_the_owner_can_read_private_files_at_any_time",),
    ),
    Fault(
        name="files/traceback-quotes-a-record",
        breaks="The message of an unexpected error, which may quote a record, is not printed.",
        edits=(
            Edit(
                "dpft/commands/exit_codes.py",
                "    withheld = withhold and (records_were_read() or is_other_rank())\n",
                "    withheld = withhold and is_other_rank()\n",
            ),
        ),
        tests=(f"{TESTS}test_a_traceback_on_the_terminal_quotes_no_record",),
    ),
    Fault(
        name="files/keys-not-deleted-at-the-end",
        breaks="The secret keys are deleted when the run has ended.",
        edits=(
            Edit(
                "dpft/training/training_run.py",
                "            self._ledger.ledger.close(released=released)\n"
                "        delete_generator_states(self.folder / CHECKPOINTS)\n",
                "            self._ledger.ledger.close(released=released)\n",
            ),
        ),
        tests=(f"{TESTS}test_keys_change_with_every_checkpoint_and_are_deleted_at_the_end",),
    ),
    Fault(
        name="files/keys-not-advanced-per-step",
        breaks="The keys in a checkpoint do not reveal the noise of the steps before.",
        edits=(
            Edit(
                "dpft/privacy/cipher.py",
                "            key = hmac.digest(key, _NEXT_STEP, hashlib.sha256)\n",
                "            pass  # The address of a draw contains its step.\n",
            ),
        ),
        tests=(f"{TESTS}test_keys_change_with_every_checkpoint_and_are_deleted_at_the_end",),
    ),
    Fault(
        name="files/written-in-place",
        breaks="A file is written under a temporary name and renamed, so it is never half-written.",
        edits=(
            Edit(
                "dpft/run_folder.py",
                '    temporary = path.with_name(f".{path.name}.partial")\n    temporary.unlink',
                "    path.unlink(missing_ok=True)\n    temporary = path\n    temporary.unlink",
            ),
            Edit(
                "dpft/run_folder.py",
                "        temporary.replace(path)\n    finally:\n"
                "        temporary.unlink(missing_ok=True)\n",
                "    except OSError:\n        temporary.unlink(missing_ok=True)\n        raise\n",
            ),
        ),
        tests=(
            "tests/guarantees/test_ledger.py"
            "::test_files_are_written_under_a_temporary_name_and_renamed",
        ),
    ),
    Fault(
        name="files/frozen-weight-released-after-it-changed",
        breaks="Each released tensor that was not trained equals its value at step 0.",
        edits=(
            Edit(
                "dpft/training/training_run.py",
                "        if is_saved or step == self._first_step:\n",
                "        if step == self._first_step:\n",
            ),
        ),
        tests=(f"{TESTS}test_a_frozen_weight_that_changed_is_not_released",),
    ),
    Fault(
        name="files/frozen-weights-missing-from-the-digests",
        breaks="The digests at the start and at the end cover every tensor that is not trained.",
        edits=(
            Edit(
                "dpft/training/training_run.py",
                "        trained = {p for p in model.parameters() if p.requires_grad}\n",
                "        trained = set(model.parameters())\n",
            ),
        ),
        tests=(f"{TESTS}test_a_frozen_weight_that_changed_is_not_released",),
    ),
    Fault(
        name="files/version-counters-not-compared",
        breaks="No micro-batch writes to a parameter or a persistent buffer.",
        edits=(
            Edit(
                "dpft/privacy/release_guard.py",
                "        if versions == self._versions:\n",
                "        if True:\n",
            ),
        ),
        tests=(f"{STATE}test_version_counters_reveal_writes_in_place",),
    ),
    Fault(
        name="files/checksums-not-compared",
        breaks="No pass of the clipper's checks writes to a parameter or a buffer.",
        edits=(
            Edit(
                "dpft/privacy/release_guard.py",
                "    with _also_after_errors(compare):\n        yield\n",
                "    yield\n",
            ),
        ),
        tests=(f"{STATE}test_trust_rule_11_a_pass_that_writes_is_refused_by_name",),
    ),
    Fault(
        name="files/pickled-weights-accepted",
        breaks="dpft loads safetensors only and never unpickles.",
        edits=(
            Edit(
                "dpft/models/loading.py",
                "            use_safetensors=True,\n",
                "            use_safetensors=None,\n",
            ),
            Edit(
                "dpft/models/source.py",
                'WEIGHT_FILES = ("model.safetensors", ',
                'WEIGHT_FILES = ("pytorch_model.bin", "model.safetensors", ',
            ),
        ),
        tests=(f"{RECEIVED}test_pickled_weights_are_rejected",),
    ),
    Fault(
        name="files/code-of-a-received-model-runs",
        breaks="Code in a model's folder does not run, because trust_remote_code is False.",
        edits=(
            Edit(
                "dpft/models/source.py",
                '    return {**source, "trust_remote_code": False}\n',
                '    return {**source, "trust_remote_code": True}\n',
            ),
        ),
        tests=(f"{RECEIVED}test_code_in_a_models_folder_does_not_run",),
    ),
)
