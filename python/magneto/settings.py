"""magneto.config: the settings of the native table as attributes, checked by name and by type."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import NoReturn

from magneto import _C
from magneto.errors import UserAttributeError, UserError, UserTypeError

__all__ = ["Config", "config"]

SettingValue = bool | int | str


class Config:
    """Magneto's settings.

    Read and set them as attributes (``config.cache_limit = 16``), for a while with ``config.patch(cache_limit=16)``, or
    from outside with environment variables (``MAGNETO_CACHE_LIMIT=16``), which are read once, at import. They hold for
    the whole process. ``print(config)`` shows them all with their values and what they do.
    """

    def __getattr__(self, name: str) -> SettingValue:
        # Python and its tools probe objects for special names; these are never settings.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _value(name)

    def __setattr__(self, name: str, value: SettingValue) -> None:
        _check(name, value)
        _C.set_setting(name, value)

    def __delattr__(self, name: str) -> NoReturn:
        _value(name)
        raise UserAttributeError(f"magneto.config.{name} cannot be deleted; set it instead")

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *(name for name, _, _ in _C.settings())})

    def __repr__(self) -> str:
        lines = ["magneto.config"]
        for name, doc, default in _C.settings():
            value = _C.get_setting(name)
            changed = "" if value == default else f" (default {default!r})"
            lines.append(f"  {name} = {value!r}{changed}\n      {doc}  [{environment_variable(name)}]")
        return "\n".join(lines)

    @contextlib.contextmanager
    def patch(
        self, name: str | Mapping[str, SettingValue] = "", value: SettingValue | None = None, /, **named: SettingValue
    ) -> Iterator[None]:
        """Changes settings inside a ``with`` block, or while a decorated function runs, and puts them back after it.

        ``patch(cache_limit=16)``, ``patch("cache_limit", 16)`` and ``patch({"cache_limit": 16})`` are the same.
        """
        changes = {**_changes(name, value), **named}
        for name, value in changes.items():
            _check(name, value)
        before = {name: _C.get_setting(name) for name in changes}
        try:
            for name, value in changes.items():
                _C.set_setting(name, value)
            yield
        finally:
            for name, value in before.items():
                _C.set_setting(name, value)


def environment_variable(name: str) -> str:
    """The environment variable that gives the setting `name` its value at import."""
    return f"MAGNETO_{name.upper()}"


def _value(name: str) -> SettingValue:
    try:
        return _C.get_setting(name)
    except UserError as error:
        raise UserAttributeError(str(error)) from None


def _changes(name: object, value: SettingValue | None) -> Mapping[str, SettingValue]:
    if isinstance(name, Mapping) and value is None:
        return name
    if name == "" and value is None:
        return {}
    if isinstance(name, str) and value is not None:
        return {name: value}
    raise UserTypeError(
        f"config.patch expects settings by name, a dict, or a name and a value, got {name!r}, {value!r}"
    )


def _check(name: str, value: object) -> None:
    expected = type(_value(name))
    # Exactly the type: True is an int to Python, but hardly what someone meant for a limit.
    if type(value) is not expected:
        raise UserTypeError(
            f"magneto.config.{name} expects a value of type {expected.__name__}, "
            f"got {value!r} of type {type(value).__name__}"
        )


config = Config()
