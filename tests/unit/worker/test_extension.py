"""Methods that an operator adds to the worker."""

from __future__ import annotations

import pytest

from quire.errors import ConfigError
from quire.worker.extension import extended
from quire.worker.worker import Worker


class Added:
    def twice(self, number: int) -> int:
        return 2 * number


class Replacing:
    def step(self) -> None:
        """A name of the worker's own."""


def test_the_worker_has_the_methods_too() -> None:
    assert extended(Worker, "") is Worker
    for path in (f"{__name__}.Added", f"{__name__}:Added"):
        made = extended(Worker, path)
        assert issubclass(made, Worker)
        worker = made.__new__(made)
        assert worker.call("twice", 4) == 8
        with pytest.raises(ConfigError, match="does not accept these arguments"):
            worker.call("twice")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module.X", "cannot be imported"),
        (f"{__name__}.Absent", "cannot be imported"),
        ("Added", "cannot be imported"),
        ("os.path.join", "must name a class"),
        (f"{__name__}.Replacing", "would replace the worker's own step"),
    ],
)
def test_what_cannot_be_added(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        extended(Worker, path)
