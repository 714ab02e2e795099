"""`PlacementRouter`: the class that Ray Serve asks which replica of a deployment a call goes to, in
the process of each caller.

Ray Serve sends this module's code to each process: it has no state of its own.
"""

from __future__ import annotations

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from quire.ray.serve.replicas import report


class PlacementRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types for it
    """Routes a call to the replica that `Placement` has chosen for it."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replica that the call names, or two of all if it names none."""
        args = []
        if pending_request is not None:
            args = pending_request.args
            pending_request.routing_context.should_backoff = True  # if the replica is not there
        if not args:
            return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]
        return [[one for one in candidate_replicas if one.replica_id.unique_id == args[0]]]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Ray Serve with all replicas that take requests."""
        super().update_replicas(replicas)
        report(self._deployment_id, frozenset(one.replica_id.unique_id for one in replicas))
