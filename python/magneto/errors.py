"""The two error families: UserError is a mistake of the caller's and says what to do, InternalError is our bug."""

from magneto._C import UserError

__all__ = [
    "BackendError",
    "DataDependent",
    "InternalError",
    "RecordError",
    "UserAttributeError",
    "UserError",
    "UserTypeError",
]


class InternalError(RuntimeError):
    """An invariant of Magneto's own does not hold. Please report it."""


class RecordError(UserError):
    """A program does something that a graph cannot express."""


class DataDependent(RecordError):
    """What a program does depends on the contents of a tensor, which a graph must not."""


class BackendError(UserError):
    """A backend could not compile a graph; the error that it raised is the cause."""


class UserTypeError(UserError, TypeError):
    """A value of the wrong type was given."""


class UserAttributeError(UserError, AttributeError):
    """A name was asked for that does not exist."""
