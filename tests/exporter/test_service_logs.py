"""One line a record, whatever is logged."""

import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from exporter.service import logs


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = handlers, level


LOG = logging.getLogger("somewhere")
HOSTILE = 'a b="c"\nlevel=error msg=forged\r\x1b[31m ü'


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_hostile_values_stay_on_one_line(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", style)
    LOG.info("msg %s", HOSTILE, extra={"device": 3, "reason": HOSTILE, "latched": True, "none": None})
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "\x1b" not in printed
    if style == "json":
        fields = json.loads(printed)
        assert fields["reason"] == HOSTILE
        assert fields["device"] == 3
        assert fields["latched"] is True
        assert fields["level"] == "info"
    else:
        assert " device=3 " in printed
        assert " latched=true " in printed
        assert f" reason={json.dumps(HOSTILE)} " in printed


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_an_exception_is_one_line_with_its_place(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", style)
    try:
        int("first\nsecond")
    except ValueError:
        LOG.exception("failed")
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "ValueError: invalid literal" in printed
    assert "test_service_logs.py:" in printed
    assert "Traceback" not in printed


def test_libraries_that_print_bodies_do_not_speak_below_info(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("debug", "logfmt")
    logging.getLogger("kubernetes_asyncio.client.rest").debug("response body: secret")
    LOG.debug("ours")
    printed = capsys.readouterr().err
    assert "secret" not in printed
    assert "msg=ours" in printed


def test_warnings_are_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "logfmt")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
    assert "level=warning" in capsys.readouterr().err
