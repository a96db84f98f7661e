"""Write the committed promtool file."""

from tests.alerts.suite import COMMITTED, committed_text

COMMITTED.write_text(committed_text(), encoding="utf-8")
