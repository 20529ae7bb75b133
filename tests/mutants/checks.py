"""All checks by name, and which of them a mutant is tried by."""

from collections.abc import Callable

from tests.mutants import checks_of_mechanisms as mechanisms
from tests.mutants.borrowed import all_of, run_in_suite
from tests.mutants.checks_of_files import a_person_less, a_row_less, a_site_less
from tests.mutants.planting import World

Check = Callable[[World], None]

# Tests of this suite that are checks here.
MECHANISM, SHARED = "privacy/test_mechanism.py", "privacy/test_shared.py"
LEDGER, FILTERS = "privacy/test_ledger.py", "privacy/test_filters.py"
RESPONDER, SUMS = "federated/test_responder.py", "federated/test_secure_sum.py"
AGGREGATOR, CHANNEL = "federated/test_secure_aggregator.py", "network/test_channel.py"
SESSION, LIMITS = "network/test_site_session.py", "network/test_site_limits.py"
SITE_LEDGER = "network/test_site_ledger.py"
OBJECTIONS = "test_what_a_site_does_not_allow_is_refused_before_a_charge_and_before_records_are_opened"

CHECKS: dict[str, Check] = {
    "noise": mechanisms.noise_is_the_promised_gaussian,
    "lattice": mechanisms.noise_is_on_the_lattice,
    "clip": mechanisms.one_record_moves_a_release_by_at_most_the_clip,
    "sample": mechanisms.slots_are_chosen_independently_with_the_rate,
    "joint": mechanisms.noise_does_not_depend_on_the_sample,
    "receipt": mechanisms.the_receipt_names_what_is_done,
    "one key": mechanisms.a_key_makes_one_release,
    "person": run_in_suite(MECHANISM, "test_all_the_records_of_a_person_together_move_it_by_at_most_the_clip"),
    "level": mechanisms.each_level_has_its_own_noise,
    "level's clip": mechanisms.each_level_has_its_own_clip,
    "count": run_in_suite(MECHANISM, "test_receipt_equals_price_equals_what_ran_on_cached_calls_too", steps=5),
    "steps": mechanisms.steps_share_no_noise,
    "limit": mechanisms.the_share_within_a_limit_has_its_noise,
    "rounds": mechanisms.rounds_have_noise_of_their_own,
    "order": run_in_suite(
        RESPONDER,
        "test_an_update_is_priced_charged_read_and_stored_in_this_order",
        "test_a_receipt_that_is_not_the_price_is_neither_stored_nor_sent",
        "test_a_ledger_is_told_of_noise_from_a_seed",
    ),
    "retry": run_in_suite(
        RESPONDER,
        "test_a_repeated_round_is_answered_from_the_store_and_costs_nothing",
        "test_a_death_anywhere_never_counts_too_little_and_at_most_one_too_much",
        place="after the charge",
        is_new=True,
    ),
    "keys": run_in_suite(
        RESPONDER, "test_no_two_rounds_sites_or_studies_share_their_noise_even_if_they_were_handed_one_key"
    ),
    "budget": run_in_suite(
        RESPONDER,
        "test_a_site_without_budget_refuses_and_reads_nothing",
        "test_two_studies_on_one_data_set_share_its_budget",
    ),
    "adjacency": run_in_suite(
        LEDGER, "test_noise_relative_to_the_clip_is_priced_by_a_replace_one_ledger_at_twice_the_distance"
    ),
    "filter": run_in_suite(
        FILTERS,
        "test_a_price_recomputed_along_the_way_is_no_filter_where_samples_are_mixed_in",
        "test_the_reserve_for_imperfect_draws_is_a_box_of_its_own",
        "test_the_renyi_rule_costs_the_divergence_at_its_order_and_what_is_cut_off_is_paid_from_the_reserve",
    ),
    "message": run_in_suite(
        RESPONDER,
        "test_nothing_in_a_broadcast_reaches_the_noise_the_clip_or_the_price",
        "test_a_refusal_says_the_same_whatever_the_records",
    ),
    "limits": all_of(
        run_in_suite(LIMITS, OBJECTIONS, case="more ε"),
        run_in_suite(LIMITS, OBJECTIONS, case="less noise"),
        run_in_suite(SITE_LEDGER, "test_the_ledger_has_the_site_s_budget_and_not_the_study_s"),
    ),
    "store": run_in_suite(
        SESSION,
        "test_the_same_request_is_answered_once_more_by_the_same_bytes_and_charged_once",
        "test_a_session_that_begins_again_gives_the_same_answers",
    ),
    "studies": run_in_suite(
        SITE_LEDGER,
        "test_two_studies_share_the_budget_of_a_site",
        "test_a_round_beyond_the_budget_is_refused",
    ),
    "allowance": run_in_suite(SITE_LEDGER, "test_a_study_spends_no_more_than_its_own_part_of_a_budget"),
    "forgotten": run_in_suite(
        SITE_LEDGER, "test_a_round_that_only_an_older_part_of_the_log_has_is_still_missed_in_a_ledger"
    ),
    "scales": run_in_suite(SESSION, "test_the_scales_of_a_study_are_those_that_it_began_with"),
    "gate": run_in_suite(CHANNEL, "test_the_gate_lets_nothing_else_through"),
    "at once": run_in_suite(CHANNEL, "test_a_request_that_is_being_worked_on_is_not_begun_again"),
    "masks": run_in_suite(SUMS, "test_every_bit_of_a_seed_is_in_its_masks"),
    "roster": run_in_suite(SUMS, "test_a_roster_with_keys_that_are_not_signed_is_refused"),
    "opened": run_in_suite(SUMS, "test_no_site_opens_both_kinds_of_shares_of_another"),
    "shares": run_in_suite(
        SHARED,
        "test_noise_in_the_total_is_that_of_all_sites_and_of_the_honest_alone_that_of_the_claim",
        "test_shares_of_the_honest_sites_are_enough_and_hardly_more",
    ),
    "worth": run_in_suite(SHARED, "test_what_a_site_sums_up_is_worth_nothing_to_it"),
    "sums": run_in_suite(
        AGGREGATOR,
        "test_the_update_is_that_of_the_sum_of_all_sites_to_the_bit",
        "test_rounds_are_those_of_the_plan_and_each_is_charged_once",
        "test_a_site_that_begins_again_has_its_ledger_and_needs_nothing_else",
        "test_every_message_again_has_the_same_answer_and_another_one_none",
        "test_a_sum_is_charged_before_it_is_read",
    ),
    "file, fit": a_row_less("fit"),
    "file, study": a_row_less("study"),
    "lists": a_row_less("lists"),
    "row numbers": a_row_less("numbered"),
    "file, person": a_person_less,
    "site": a_site_less,
}

# By the part that a mutant breaks: the checks that could notice. Their cost beyond that of one is small.
_READING = ("noise", "lattice", "clip", "sample", "joint", "receipt")
TRIED: dict[str, tuple[str, ...]] = {
    "mechanism": _READING,
    "access": _READING,
    "receipt": ("receipt", "one key"),
    "people": ("person",),
    "schedule": ("level", "level's clip"),
    "loop": ("count", "steps"),
    "moved clip": ("limit",),
    "central": ("rounds",),
    "responder": ("order", "retry", "keys", "budget", "message"),
    "ledger": ("order", "budget", "adjacency"),
    "filter": ("filter",),
    "session": ("limits", "store", "studies", "allowance", "forgotten", "scales"),
    "gate": ("gate",),
    "answerer": ("at once",),
    "secure sum": ("masks", "roster", "opened"),
    "share": ("shares", "worth"),
    "secure responder": ("sums",),
    "table": ("file, fit",),
    "split": ("file, study",),
    "persons": ("file, person",),
    "lists": ("lists",),
    "row numbers": ("row numbers",),
    "order of sites": ("site",),
}
