"""Errors: one exception for each status of the C library, with the library's message."""

from __future__ import annotations

__all__ = [
    "Error",
    "FileError",
    "OutOfMemoryError",
    "StoppedError",
    "SystemFailure",
    "UnsupportedError",
    "UsageError",
    "error_of",
]


class Error(Exception):
    """Any failure of the library. ``str(error)`` is the message of the C library: one line that names the
    thing, its value and the limit."""

    status: int = -1
    """The value of ``fb_status``; -1 if the library has a status that this package does not know."""


class UsageError(Error, ValueError):
    """An argument is out of its range."""

    status = 1


class FileError(Error, OSError):
    """A file is missing, unreadable or malformed."""

    status = 2


class UnsupportedError(Error):
    """Well formed, but it asks for something that Fusebox does not support."""

    status = 3


class OutOfMemoryError(Error, MemoryError):
    """Too little memory for the request."""

    status = 4


class SystemFailure(Error):
    """The operating system or a device refused something, or a result is not a number."""

    status = 5


class StoppedError(Error):
    """A callback or ``Session.cancel`` asked to stop."""

    status = 6


_CLASSES: dict[int, type[Error]] = {
    kind.status: kind
    for kind in (UsageError, FileError, UnsupportedError, OutOfMemoryError, SystemFailure, StoppedError)
}


def error_of(status: int, message: str) -> Error:
    """The exception for a status of the C library."""
    return _CLASSES.get(status, Error)(message)
