"""magneto.config: names, types, patch, documentation and environment variables."""

import os
import pathlib
import subprocess
import sys

import magneto
import pytest
from magneto import _C
from magneto.settings import environment_variable

SETTINGS = _C.settings()
NAMES = [name for name, _, _ in SETTINGS]


@pytest.fixture(autouse=True)
def as_before():
    values = {name: _C.get_setting(name) for name in NAMES}
    yield
    for name, value in values.items():
        _C.set_setting(name, value)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_can_be_read_listed_and_set_to_its_own_value(name):
    assert name in dir(magneto.config)
    assert hasattr(magneto.config, name)
    value = getattr(magneto.config, name)
    setattr(magneto.config, name, value)
    assert getattr(magneto.config, name) == value


@pytest.mark.parametrize(("name", "doc", "default"), SETTINGS)
def test_every_setting_is_documented(name, doc, default):
    assert doc.endswith(".") and len(doc) > 10
    assert name in repr(magneto.config) and doc in repr(magneto.config)
    page = pathlib.Path(__file__).parent.parent / "docs" / "settings.md"
    assert f"| `{name}` | `{default!r}` | `{environment_variable(name)}` | {doc} |" in page.read_text()


def test_setting_a_value_takes_effect():
    magneto.config.cache_limit = 3
    assert magneto.config.cache_limit == 3
    assert _C.get_setting("cache_limit") == 3
    assert "cache_limit = 3 (default 8)" in repr(magneto.config)


@pytest.mark.parametrize(
    "use",
    [
        lambda: magneto.config.cach_limit,
        lambda: setattr(magneto.config, "cach_limit", 3),
        lambda: delattr(magneto.config, "cach_limit"),
        lambda: magneto.config.patch(cach_limit=3).__enter__(),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_choices(use):
    with pytest.raises(magneto.UserError, match=r"no setting 'cach_limit'.*cache_limit.*recapture_limit") as caught:
        use()
    assert isinstance(caught.value, AttributeError)


def test_unknown_names_are_absent_for_hasattr():
    assert not hasattr(magneto.config, "cach_limit")
    assert not hasattr(magneto.config, "__wrapped__")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cache_limit", "8", r"cache_limit expects a value of type int, got '8' of type str"),
        ("cache_limit", True, r"cache_limit expects a value of type int, got True of type bool"),
        ("cache_limit", 8.0, r"cache_limit expects a value of type int, got 8.0 of type float"),
        ("enabled", 1, r"enabled expects a value of type bool, got 1 of type int"),
        ("logs", None, r"logs expects a value of type str, got None of type NoneType"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_that_says_which_was_expected(name, value, message):
    before = getattr(magneto.config, name)
    with pytest.raises(magneto.UserError, match=message) as caught:
        setattr(magneto.config, name, value)
    assert isinstance(caught.value, TypeError)
    assert getattr(magneto.config, name) == before


@pytest.mark.parametrize(
    ("name", "value", "message"), [("cache_limit", -1, "0 or more"), ("logs", "capure", "capture")]
)
def test_a_value_that_makes_no_sense_is_an_error_that_says_what_would(name, value, message):
    with pytest.raises(magneto.UserError, match=message):
        setattr(magneto.config, name, value)
    with pytest.raises(magneto.UserError, match=message), magneto.config.patch(enabled=False, **{name: value}):
        pytest.fail("the block must not run")
    assert magneto.config.enabled is True
    assert getattr(magneto.config, name) != value


def test_settings_cannot_be_deleted():
    with pytest.raises(magneto.UserError, match=r"cache_limit cannot be deleted; set it instead"):
        del magneto.config.cache_limit


def test_patch_as_context_manager_puts_everything_back():
    with magneto.config.patch(cache_limit=2, enabled=False):
        assert magneto.config.cache_limit == 2 and magneto.config.enabled is False
        with magneto.config.patch(cache_limit=1):
            assert magneto.config.cache_limit == 1
        assert magneto.config.cache_limit == 2
    assert magneto.config.cache_limit == 8 and magneto.config.enabled is True


def test_patch_puts_back_after_an_exception():
    with pytest.raises(RuntimeError, match="ouch"), magneto.config.patch(cache_limit=2):
        raise RuntimeError("ouch")
    assert magneto.config.cache_limit == 8


def test_patch_as_decorator_patches_each_call():
    @magneto.config.patch(cache_limit=2)
    def read():
        return magneto.config.cache_limit

    assert [read(), read()] == [2, 2]
    assert magneto.config.cache_limit == 8


def test_a_wrong_patch_changes_nothing():
    with pytest.raises(magneto.UserError), magneto.config.patch(cache_limit=2, enabled="no"):
        pytest.fail("the block must not run")
    assert magneto.config.cache_limit == 8


def in_new_process(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def test_environment_variables_are_read_at_import():
    code = "import magneto; print(magneto.config.cache_limit, magneto.config.without_tensors)"
    ran = in_new_process(code, MAGNETO_CACHE_LIMIT="3", MAGNETO_WITHOUT_TENSORS="1")
    assert ran.stdout.split() == ["3", "True"], ran.stderr


def test_an_environment_variable_that_does_not_parse_is_an_error_that_names_it():
    ran = in_new_process("import magneto", MAGNETO_CACHE_LIMIT="many")
    assert ran.returncode != 0
    assert "MAGNETO_CACHE_LIMIT" in ran.stderr and "many" in ran.stderr
