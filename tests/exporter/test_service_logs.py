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
    handlers = root.handlers[:]
    levels = {
        name: logging.getLogger(name).level for name in (None, "aiohttp", "asyncio", "kubernetes_asyncio", "trail")
    }
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


LOG = logging.getLogger("somewhere")
REFUSED = "notification refused"
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


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_an_audit_trail_is_json_at_any_level_and_nothing_else_is(
    style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("error", style, audit=["trail"])
    logging.getLogger("trail").info("made %s", HOSTILE, extra={"device": 3, "reason": HOSTILE})
    logging.getLogger("trail").debug("not of interest")
    LOG.info("not of interest either")
    LOG.error("failed")
    trail, other = capsys.readouterr().err.splitlines()
    assert json.loads(trail) | {"msg": f"made {HOSTILE}", "device": 3, "reason": HOSTILE} == json.loads(trail)
    assert other.startswith("{" if style == "json" else "ts=")


def suppressed(caplog: pytest.LogCaptureFixture, message: str) -> list[int]:
    """How many each record of the message says were left out before it."""
    return [getattr(record, "suppressed", 0) for record in caplog.records if record.getMessage() == message]


def test_a_flood_is_one_line_an_interval_that_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    seldom = logs.Seldom(LOG, 10, lambda: now)
    for _ in range(250):
        seldom.warning(REFUSED, extra={"remote": "10.0.0.1"})
        now += 0.1
    assert suppressed(caplog, REFUSED) == [0, 99, 99]
    now += 60
    seldom.warning(REFUSED)
    seldom.warning(REFUSED)
    assert suppressed(caplog, REFUSED) == [0, 99, 99, 49]
    now += 10
    seldom.warning(REFUSED)
    now += 10
    seldom.warning(REFUSED)
    assert suppressed(caplog, REFUSED) == [0, 99, 99, 49, 1, 0]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert vars(caplog.records[0])["remote"] == "10.0.0.1"


def test_one_message_does_not_hold_up_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seldom = logs.Seldom(LOG, 10, lambda: 1000.0)
    for _ in range(3):
        seldom.warning(REFUSED)
        seldom.log(logging.INFO, REFUSED)
        seldom.warning("no answer of the API server")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", REFUSED),
        ("INFO", REFUSED),
        ("WARNING", "no answer of the API server"),
    ]


def test_malformed_requests_fill_no_log_and_hide_no_error_of_a_handler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("exporter.service.logs.time.monotonic", lambda: now[0])
    logs.configure("info", "logfmt")
    server = logging.getLogger("aiohttp.server")

    def fail(error: Exception) -> None:
        server.error("Error handling request", exc_info=error)

    for _ in range(300):
        fail(ValueError("header too long"))
    fail(ZeroDivisionError())
    now[0] += 10
    fail(ValueError("header too long"))

    lines = capsys.readouterr().err.splitlines()
    assert [("ValueError" in line, "suppressed=299" in line) for line in lines] == [
        (True, False),
        (False, False),
        (True, True),
    ]
