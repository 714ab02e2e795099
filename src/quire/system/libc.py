"""The C library of this process."""

from __future__ import annotations

import os


def libc_version() -> str:
    """Name and version, as `glibc 2.36`; "" if unknown."""
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return ""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ""
