"""Planted faults: the epsilon and delta that dpft reports, and the noise that it calibrates."""

from tests.planted.fault import Edit, Fault

ACCOUNTING = "tests/guarantees/test_accounting.py"
LIBRARIES = (
    f"{ACCOUNTING}::test_each_accountant_gives_what_its_library_gives_and_prvs_upper_bound_leads"
)
E2E = f"{ACCOUNTING}::test_the_e2e_recipe_of_li_2022_has_its_published_epsilons"
CALIBRATION = f"{ACCOUNTING}::test_noise_that_is_calibrated_keeps_within_epsilon_as_it_is_printed"
BUDGET = f"{ACCOUNTING}::test_a_run_keeps_within_its_budget_whatever_its_micro_batch"
PHASES = f"{ACCOUNTING}::test_both_phases_of_a_run_keep_within_its_budget"
UNITS = f"{ACCOUNTING}::test_units_and_not_rows_are_counted_and_drawn"
TWICE = f"{ACCOUNTING}::test_steps_that_were_taken_twice_cost_twice"
RUNS = f"{ACCOUNTING}::test_runs_on_the_same_records_add_up"
BANDED = f"{ACCOUNTING}::test_banded_noise_costs_a_step_of_each_band_at_the_rate_of_a_group"
TOKENIZER = f"{ACCOUNTING}::test_a_tokenizer_and_a_training_keep_within_their_total_budget"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="accounting/delta-from-another-n",
        breaks="The default delta is 1/(2n) for published tasks and 1/(10n) for other data.",
        edits=(
            Edit(
                "dpft/privacy/plan.py",
                "        return 1 / (2 * num_examples)",
                "        return 1 / num_examples",
            ),
            Edit(
                "dpft/privacy/plan.py",
                "    least = 10 * num_examples",
                "    least = num_examples",
            ),
        ),
        tests=(E2E, UNITS),
    ),
    Fault(
        name="accounting/one-step-too-few",
        breaks="The noise is calibrated for every planned step.",
        edits=(
            Edit(
                "dpft/privacy/plan_building.py",
                "    compositions = chosen.compositions((steps,))",
                "    compositions = chosen.compositions((max(1, steps - 1),))",
            ),
        ),
        tests=(BUDGET, PHASES),
    ),
    Fault(
        name="accounting/sampling-rate-of-the-micro-batch",
        breaks="The noise is calibrated for the rate at which the logical batch is drawn.",
        edits=(
            Edit(
                "dpft/privacy/plan_building.py",
                "config, delta=delta, sample_rate=sample_rate, steps=compositions",
                "config, delta=delta, sample_rate=1 / num_examples, steps=compositions",
            ),
        ),
        tests=(BUDGET,),
    ),
    Fault(
        name="accounting/epsilon-rounded-down",
        breaks="A printed epsilon is an upper bound, so it is rounded up.",
        edits=(
            Edit(
                "dpft/privacy/accounting/summary.py",
                "return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), "
                "ROUND_CEILING))",
                "return math.floor(value * 10**digits) / 10**digits",
            ),
        ),
        tests=(f"{ACCOUNTING}::test_a_printed_epsilon_is_rounded_up",),
    ),
    Fault(
        name="accounting/noise-multiplier-rounded-down",
        breaks="The noise that is used is the noise whose epsilon was checked.",
        edits=(
            Edit(
                "dpft/privacy/accounting/calibration.py",
                "                return noise_multiplier, self._confirm(name, noise_multiplier)",
                "                calibration = self._confirm(name, noise_multiplier)\n"
                "                return math.floor(noise_multiplier * 100) / 100, calibration",
            ),
        ),
        tests=(CALIBRATION, BUDGET),
    ),
    Fault(
        name="accounting/estimate-of-prv-reported",
        breaks="The reported epsilon is the accountant's upper bound and not its estimate.",
        edits=(
            Edit(
                "dpft/privacy/accounting/summary.py",
                "            return name, result.upper",
                "            return name, result.estimate or result.upper",
            ),
        ),
        tests=(LIBRARIES,),
    ),
    Fault(
        name="accounting/central-limit-estimate-reported",
        breaks="The reported epsilon is never the estimate of the central limit theorem.",
        edits=(
            Edit(
                "dpft/privacy/accounting/summary.py",
                "    leader, epsilon = _headline(order, results, warnings)\n"
                "    if _disagree(results):",
                "    leader, epsilon = _headline(order, results, warnings)\n"
                '    if leader == "prv" and isinstance(results["gdp"], Epsilon):\n'
                '        epsilon = min(epsilon, results["gdp"].estimate or epsilon)\n'
                "    if _disagree(results):",
            ),
        ),
        tests=(LIBRARIES,),
    ),
    Fault(
        name="accounting/renyi-divergence-divided-by-the-order",
        breaks="A Renyi divergence of order a is a logarithm divided by a - 1.",
        edits=(
            Edit(
                "dpft/privacy/accounting/rdp.py",
                "    return wholes, log_a / (wholes - 1)",
                "    return wholes, log_a / wholes",
            ),
        ),
        tests=(LIBRARIES,),
    ),
    Fault(
        name="accounting/two-phases-as-one",
        breaks="The steps of all phases of a run add up.",
        edits=(
            Edit(
                "dpft/privacy/plan_building.py",
                "    compositions = chosen.compositions((steps,))",
                "    compositions = chosen.compositions((max(p.steps for p in phases),))",
            ),
        ),
        tests=(PHASES,),
    ),
    Fault(
        name="accounting/units-counted-as-rows",
        breaks="n is the number of privacy units, and a unit is drawn with the rate B/n.",
        edits=(
            Edit(
                "dpft/commands/splits.py",
                "        return len({*self.units, *self.faulty})",
                "        return len([*self.units, *self.faulty])",
            ),
        ),
        tests=(UNITS,),
    ),
    Fault(
        name="accounting/records-counted-in-place-of-the-public-number",
        breaks="If the configuration gives the number of records, no count of them is used.",
        edits=(
            Edit(
                "dpft/commands/run_plan.py",
                "        given = privacy.num_examples\n",
                "        given = count_rows()\n",
            ),
        ),
        tests=(f"{ACCOUNTING}::test_a_public_number_of_records_is_used_instead_of_the_count",),
    ),
    Fault(
        name="accounting/repeated-steps-not-counted",
        breaks="A step that is taken again with new noise costs as much as any other step.",
        edits=(
            Edit(
                "dpft/privacy/ledger.py",
                "    for step in record.mechanisms:\n",
                "    planned_steps = None if plan is None else plan.steps\n"
                "    for step in record.mechanisms[:planned_steps]:\n",
            ),
        ),
        tests=(TWICE,),
    ),
    Fault(
        name="accounting/planned-steps-reported",
        breaks="A run's report covers the steps that were taken, and not only the planned ones.",
        edits=(
            Edit(
                "dpft/commands/guarantee.py",
                "tuple(run.whole.items())",
                "tuple({noise: plan.steps for noise in run.whole}.items())",
            ),
        ),
        tests=(TWICE,),
    ),
    Fault(
        name="accounting/runs-not-added-up",
        breaks="The steps of several runs on the same records add up.",
        edits=(
            Edit(
                "dpft/privacy/ledger.py",
                "        counts.update(steps)",
                "        counts |= Counter(steps)",
            ),
        ),
        tests=(RUNS,),
    ),
    Fault(
        name="accounting/participations-rounded-down",
        breaks="With b bands and T steps a unit can be in ceil(T / b) steps.",
        edits=(
            Edit(
                "dpft/privacy/mechanisms/banded.py",
                "        return sum(-(-steps // self.bands) for steps in streams)",
                "        return sum(max(1, steps // self.bands) for steps in streams)",
            ),
        ),
        tests=(BANDED,),
    ),
    Fault(
        name="accounting/banded-noise-at-the-rate-of-all-units",
        breaks="A step of banded noise draws from one of b groups, so its rate is b times B/n.",
        edits=(
            Edit(
                "dpft/commands/account.py",
                "composed_rate, composed_steps = mechanism.rate(sample_rate),",
                "composed_rate, composed_steps = sample_rate,",
            ),
        ),
        tests=(BANDED,),
    ),
    Fault(
        name="accounting/tokenizer-left-out-of-the-budget",
        breaks="privacy.total_eps covers the training and the histogram of its tokenizer.",
        edits=(
            Edit(
                "dpft/commands/composition.py",
                "Composition(parts=(training, *of_tokenizer))",
                "Composition(parts=(training,))",
            ),
        ),
        tests=(TOKENIZER,),
    ),
    Fault(
        name="accounting/tokenizer-left-out-of-runs",
        breaks="A run is composed with the tokenizer that its plan names.",
        edits=(
            Edit(
                "dpft/commands/composition.py",
                "    steps = sum_steps(*(run.taken for run in runs), *histograms)",
                "    steps = sum_steps(*(run.taken for run in runs))",
            ),
        ),
        tests=(TOKENIZER,),
    ),
    Fault(
        name="accounting/threshold-takes-nothing-of-delta",
        breaks="Half of a histogram's delta is the threshold's and is not left for its noise.",
        edits=(
            Edit(
                "dpft/privacy/ledger.py",
                "            delta=delta - thresholds,",
                "            delta=delta,",
            ),
        ),
        tests=(TOKENIZER,),
    ),
    Fault(
        name="accounting/search-costs-as-one-trial",
        breaks="The epsilon of a search for hyperparameters covers the trials that lost.",
        edits=(
            Edit(
                "dpft/privacy/accounting/selection.py",
                "(orders - 1) + (1 + count.eta) * least_other",
                "(orders - 1)",
            ),
        ),
        tests=(f"{ACCOUNTING}::test_a_search_for_hyperparameters_pays_for_all_its_trials",),
    ),
    Fault(
        name="accounting/histogram-left-out-of-a-synthesis",
        breaks="The histogram of a synthesis is part of what its training costs.",
        edits=(
            Edit(
                "dpft/commands/ledger_account.py",
                "        before = {} if counts is None else histogram_steps(counts)\n",
                "        before = {}\n",
            ),
        ),
        tests=(
            "tests/fixtures/test_ledgers_of_v0_3.py"
            "::test_a_ledger_has_the_epsilon_that_0_3_computed[synthesis_training]",
        ),
    ),
)
