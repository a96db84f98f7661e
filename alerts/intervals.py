"""The intervals of a Prometheus installation, and the two times of the rules that follow from them.

Pure: no flags, no files.
"""

import re
from dataclasses import dataclass
from typing import Final

_DURATION: Final = re.compile(r"([0-9]+)(s|m)")
# Prometheus looks back five minutes for a sample. Above two minutes a single missed scrape makes series
# come and go, and with them the evidence every rule here stands on.
_LONGEST: Final = 120
# The Lease of a leader that is gone, at its default; Alertmanager asks every second meanwhile.
_FAILOVER: Final = 15


def parse_interval(text: str) -> int:
    """Turn "15s" or "1m" into whole seconds; raises ValueError for any other form."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f'reading interval "{text}": not a duration; expected whole seconds or minutes, as in "15s"')
    return int(match[1]) * (60 if match[2] == "m" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often the exporter is scraped and the rules are evaluated, in whole seconds from 1 to 120.

    The age limit and the hold are derived and cannot be chosen. An age limit above the hold would let
    readings that stopped coming clear a fault that is present; one below a scrape would never let anything
    clear. Raises ValueError for an interval out of range.
    """

    scrape: int = 1
    evaluation: int = 1

    def __post_init__(self) -> None:
        for name, seconds in (("scrape", self.scrape), ("evaluation", self.evaluation)):
            if not 1 <= seconds <= _LONGEST:
                raise ValueError(
                    f'setting the {name} interval to "{seconds}s": out of range; expected 1s to {_LONGEST}s'
                )

    @property
    def settling(self) -> int:
        """Seconds until a change at the source is sure to be seen by an evaluation, one scrape being late."""
        return 2 * self.scrape + self.evaluation

    @property
    def carrying_out(self) -> int:
        """Seconds after which what fires has been answered and is seen to be, even if the leader has just failed.

        It takes the settling to fire, the delivery, and the settling again to see the record that came of it.
        """
        return 2 * self.settling + _FAILOVER

    @property
    def age_limit(self) -> int:
        """Seconds after which a reading is no evidence any more."""
        return max(10, self.settling)

    @property
    def hold(self) -> int:
        """Seconds for which a device must prove clean: never under 15, always longer than the age limit."""
        return self.age_limit + 5

    @property
    def transition_window(self) -> int:
        """The range that shows every transition of the last `hold` seconds.

        A counter's step shows only if the sample before it is in the range too, and one scrape may be missed.
        """
        return self.hold + 2 * self.scrape
