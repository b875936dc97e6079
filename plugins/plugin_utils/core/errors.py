# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's errors. PRIVATE to the collection.

    RdmaError                 every error that a user may see
    +-- InputError            invalid input: unknown shape, bad value, wrong key
    |   +-- NotYet            something that another step creates first
    |   +-- Taken             another run writes there
    +-- DataError             a data file of ours, or an object of the cluster, is malformed
    +-- ClusterError          the API server refused or could not be reached
    |   +-- NotFound          404
    |   +-- Forbidden         401, 403
    |   +-- Conflict          409
    |   +-- Gone              410, a list or watch must be restarted
    |   +-- Busy              429, a PodDisruptionBudget forbids an eviction now
    |   +-- Unreachable       no answer; the same call may work later
    +-- WaitFailed            a wait ended without the awaited state
        +-- Unrecoverable     a state that no waiting will end (ImagePullBackOff, ...)
        +-- DeadlinePassed

Each message names what was attempted, the object, what was found and what to do.
"""

from __future__ import annotations


class RdmaError(Exception):
    """Base of all errors; str() is the whole message for the user."""


class InputError(RdmaError):
    """The user's input cannot be accepted."""


class NotYet(InputError):
    """Another step has to create it first. In check mode that may be an earlier step of the same run, so there this
    counts as a predicted change, while a real run fails."""


class Taken(InputError):
    """Another run has the cluster or the folder."""


class DataError(RdmaError):
    """A document is malformed."""


class ClusterError(RdmaError):
    """The API server refused a request or could not be reached. ``status`` is the HTTP status or 0; ``said``: the
    server's own words."""

    def __init__(self, message: str, status: int = 0, reason: str = "", said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.said = said


class NotFound(ClusterError):
    """404."""


class Forbidden(ClusterError):
    """401 or 403."""


class Conflict(ClusterError):
    """409."""


class Gone(ClusterError):
    """410: the resource version is too old."""


class Busy(ClusterError):
    """429 to an eviction: a PodDisruptionBudget forbids it now."""


class Unreachable(ClusterError):
    """No answer from the server."""


class WaitFailed(RdmaError):
    """A wait ended without the awaited state. ``late`` maps a name to the reason why it holds the wait."""

    def __init__(self, message: str, late: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.late = dict(late or {})


class Unrecoverable(WaitFailed):
    """The awaited state cannot be reached any more."""


class DeadlinePassed(WaitFailed):
    """The awaited state was not reached in time."""
