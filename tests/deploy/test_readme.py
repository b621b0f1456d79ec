"""What deploy/README.md names is there, and each of its defences is tested."""

import ast
import re

from tests.deploy.manifests import README, ROOT

DEFENCES = {
    "strangers submit jobs, join nodes or read a cluster's state": """
        core/on_ray/test_nodes.py::test_a_stranger_can_neither_submit_nor_look
        deploy/test_kuberay.py::test_every_cluster_asks_for_the_token_of_a_secret
        deploy/test_kuberay.py::test_who_reaches_which_port_of_a_cluster
    """,
    "others use the Ray that a job starts": """
        core/on_ray/test_local_ray.py::test_a_local_ray_is_private_and_ends_in_silence
    """,
    "others read the token": """
        core/on_ray/test_local_ray.py::test_a_token_that_others_can_read_joins_no_cluster
    """,
    "keys leak": """
        llm/test_client.py::test_key_is_sent_and_shown_nowhere
        core/runs/test_run.py::test_record_says_what_made_the_run_and_nothing_of_its_secrets
        deploy/test_kuberay.py::test_every_file_can_be_read_and_holds_no_secret
        deploy/test_machines.py::test_keys_are_not_uploaded
    """,
    "a checkpoint runs code": """
        arc/training/test_experiment.py::test_nothing_in_a_file_is_executed
    """,
    "a job leaves its pod, or uses rights of pod or node": """
        deploy/test_kuberay.py::test_every_pod_is_confined
        deploy/test_kuberay.py::test_all_objects_are_in_a_namespace_that_refuses_unconfined_pods
        deploy/test_kuberay.py::test_no_job_has_rights_in_kubernetes
    """,
    "strangers use the models": """
        deploy/test_vllm.py::test_without_the_key_nothing_is_answered
        deploy/test_kuberay.py::test_who_reaches_which_port_of_a_cluster
    """,
    "a description gives the models orders": """
        label/opt/test_prompts.py::test_orders_in_a_description_stay_within_its_fence
    """,
    "strangers open the review page": """
        label/review/test_access.py::test_a_page_beyond_loopback_demands_a_token
        label/review/test_access.py::test_nobody_sees_or_does_anything_without_signing_in
        label/review/test_access.py::test_the_token_lets_in_and_is_shown_nowhere
        label/review/test_server.py::test_the_page_listens_on_loopback_alone_and_needs_no_ray
    """,
    "a session is stolen": """
        label/review/test_access.py::test_a_cookie_that_was_changed_or_made_by_another_page_is_none
        label/review/test_access.py::test_a_session_ends_after_a_week_and_by_signing_out
    """,
    "another site, a text or a request attacks the page": """
        label/review/test_access.py::test_forged_forms_are_refused
        label/review/test_access.py::test_a_request_by_a_strange_name_is_refused
        jobs/test_review.py::test_a_hostile_description_is_inert_and_a_long_line_readable
        label/review/test_access.py::test_every_answer_forbids_the_browser_all_but_the_page_itself
    """,
    "another's run sends your key elsewhere": """
        label/on_ray/test_annotate.py::test_the_next_run_has_decisions_judged_by_the_models_of_its_own_command
    """,
    "the archive is altered, replaced or cut": """
        label/archive/test_store.py::test_a_record_that_was_altered_is_refused_when_it_is_read
        label/protocol/test_run.py::test_an_archive_that_was_cut_off_or_made_anew_is_refused
    """,
    "a dependency is replaced": """
        deploy/test_machines.py::test_every_dependency_is_installed_by_its_hash_from_one_index
        test_project.py::test_a_lock_holds_versions_with_hashes_and_nothing_else
    """,
}
"""The tests of each threat in the table of README.md, by file below `tests/` and name."""


def test_every_threat_has_tests_that_exist() -> None:
    table = README.partition("| threat | defence |\n| --- | --- |\n")[2].partition("\n\n")[0]
    threats = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()]
    assert threats == list(DEFENCES)
    named = {tuple(test.split("::")) for tests in DEFENCES.values() for test in tests.split()}
    there = {
        (file, getattr(node, "name", ""))
        for file in {file for file, _ in named}
        for node in ast.parse((ROOT / "tests" / file).read_text()).body
    }
    assert named - there == set()


def test_every_file_that_is_applied_exists() -> None:
    applied = set(re.findall(r"(?:-f |=)(deploy/\S+\.\w+)", README))
    assert {"deploy/kuberay/base.yaml", "deploy/vllm/vllm.yaml"} <= applied
    assert all((ROOT / path).is_file() for path in applied)
