"""Flags: what the environment says, and one clear sentence for what it cannot say."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from capture import config


@pytest.fixture
def flag(monkeypatch: pytest.MonkeyPatch):
    """Makes a flag that no other test sees, with its variable set."""
    monkeypatch.setattr(config, "FLAGS", {})

    def make(default: int | str, text: str | None = None) -> config.Flag:
        if text is not None:
            monkeypatch.setenv("CAPTURE_NOVEL", text)
        return config.Flag("NOVEL", default, "what it means")
    return make


@pytest.mark.parametrize(("default", "text", "value"), [
    (3, None, 3), (3, "5", 5), (3, "-1", -1), (1, "0", 0),
    ("", None, ""), ("", "/some/where", "/some/where"), ("a", "1", "1"), ("a", "", ""),
])
def test_a_flag_has_the_type_of_its_default(flag, default: int | str, text: str | None, value: int | str) -> None:
    made = flag(default, text)
    assert made.value == value and type(made.value) is type(default)
    assert bool(made) is bool(value)
    assert config.FLAGS == {"NOVEL": made}


@pytest.mark.parametrize("text", ["", "yes", "1.5"])
def test_what_is_no_integer_is_refused(flag, text: str) -> None:
    sentence = f"CAPTURE_NOVEL={text!r} is not an integer; set it to a number (what it means)"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        flag(1, text)


def test_a_value_holds_for_a_block(flag) -> None:
    made = flag("outside")
    with pytest.raises(KeyError), made.set("inside"):
        assert made.value == "inside"
        raise KeyError
    assert made.value == "outside"


def test_the_documentation_lists_all_flags() -> None:
    listed = (Path(__file__).parents[2] / "docs/flags.md").read_text()
    rows = re.findall(r"^\| `CAPTURE_(\w+)` \| (.*?) \| (.*?) \|$", listed, re.MULTILINE)
    assert rows == [(flag.name, f"`{flag.default}`" if flag.default != "" else "", flag.meaning) for flag in config.FLAGS.values()]


def test_every_flag_is_listed_with_its_meaning() -> None:
    flags = {name: value for name, value in vars(config).items() if isinstance(value, config.Flag)}
    assert flags == config.FLAGS
    assert all(made.name == name and made.meaning for name, made in flags.items())
