"""Planted faults: ledger."""

from tests.planted.fault import Edit, Fault

TESTS = "tests/guarantees/test_ledger.py::"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="ledger/line-written-after-the-update",
        breaks="A step is in the ledger before a weight changes, so a crash cannot lose it.",
        edits=(
            Edit(
                "dpft/privacy/engine.py",
                "        with ranks.failing_together():\n"
                "            self._ledger.record_step("
                "self.plan.entry_at(step, stream=self._stream), released)\n",
                "        entry = self.plan.entry_at(step, stream=self._stream)\n"
                "        self.record = lambda: self._ledger.record_step(entry, released)\n",
            ),
            Edit(
                "dpft/training/loop.py",
                "            run.after_step(state, engine, statistics)\n",
                '            getattr(engine, "record", lambda: None)()\n'
                "            run.after_step(state, engine, statistics)\n",
            ),
        ),
        tests=(f"{TESTS}test_a_step_is_in_the_ledger_on_disk_before_a_weight_changes",),
    ),
    Fault(
        name="ledger/line-not-synchronized-to-disk",
        breaks="A step's line survives a power cut, because it is on disk before a weight changes.",
        edits=(
            Edit(
                "dpft/privacy/ledger.py",
                '        self._file.write(line + "\\n")\n'
                "        self._file.flush()\n"
                "        os.fsync(self._file.fileno())\n",
                '        self._file.write(line + "\\n")\n        self._file.flush()\n',
            ),
        ),
        tests=(f"{TESTS}test_a_step_is_in_the_ledger_on_disk_before_a_weight_changes",),
    ),
    Fault(
        name="ledger/truncated-ledger-accepted",
        breaks="If private/ is present, the ledger's end is compared with the checkpoint's.",
        edits=(
            Edit(
                "dpft/privacy/journal.py",
                "    ledger = read_ledger(path) if path.exists() else None\n",
                "    ledger = read_ledger(path) if path.exists() else None\n"
                "    if ledger is not None:\n"
                "        return ledger\n",
            ),
        ),
        tests=(f"{TESTS}test_a_truncated_ledger_is_rejected",),
    ),
    Fault(
        name="ledger/hash-chain-not-verified",
        breaks="An accidental edit of the ledger is detected before epsilon is computed from it.",
        edits=(
            Edit(
                "dpft/privacy/ledger.py",
                "            if entry.previous != head or not is_next or closing is not None:\n",
                "            if not is_next or closing is not None:\n",
            ),
        ),
        tests=(f"{TESTS}test_an_edited_ledger_is_rejected",),
    ),
    Fault(
        name="ledger/missing-closing-line-accepted",
        breaks="Only a run whose ledger is closed counts as finished.",
        edits=(
            Edit(
                "dpft/commands/ledger_account.py",
                "        check_model(folder, ledger)\n        return ledger.closed\n",
                "        check_model(folder, ledger)\n        return True\n",
            ),
        ),
        tests=(f"{TESTS}test_a_run_without_its_closing_line_has_not_ended",),
    ),
    Fault(
        name="ledger/published-head-ignored",
        breaks="head= compares the ledger's head with a published one.",
        edits=(
            Edit(
                "dpft/commands/account_runs.py",
                "        check_head(run, config.head)\n",
                "        run.ledger.heads.count(config.head)\n",
            ),
        ),
        tests=(f"{TESTS}test_another_head_than_the_published_one_is_rejected",),
    ),
    Fault(
        name="ledger/digest-over-other-tensors",
        breaks="The closing line has the digest of the tensors that the run released.",
        edits=(
            Edit(
                "dpft/model_digest.py",
                "                file.seek(start + begin)\n",
                "                file.seek(begin)\n",
            ),
        ),
        tests=(f"{TESTS}test_another_model_than_the_released_one_is_rejected",),
    ),
)
