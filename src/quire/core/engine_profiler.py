"""`EngineProfiler`: records an engine's steps between `start_profile` and `stop_profile`.

Owned by `EngineCore`, which runs each step through it and offers its methods as commands; names
are vLLM's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from quire.config.records import ProfilerConfig
from quire.errors import ConfigError, quoted, reason
from quire.log import get_logger
from quire.protocol import SchedulePlan

if TYPE_CHECKING:
    from quire.core.trace import RankSpans, StepTrace

logger = get_logger(__name__)

T = TypeVar("T")

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class EngineProfiler:
    """At most one session at a time. One thread, the core's."""

    def __init__(
        self,
        config: ProfilerConfig | None,
        ranks: Callable[[bool], Sequence[RankSpans]] = lambda _: (),
    ) -> None:
        """`config`: None if the user has named no directory; then every call is refused. `ranks`:
        switches the recording of ranks on, or off, and returns what they have recorded."""
        self._config = config
        self._ranks = ranks
        self.trace: StepTrace | None = None
        """The trace of the current step; None if the step is not recorded."""
        self.session: _Session | None = None
        """None: no step is recorded."""

    def start(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Begins a session that skips `delay_iterations` steps and records at most `max_iterations`
        (0: all); None: as configured. `profile_prefix` begins the file's name.

        Raises ConfigError during a session, without a directory, and for values out of range.
        """
        config = self._enabled()
        if self.session is not None:
            raise ConfigError(
                "a profiling session is already active; call stop_profile before starting another"
            )
        _check_prefix(profile_prefix)
        delay = _count("delay_iterations", delay_iterations, config.delay_iterations)
        most = _count("max_iterations", max_iterations, config.max_iterations)
        from quire.core.trace import StepTrace

        trace = StepTrace(with_stack=config.torch_profiler_with_stack)
        self.session = _Session(config, trace, profile_prefix, delay, most)
        self._ranks(True)
        logger.info("profiling began: steps are recorded until stop_profile")

    def stop(self) -> None:
        """Ends the session and writes its trace; without a session, logs a warning. Raises
        ConfigError if the file cannot be written."""
        self._enabled()
        session, self.session, self.trace = self.session, None, None
        if session is None:
            logger.warning("stop_profile: no profiling session is active, nothing is written")
        else:
            for spans in self._ranks(False):
                session.trace.add_rank(spans)
            session.write()

    def run(self, step: Callable[[], T]) -> T:
        """Runs a step, and records it if the session covers it."""
        session = self.session
        if session is None or not session.wants_next_step():
            return step()
        self.trace = session.trace
        try:
            with session.trace.step():
                return step()
        finally:
            self.trace = None

    def computed(self, plan: SchedulePlan, begin_s: float, end_s: float) -> None:
        """Records how long the executor took for a plan, in `time.perf_counter` seconds."""
        if self.trace is not None:
            self.trace.span(
                "compute",
                begin_s,
                end_s,
                requests=len(plan.request_ids),
                started=len(plan.started),
                tokens=plan.total_num_scheduled_tokens,
            )

    def _enabled(self) -> ProfilerConfig:
        if self._config is None:
            raise ConfigError(
                "profiling is not enabled: name a directory for the traces, as --profiler-config "
                '\'{"profiler": "torch", "torch_profiler_dir": "DIRECTORY"}\' or profiler_config='
                "{...}"
            )
        return self._config


class _Session:
    """One recording and its settings."""

    def __init__(
        self, config: ProfilerConfig, trace: StepTrace, prefix: str | None, delay: int, most: int
    ) -> None:
        self.trace = trace
        self._config = config
        self._prefix = prefix
        self._delay = delay
        self._most = most
        self._num_seen = 0

    def wants_next_step(self) -> bool:
        """Whether to record the next step."""
        self._num_seen += 1
        recorded = self.trace.num_steps
        return self._num_seen > self._delay and (not self._most or recorded < self._most)

    def write(self) -> None:
        """Writes the trace to a new file in the directory. Raises ConfigError."""
        directory = Path(self._config.torch_profiler_dir)
        name = self._prefix or f"{os.uname().nodename}_{os.getpid()}"
        ending = ".gz" if self._config.torch_profiler_use_gzip else ""
        path = directory / f"{name}_rank0.{time.time_ns()}.pt.trace.json{ending}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.trace.write(path)
        except OSError as error:
            raise ConfigError(f"the trace {path} cannot be written: {reason(error)}") from None
        if self.trace.is_full:
            logger.warning("the trace is full: function calls of later steps were not recorded")
        logger.info("%d steps are recorded in %s", self.trace.num_steps, path)


def _check_prefix(prefix: object) -> None:
    if prefix is None or (isinstance(prefix, str) and _PREFIX.fullmatch(prefix)):
        return
    raise ConfigError(
        "profile_prefix must be 1-128 ASCII characters, start with a letter or number, and contain "
        f"only letters, numbers, '.', '_' or '-', got {quoted(prefix)}"
    )


def _count(name: str, value: object, default: int) -> int:
    if value is None:
        return default
    if type(value) is not int or value < 0:
        raise ConfigError(f"{name} must be a whole number of at least 0, got {quoted(value)}")
    return value
