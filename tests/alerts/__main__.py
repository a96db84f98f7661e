"""Write the committed promtool file, or with `--check` see that it is current."""

import sys

from tests.alerts.suite import COMMITTED, committed_text, outdated

if sys.argv[1:] == ["--check"]:
    sys.exit(outdated(COMMITTED))
if sys.argv[1:]:
    sys.exit(f'reading the command line: unknown "{" ".join(sys.argv[1:])}"; expected nothing or --check')
COMMITTED.write_text(committed_text(), encoding="utf-8")
print(f'wrote "{COMMITTED}"', file=sys.stderr)
