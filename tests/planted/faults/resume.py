"""Planted faults: resume."""

from tests.planted.fault import Edit, Fault

TESTS = "tests/guarantees/test_resume.py::"
COMPARISON = "        if expected != entry and (is_in_ledger or expected is not None):\n"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="resume/different-noise-for-the-same-step",
        breaks="After a crash the run repeats its steps with the same noise, bit for bit.",
        edits=(
            Edit(
                "dpft/training/starting_point.py",
                "        keys = dict(checkpoint.read_keys().content)\n",
                "        keys = make_randomness(\n"
                "            device, privacy.noise_seed, step=done, after=done\n"
                "        ).state(done)\n",
            ),
        ),
        tests=(f"{TESTS}test_a_resumed_run_repeats_its_steps_bit_for_bit",),
    ),
    Fault(
        name="resume/same-noise-on-other-records",
        breaks="A run is resumed only on the records that it began with.",
        edits=(
            Edit(
                "dpft/commands/train.py",
                "                check_same_records(folder, training_set)\n",
                "                private_path(folder, WHITE_BOX)\n",
            ),
        ),
        tests=(f"{TESTS}test_other_records_are_rejected",),
    ),
    Fault(
        name="resume/adapter-on-another-base",
        breaks="A run is resumed only on the frozen weights that it began with.",
        edits=(
            Edit(
                "dpft/commands/train.py",
                "            ranks.on_rank_0(check_same_base, model, shards, resume_point)\n",
                "            pass\n",
            ),
        ),
        tests=(f"{TESTS}test_another_base_model_is_rejected",),
    ),
    Fault(
        name="resume/plan-from-an-edited-config",
        breaks="A resumed run keeps the plan in the first line of its ledger.",
        edits=(
            Edit(
                "dpft/commands/interrupted_run.py",
                "    if bound.replace(calibration=None, delta_source=configured.delta_source) != configured:\n",
                "    if bound.noise_multiplier != configured.noise_multiplier:\n",
            ),
            Edit(
                "dpft/commands/interrupted_run.py",
                "    return RunPlan(size=size, steps=steps, phases=phases, privacy=bound)\n",
                "    return RunPlan(size=size, steps=steps, phases=phases, privacy=configured)\n",
            ),
            Edit(
                "dpft/training/checkpoint.py",
                "or bound not in (None, plan):\n",
                "or bound is None:\n",
            ),
        ),
        tests=(f"{TESTS}test_an_edited_config_does_not_change_the_plan",),
    ),
    Fault(
        name="resume/fingerprint-of-a-replayed-step-ignored",
        breaks="A replayed step changes no weight unless its noisy gradient is the same as before.",
        edits=(
            Edit(
                "dpft/privacy/journal.py",
                COMPARISON,
                '        if expected is not None and expected["step"] != step:\n',
            ),
        ),
        tests=(f"{TESTS}test_a_step_that_does_not_come_out_as_before_is_counted_again",),
    ),
    Fault(
        name="resume/repeated-steps-with-new-noise-not-counted",
        breaks="Steps that are repeated with new noise are new lines in the ledger.",
        edits=(
            Edit(
                "dpft/training/starting_point.py",
                "        position = ledger.steps\n    journal",
                "        position = done\n    journal",
            ),
            Edit(
                "dpft/privacy/journal.py",
                COMPARISON,
                '        if expected is not None and expected["step"] != step:\n',
            ),
        ),
        tests=(
            f"{TESTS}test_a_copied_run_draws_new_noise",
            f"{TESTS}test_a_restored_run_draws_new_noise",
        ),
    ),
    Fault(
        name="resume/copy-draws-the-same-noise",
        breaks="A copied or restored folder draws new noise, because its keys may be used twice.",
        edits=(
            Edit(
                "dpft/training/checkpoint.py",
                "    return KeyFile(content=written, original=in_place and untouched)\n",
                "    return KeyFile(content=written, original=in_place or not untouched)\n",
            ),
        ),
        tests=(
            f"{TESTS}test_a_copied_run_draws_new_noise",
            f"{TESTS}test_a_restored_run_draws_new_noise",
        ),
    ),
    Fault(
        name="resume/damaged-checkpoint-accepted",
        breaks="A damaged checkpoint is detected before a step is taken from it.",
        edits=(
            Edit(
                "dpft/training/checkpoint.py",
                "    if actual != expected:\n        raise _damaged(path)\n",
                "    if not actual:\n        raise _damaged(path)\n",
            ),
        ),
        tests=(f"{TESTS}test_a_damaged_checkpoint_is_rejected",),
    ),
    Fault(
        name="resume/line-skipped-after-a-crash",
        breaks="A step whose line a crash prevented gets its line when the run is resumed.",
        edits=(
            Edit(
                "dpft/privacy/journal.py",
                "            self._write(entry)\n"
                "        if not is_in_ledger:\n"
                "            self.ledger.append(step, mechanism)\n"
                "        self.position += 1\n",
                "            self._write(entry)\n"
                "            self.ledger.append(step, mechanism)\n"
                "        self.position += 1\n",
            ),
        ),
        tests=(f"{TESTS}test_the_step_of_a_crash_before_its_ledger_line_gets_its_line",),
    ),
    Fault(
        name="resume/torn-line-not-removed",
        breaks="A half-written line is replaced when the run is resumed.",
        edits=(
            Edit(
                "dpft/privacy/ledger.py",
                "            os.ftruncate(self._file.fileno(), self._torn_at)\n",
                "",
            ),
        ),
        tests=(f"{TESTS}test_a_torn_last_line_is_replaced",),
    ),
    Fault(
        name="resume/restart-begins-a-second-run",
        breaks="The same command in the folder of an interrupted run starts no second run.",
        edits=(
            Edit(
                "dpft/commands/new_run.py",
                "    if read_journal(folder / JOURNAL):  # Even if the ledger was changed since.\n"
                "        return True\n",
                "",
            ),
            Edit(
                "dpft/commands/new_run.py",
                "    if checkpoints(folder / CHECKPOINTS):\n"
                "        return True\n"
                "    try:\n"
                "        return read_ledger(ledger).counted_steps > 0\n",
                "    try:\n        return read_ledger(ledger).closed\n",
            ),
        ),
        tests=(f"{TESTS}test_the_same_command_begins_no_second_run",),
    ),
    Fault(
        name="resume/restarts-without-a-fixed-folder",
        breaks="A restart by torchrun or Slurm begins no second run in another folder.",
        edits=(
            Edit(
                "dpft/cli/commands.py",
                "    check_restarts(resumes=resume is not None, advice=advice)\n",
                "",
            ),
        ),
        tests=(
            "tests/cli/test_many_processes.py"
            "::test_a_restart_that_would_begin_a_second_run_is_refused",
        ),
    ),
    Fault(
        name="resume/auto-with-other-settings",
        breaks="resume=auto resumes a run only with the settings that it was begun with.",
        edits=(
            Edit(
                "dpft/commands/interrupted_run.py",
                "    if read_begun(folder).asked != digest_of(command.settings()):\n",
                "    if read_begun(folder).asked is None:\n",
            ),
        ),
        tests=(f"{TESTS}test_resume_auto_rejects_other_settings_than_the_run_began_with",),
    ),
)
