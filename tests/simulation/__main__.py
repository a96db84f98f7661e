"""Keep a FAKE node's driver files in a folder, hearts beating, until SIGTERM or SIGINT."""

import argparse
import signal
import sys
from pathlib import Path

from tests.simulation.driver import SimulatedDriver


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder that stands for /sys")
    parser.add_argument("--devices", type=int, default=16, help="number of devices (default 16)")
    parser.add_argument("--layout", choices=("2.30", "2.31"), default="2.30", help="driver whose layout is shown")
    arguments = parser.parse_args()
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    # Before the first thread starts, so that it inherits the mask and sigwait alone sees the signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
    driver = SimulatedDriver(arguments.root, devices=arguments.devices, layout=arguments.layout)
    with driver.beating():
        print(f"simulating {arguments.devices} devices under '{arguments.root}'", flush=True)
        signal.sigwait(stop_signals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
