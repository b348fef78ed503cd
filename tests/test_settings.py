"""Options are typed, described and refused with a hint."""

from __future__ import annotations

import pytest

from dovetail.errors import OptionError
from dovetail.settings import FROM_ENVIRONMENT, Settings, describe, settings_of
from tests.golden import Golden


def test_options_fill_the_fields() -> None:
    assert settings_of({}) == Settings(strict=False, verify_each_pass=False, print_report=False)
    assert settings_of({"verify_each_pass": True, "strict": True}) == Settings(verify_each_pass=True, strict=True)


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="no option 'verify_each'") as caught:
        settings_of({"verify_each": True})
    assert caught.value.hint == "did you mean verify_each_pass?"
    with pytest.raises(OptionError) as caught:
        settings_of({"zzz": 1})
    assert "strict, " in caught.value.hint and "verify_each_pass" in caught.value.hint


@pytest.mark.parametrize(("name", "value"), [("strict", 1), ("print_report", "yes"), ("print_report", None)])
def test_wrong_value_is_refused(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"the option {name} is {value!r}") as caught:
        settings_of({name: value})
    assert caught.value.hint


def test_environment_is_read_and_an_option_wins() -> None:
    assert settings_of({}, {"DOVETAIL_REPORT": "1"}).print_report is True
    assert settings_of({}, {"DOVETAIL_REPORT": "0"}).print_report is False
    assert settings_of({"print_report": False}, {"DOVETAIL_REPORT": "1"}).print_report is False
    with pytest.raises(OptionError, match="DOVETAIL_REPORT is 'yes'"):
        settings_of({}, {"DOVETAIL_REPORT": "yes"})


def test_page_of_settings(golden: Golden) -> None:
    page = describe()
    assert all(name in page for name in FROM_ENVIRONMENT)
    golden.file("docs/settings.md", page)
