"""`overriding`: objects that override the methods of a base class, so that others cost no call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def overriding(base: type[T], every: Iterable[T]) -> dict[str, list[T]]:
    """By the name of each method of `base`, those of `every` that override it, in order."""
    objects = [*every]
    return {
        name: [one for one in objects if getattr(type(one), name) is not method]
        for name, method in vars(base).items()
        if callable(method)
    }
