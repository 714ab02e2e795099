"""Which requests run in a step, and how many of their tokens."""

from quire.scheduler.request import Request, RequestStatus
from quire.scheduler.scheduler import Scheduler

__all__ = ["Request", "RequestStatus", "Scheduler"]
