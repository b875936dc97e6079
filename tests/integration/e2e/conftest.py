# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The longest tests begin first, so that none of them runs alone at the end. ``make test`` runs a third of the tests,
the next commit's another one: ``make test E2E=all`` runs all, and so does CI."""

from __future__ import annotations

import os

import pytest
from support import matrix

LONGEST = (
    "test_from_the_guide_to_the_current_profile_in_waves",
    "test_killed_runs_converge_then_verify_then_teardown",
    "test_through_olm_to_a_verdict",
    "test_faults_of_nodes_side_by_side",
    "test_a_plan_and_its_accounts_are_enough_for_every_run",
    "test_pools_that_share_their_gpus_each_in_its_way",
    "test_each_fault_is_named_and_a_cut_scan_goes_on",
    "test_rows_are_proven_repeated_broken_and_undone",
    "test_from_the_guide_of_2024_to_the_current_profile",
    "test_driver_and_ofed_of_the_operators",
    "test_a_cluster_that_is_lived_in",
    "test_faults_of_the_fabric_one_after_the_other",
    "test_healthy",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(getattr(item, "originalname", item.name), len(LONGEST)))
    run = [item for item in items if not any(mark.args[0] for mark in item.iter_markers("skipif"))]
    others = set(run) - set(matrix.third(run, os.environ.get("GPUOPS_E2E") or "all"))
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]
