"""Records that are kept on Nodes, as a test tells faults and as the API server shows what became of them.

It makes no trouble and judges nothing: what is there is handed out as plain values to compare.
"""

from __future__ import annotations

import contextlib
import json
from functools import partial
from http import HTTPStatus
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple

from tests.stack.http import HTTPError, request
from tests.stack.pipeline import TOKEN, Service, install
from tests.stack.process import Startable, wait_until
from tests.stack.sender import WEBHOOK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin
    from tests.stack.nodes import Taint
    from tests.stack.replicas import Replicas
    from tests.stack.shapes import Object
    from tests.storms.storm import Fault, Written

KEY = "neuron.aws.com/device-unhealthy"
ANNOTATION = "neuron-remediator/records"
SECONDS = 20.0
"""How long helpers wait for what the remediator does by itself; a look at all records is at most 15 s away."""


class OnNode(NamedTuple):
    """What counts of one record in a Node's annotation."""

    key: str
    value: str
    effect: str
    state: str
    latched: str
    episode: str
    first_fired: str

    @property
    def brief(self) -> tuple[str, str]:
        """Its effect and its state."""
        return self.effect, self.state


def records(node: Object) -> dict[tuple[int, str], OnNode]:
    """The records in a Node's annotation, by device and fault."""
    text = node["metadata"].get("annotations", {}).get(ANNOTATION)
    entries = json.loads(text)["records"] if text else ()
    return {
        (int(entry["device"]), entry["fault"]): OnNode(
            *(entry[field.replace("_", "-")] for field in OnNode._fields),
        )
        for entry in entries
    }


def record(admin: Admin, fault: Fault) -> OnNode | None:
    """The record of a fault on its Node, if it is there."""
    return records(admin.get("Node", fault.key.node)).get((fault.key.device, fault.key.fault))


def held(admin: Admin, fault: Fault) -> OnNode:
    """The record of a fault on its Node, which must be there."""
    found = record(admin, fault)
    assert found is not None, f"no record of {fault.key}"
    return found


def ours(admin: Admin, node: str, key: str = KEY) -> list[tuple[str, str]]:
    """Value and effect of each taint of that key on a Node."""
    return [(taint.get("value", ""), taint["effect"]) for taint in admin.node_taints(node) if taint["key"] == key]


def as_it_was(node: Object) -> Object:
    """Everything of a Node but its version, and who has written what when."""
    metadata = {name: value for name, value in node["metadata"].items() if name not in _TELL_OF_WRITES}
    return {**node, "metadata": metadata}


_TELL_OF_WRITES = ("resourceVersion", "managedFields")


def settled_node(admin: Admin, name: str, devices: int = 0) -> Object:
    """Make a node, without Neuron slices unless told otherwise; returned once no controller has to do with it."""
    admin.node(name, devices=devices)

    def annotated() -> Object | None:
        node = admin.get("Node", name)
        return node if "node.alpha.kubernetes.io/ttl" in node["metadata"].get("annotations", {}) else None

    return wait_until(annotated, timeout=SECONDS, what=f'the controllers to have seen node "{name}"')


@contextlib.contextmanager
def restarted_with(
    control_plane: ControlPlane, directory: Path, *flags: str, instead_of: Replicas | None = None
) -> Iterator[Service]:
    """A remediator with these flags that leads; meanwhile the one replica that runs is ended, and it goes on after."""
    if instead_of is not None:
        instead_of.end(0)
    else:
        install(control_plane)
    token = directory / "token"
    token.write_text(f"{TOKEN}\n", encoding="utf-8")
    kubeconfig = control_plane.kubeconfig("neuron-remediator")
    common = (f"--kubeconfig={kubeconfig}", f"--webhook.token-file={token}", "--lease.duration=2s")
    service = Service("remediator", directory, (*common, *flags))
    try:
        service.start()
        wait_until(lambda: leads(service), timeout=SECONDS, what="the restarted one to lead")
        yield service
    finally:
        service.process.stop()
        if instead_of is not None:
            instead_of.start(0)
            wait_until(lambda: leads(instead_of.service(0)), timeout=SECONDS, what="the first one to lead again")


def leads(service: Service) -> bool:
    """Whether it says that it leads."""
    return service.value("neuron_remediator_leader") == 1


def tell(service: Service, *bodies: bytes) -> None:
    """Post notifications, one after the other, each until it is taken."""
    for body in bodies:
        becomes(partial(post, service, body), HTTPStatus.OK, "a notification to be taken")


def post(service: Service, body: bytes) -> int:
    """Post one notification; returns the status."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return request("POST", service.url + WEBHOOK, body=body, headers=headers, check=False).status


def shown_state(service: Service, fault: Fault) -> tuple[str, str] | None:
    """Effect and state of a fault's record in the metrics, if it is there."""
    wanted = {"node": fault.key.node, "device": str(fault.key.device), "fault": fault.key.fault}
    for name, labels, _ in service.metrics():
        if name == "neuron_remediator_record" and wanted.items() <= labels.items():
            return labels["effect"], labels["state"]
    return None


def becomes(question: Callable[[], object], wanted: object, what: str, *, within: float = SECONDS) -> None:
    """Wait until the answer is that."""
    last: list[object] = []

    def met() -> bool:
        last[:] = [question()]
        return last[0] == wanted

    with contextlib.suppress(TimeoutError):
        wait_until(met, timeout=within, what=what)
    assert last[0] == wanted, f"{what}: not within {within:g} s"


def node_writes(written: Written, *, besides: str = "") -> list[str]:
    """The verbs of our writes of Nodes; whatever else we wrote is the Lease, our Pod's label, or an Event."""
    of_nodes = [verb for verb, kind, _ in written.everything() if kind == "nodes"]
    others = {kind for _, kind, _ in written.everything()} - {"nodes", "leases", "pods", "events", besides}
    assert others == set(), "something else was written"
    return of_nodes


class NeverFree(Startable):
    """Looks at one device all the time, and keeps the moments in which nothing kept new work off it.

    That is a taint with an effect on its Node, or a rule that stands for the fault. It asks the Node first: a rule is
    there before the Node's taint goes. While the API server is away there is nothing to see.
    """

    def __init__(self, admin: Admin, fault: Fault, *keys: str) -> None:
        self.looks = 0
        self.blind = 0
        self.free: list[str] = []
        self.both = 0
        self._admin = admin
        self._fault = fault
        self._keys = keys or (KEY,)
        self._ends = Event()
        self._thread = Thread(target=self._run, name="never free", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; what was seen stays."""
        self._ends.set()
        self._thread.join(SECONDS)

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self._look()
            except (OSError, HTTPError):
                self.blind += 1
                self._ends.wait(0.02)

    def _look(self) -> None:
        node = self._admin.get("Node", self._fault.key.node)
        by_node = [taint for taint in node["spec"].get("taints", ()) if taint["key"] in self._keys]
        rule = self._admin.find("DeviceTaintRule", self._fault.name)
        by_rule = rule is not None and rule["spec"]["taint"]["effect"] != "None"
        self.looks += 1
        self.both += bool(by_node) and by_rule
        if not by_node and not by_rule:
            self.free.append(f"{node['metadata']['resourceVersion']}: {json.dumps(rule)}")


def without_time(taints: list[Taint]) -> list[Taint]:
    """Taints without the time at which they were set."""
    return [{name: value for name, value in taint.items() if name != "timeAdded"} for taint in taints]
