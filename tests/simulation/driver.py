"""A FAKE of the files that the Neuron driver shows of its devices under ``/sys``.

No hardware is behind it. What it assumes, because no public text says more:

* Names and formats up to driver 2.30 are those of the driver's source and user guide; ``unhealthy_components``
  of a healthy device is an empty line, and ``healthcheck_heartbeat`` a decimal that wraps at 256.
* Driver 2.31 moved the files; where to is not published. The layout ``2.31`` puts the same names elsewhere and
  deeper, which is all that a reader may rely on.
* ``reset`` resets the device when written to. Here it is a FIFO that nobody reads, so that a reader
  that opens it for writing, or reads it without care, is found out by hanging.

Every write is atomic (a temporary file renamed into place), as a read of a sysfs file is.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from alerts.faults import Example

Layout = Literal["2.30", "2.31"]

_WRAP: Final = 256
_STATS: Final = "stats/hardware"
_HEALTH: Final[dict[Layout, str]] = {
    "2.30": "stats/hardware/health_status",
    "2.31": "health/firmware/status/current",
}
_DRIVER_VERSION: Final[dict[Layout, str]] = {"2.30": "2.30.2.0", "2.31": "2.31.1.0"}


class SimulatedDriver:
    """FAKE driver files of one node, below ``root`` as they would be below ``/sys``.

    Every device starts healthy, with its heartbeat at a different value. Methods raise KeyError for a device
    that the node does not have. Safe to use from several threads.
    """

    def __init__(self, root: Path, *, devices: int = 16, layout: Layout = "2.30") -> None:
        self.root = root
        self._layout: Layout = layout
        self._lock = threading.Lock()
        self._heartbeats = {device: device for device in range(devices)}
        self._frozen: set[int] = set()
        self._vanished: set[int] = set()
        self.load_module()

    def directory(self, device: int) -> Path:
        """Folder of one device, whether it is there or not."""
        return self.root / f"devices/virtual/neuron_device/neuron{device}"

    def health_file(self, device: int, name: str) -> Path:
        """Where the layout keeps one of the health files."""
        return self.directory(device) / _HEALTH[self._layout] / name

    def beat(self) -> None:
        """Advance the heartbeat of every device that is there and not frozen."""
        with self._lock:
            for device in self._heartbeats.keys() - self._frozen - self._vanished:
                self._heartbeats[device] = (self._heartbeats[device] + 1) % _WRAP
                self._write_heartbeat(device)

    def show(self, device: int, example: Example) -> None:
        """Make the device show exactly this example."""
        (self.freeze if example.heartbeat == "frozen" else self.thaw)(device)
        self.set_components(device, example.components)

    def set_components(self, device: int, text: str) -> None:
        """Set the text of ``unhealthy_components``."""
        with self._lock:
            self._write(self.health_file(device, "unhealthy_components"), text)

    def freeze(self, device: int) -> None:
        """Stop the heartbeat of the device where it is."""
        with self._lock:
            self._frozen.add(device)

    def thaw(self, device: int) -> None:
        """Let the heartbeat of the device go on."""
        with self._lock:
            self._frozen.discard(device)

    def vanish(self, device: int) -> None:
        """Remove the folder of the device."""
        with self._lock:
            self._vanished.add(device)
            shutil.rmtree(self.directory(device))

    def restore(self, device: int) -> None:
        """Bring the folder of the device back, healthy and beating."""
        with self._lock:
            self._frozen.discard(device)
            self._vanished.discard(device)
            self._create(device)

    def unload_module(self) -> None:
        """Remove everything the driver shows, as ``rmmod neuron`` does."""
        with self._lock:
            self._vanished = set(self._heartbeats)
            shutil.rmtree(self.root / "devices", ignore_errors=True)
            shutil.rmtree(self.root / "module", ignore_errors=True)

    def load_module(self, layout: Layout | None = None) -> None:
        """Show everything, every device healthy; with another layout, what an upgraded driver shows."""
        with self._lock:
            self._layout = layout or self._layout
            self._vanished.clear()
            self._frozen.clear()
            self._write(self.root / "module/neuron/version", f"{_DRIVER_VERSION[self._layout]}\n")
            for device in self._heartbeats:
                self._create(device)

    @contextmanager
    def beating(self, interval: float = 0.2) -> Iterator[None]:
        """Beat every ``interval`` seconds, from another thread, until the block ends."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(interval):
                self.beat()

        thread = threading.Thread(target=work, name="simulated heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _create(self, device: int) -> None:
        folder = self.directory(device)
        for name, text in _identity_files(device).items():
            self._write(folder / name, text)
        for counter in (
            "sram_ecc_uncorrected",
            "mem_ecc_uncorrected",
            "mem_ecc_repairable_uncorrected",
            "sram_ecc_corrected",
            "mem_ecc_corrected",
        ):
            self._write(folder / _STATS / counter, "0\n")
        for counter in (
            "hbm_ecc_err_count",
            "repairable_hbm_ecc_err_count",
            "sram_ecc_err_count",
            "hw_error_event",
        ):
            self._write(self.health_file(device, counter), "0\n")
        if not (folder / "reset").exists():
            os.mkfifo(folder / "reset", 0o200)
        self._write(self.health_file(device, "unhealthy_components"), "\n")
        self._write_heartbeat(device)

    def _write_heartbeat(self, device: int) -> None:
        self._write(self.health_file(device, "healthcheck_heartbeat"), f"{self._heartbeats[device]}\n")

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def _identity_files(device: int) -> dict[str, str]:
    return {
        "core_count": "8",
        "connected_devices": f"{device ^ 1}, {device ^ 2}\n",
        "info/serial_number": f"{0x19FCDA00F5FF6E00 + device:016x}\n",
        "info/architecture/arch_type": "NDv3\n",
        "info/architecture/device_name": "Trainium2\n",
        "info/architecture/instance_type": "Trn2\n",
        # The cores carry files of the same names; they are not the device's.
        "neuron_core0/info/architecture/arch_type": "NCv3\n",
        "neuron_core0/stats/status/hw_hbm_ue_error/total": "0\n",
    }
