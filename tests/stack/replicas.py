"""Several remediator processes over one control plane, as the replicas of a Deployment: each with a Pod of its own.

The Pods are real objects that nothing runs; the processes stand for what would run in them.
"""

import contextlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.stack.apiproxy import ApiProxy
from tests.stack.controlplane import NAMESPACE, ControlPlane
from tests.stack.kube import Admin
from tests.stack.pipeline import TOKEN, Service, install
from tests.stack.process import Startable, wait_until
from tests.stack.service_ip import LEADER
from tests.stack.shapes import Object

LEASE = "neuron-remediator"


@dataclass(frozen=True)
class _Replica:
    pod: str
    service: Service
    proxy: ApiProxy | None


class Replicas(Startable):
    """``count`` replicas, each addressed by its index; their Pods and the Lease are gone after it.

    ``lease_seconds`` is how long the Lease lasts; ``None`` gives no flag about it. With ``proxied`` each replica has a
    way to the API server of its own, on which trouble can be made. ``flags`` are further ones of the remediator.
    """

    def __init__(
        self,
        directory: Path,
        control_plane: ControlPlane,
        *,
        count: int = 2,
        lease_seconds: float | None = 2,
        proxied: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        self._control_plane = control_plane
        self._admin = Admin(control_plane)
        self._paused: set[int] = set()
        directory.mkdir(parents=True, exist_ok=True)
        token = directory / "token"
        token.write_text(f"{TOKEN}\n", encoding="utf-8")
        self._flags = (f"--webhook.token-file={token}", *flags)
        self._lease_seconds = lease_seconds
        self._replicas = [self._replica(directory, index, proxied=proxied) for index in range(count)]

    def _replica(self, directory: Path, index: int, *, proxied: bool) -> _Replica:
        name = f"{LEASE}-{index}"
        proxy = ApiProxy(self._control_plane, directory / name) if proxied else None
        kubeconfig = (proxy or self._control_plane).kubeconfig("neuron-remediator")
        seconds = self._lease_seconds
        lease = () if seconds is None else (f"--lease.duration={seconds:g}s", f"--lease.pod={name}")
        service = Service("remediator", directory / name, (f"--kubeconfig={kubeconfig}", *lease, *self._flags))
        return _Replica(name, service, proxy)

    def __len__(self) -> int:
        return len(self._replicas)

    def start(self, index: int | None = None, *, wait: bool = True) -> None:
        """Start one that does not run, or everything; returns once ready, unless told not to ``wait``.

        One is started in the same Pod, as a container is after a crash.
        """
        if index is not None:
            service = self._replicas[index].service
            if wait:
                service.start()
            else:
                service.process.start()
            return
        try:
            self._start_all(wait=wait)
        except BaseException:
            self.stop()
            raise

    def _start_all(self, *, wait: bool) -> None:
        install(self._control_plane)
        for replica in self._replicas:
            self._admin.create(pod(replica.pod), namespace=NAMESPACE)
            if replica.proxy is not None:
                replica.proxy.start()
        for index in range(len(self)):
            self.start(index, wait=wait)

    def stop(self) -> None:
        """Stop every process in order, then take away what stood around it."""
        with contextlib.ExitStack() as rest:
            rest.callback(self._admin.delete, "Lease", LEASE, namespace=NAMESPACE)
            for index, replica in enumerate(self._replicas):
                rest.callback(self._admin.delete, "Pod", replica.pod, namespace=NAMESPACE, grace=0)
                if replica.proxy is not None:
                    rest.callback(replica.proxy.stop)
                rest.callback(self.kill if index in self._paused else self.end, index)

    def end(self, index: int) -> None:
        """End one as a rollout would: SIGTERM, and time to finish."""
        self._replicas[index].service.process.stop()

    def kill(self, index: int) -> None:
        """End one as a crash would. Its Pod stays, with its label."""
        self._replicas[index].service.process.kill()
        self._paused.discard(index)

    def pause(self, index: int) -> None:
        """Let one stand still, as a stalled machine would; its connections stay."""
        self._replicas[index].service.process.send_signal(signal.SIGSTOP)
        self._paused.add(index)

    def resume(self, index: int) -> None:
        """Let a paused one go on."""
        self._replicas[index].service.process.send_signal(signal.SIGCONT)
        self._paused.discard(index)

    def url(self, index: int) -> str:
        """Where one serves."""
        return self._replicas[index].service.url

    def service(self, index: int) -> Service:
        """One as a process with metrics."""
        return self._replicas[index].service

    def proxy(self, index: int) -> ApiProxy:
        """The way of one to the API server. ``ValueError`` without ``proxied``."""
        found = self._replicas[index].proxy
        if found is None:
            raise ValueError(f"asking for the proxy of replica {index}: it has none; expected proxied=True")
        return found

    def pod(self, index: int) -> str:
        """The name of one's Pod, in the remediator's namespace."""
        return self._replicas[index].pod

    def addresses(self) -> dict[str, str]:
        """Where each serves, by the name of its Pod: what ``ServiceIp`` wants."""
        return {replica.pod: replica.service.address for replica in self._replicas}

    def leading(self) -> list[int]:
        """Those that say of themselves that they lead; one that is down or paused says nothing."""
        return [index for index in range(len(self)) if self._says_it_leads(index)]

    def labelled(self) -> list[int]:
        """Those whose Pod carries the leader's label."""
        names = {one["metadata"]["name"] for one in self._admin.items("Pod", namespace=NAMESPACE, selector=LEADER)}
        return [index for index, replica in enumerate(self._replicas) if replica.pod in names]

    def leader(self) -> int | None:
        """The one that leads and whose Pod says so too; ``None`` while there is none, or any doubt."""
        leading = self.leading()
        return leading[0] if len(leading) == 1 and leading == self.labelled() else None

    def wait_for_leader(self, *, other_than: int | None = None, timeout: float = 20) -> int:
        """Wait until there is a leader, another one than that; returns it."""

        def found() -> list[int]:
            return [leader for leader in (self.leader(),) if leader not in (None, other_than)]

        return wait_until(found, timeout=timeout, what=f"a leader other than {other_than}")[0]

    def _says_it_leads(self, index: int) -> bool:
        service = self._replicas[index].service
        if index in self._paused or not service.process.running:
            return False
        with contextlib.suppress(OSError):  # it does not listen yet, or ends just now
            return service.value("neuron_remediator_leader") == 1
        return False


def pod(name: str) -> Object:
    """Return a Pod as the Deployment would make it, which nothing schedules or runs."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "neuron-remediator"}},
        "spec": {
            "schedulerName": "nobody",  # bound to a node of the test, it would go with that node
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "remediator", "image": "registry.k8s.io/pause:3.10"}],
        },
    }
