"""The leader's label on real Pods, with the permissions that ship."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from remediator.cluster import connect
from remediator.pod_label import LEADER, ROLE, PodLabel
from tests.remediator.fakes import eventually
from tests.remediator.live import USER
from tests.stack.controlplane import NAMESPACE
from tests.stack.pipeline import install
from tests.stack.process import wait_for

if TYPE_CHECKING:
    from tests.stack.controlplane import ControlPlane
    from tests.stack.kube import Admin

PODS = ("pod-a", "pod-b", "unrelated")
ELSEWHERE = "kube-system"


@dataclass
class Labelling:
    """One replica's part, which leads when it is told so."""

    label: PodLabel
    leads: bool = False

    def change(self, *, leads: bool) -> None:
        """Change the leader, and let it look."""
        self.leads = leads
        self.label.look()


@dataclass
class View:
    """The administrator's view."""

    admin: Admin
    plane: ControlPlane

    def pod(self, name: str, namespace: str = NAMESPACE, **labels: str) -> None:
        """Make a Pod."""
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        spec = {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}]}
        self.admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def labelled(self, namespace: str = NAMESPACE) -> set[str]:
        """The Pods that the Service selects."""
        pods = self.admin.items("Pod", namespace=namespace, selector=f"{ROLE}={LEADER}")
        return {pod["metadata"]["name"] for pod in pods}

    async def becomes(self, *names: str) -> None:
        """Wait until exactly these are selected."""

        async def met() -> bool:
            return await asyncio.to_thread(self.labelled) == set(names)

        await wait_for(met, timeout=10, what=f"the label on {names} alone")

    def requests(self, verb: str, namespace: str = NAMESPACE) -> int:
        """How many of that kind we have made so far."""
        made = self.plane.audit(user=USER, verbs=[verb], resource="pods")
        return sum(event["objectRef"].get("namespace") == namespace for event in made)

    async def looked(self, times: int = 2, namespace: str = NAMESPACE) -> None:
        """Wait for more looks."""
        before = self.requests("list", namespace)
        await eventually(lambda: self.requests("list", namespace) >= before + times, what=f"{times} more looks")


Make = Callable[..., Labelling]


@pytest.fixture
def view(control_plane: ControlPlane, admin: Admin) -> Any:
    """Give the administrator's view of three Pods."""
    install(control_plane)
    made = View(admin, control_plane)
    for name in PODS:
        made.pod(name, **{"app.kubernetes.io/name": "neuron-remediator"})
    yield made
    for namespace in (NAMESPACE, ELSEWHERE):
        for pod in admin.items("Pod", namespace=namespace):
            admin.delete("Pod", pod["metadata"]["name"], namespace=namespace, grace=0)


@pytest.fixture
async def make(view: View) -> AsyncIterator[Make]:
    """Give a way to run replicas."""
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connect(view.plane.kubeconfig(USER)))

        def start(pod: str, *, leads: bool = False, namespace: str = NAMESPACE) -> Labelling:
            one = Labelling(
                PodLabel(api, namespace=namespace, pod=pod, leads=lambda: one.leads, look_seconds=0.1), leads
            )
            task = asyncio.create_task(one.label.run())
            stack.push_async_callback(ended, task)
            return one

        yield start


async def ended(task: asyncio.Task[None]) -> None:
    assert not task.done(), "it ended by itself"
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_the_leader_labels_itself_and_strips_the_others(make: Make, view: View) -> None:
    view.admin.patch("Pod", "pod-b", {"metadata": {"labels": {ROLE: LEADER}}}, namespace=NAMESPACE)
    view.pod("somebodys", ELSEWHERE, **{ROLE: LEADER})
    view.admin.patch("Pod", "unrelated", {"metadata": {"labels": {ROLE: "other"}}}, namespace=NAMESPACE)
    make("pod-a", leads=True)

    await view.becomes("pod-a")
    assert view.labelled(ELSEWHERE) == {"somebodys"}
    labels = view.admin.get("Pod", "pod-a", namespace=NAMESPACE)["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/name": "neuron-remediator", ROLE: LEADER}
    assert view.admin.get("Pod", "unrelated", namespace=NAMESPACE)["metadata"]["labels"][ROLE] == "other"


async def test_a_new_process_takes_away_what_the_one_before_it_left(make: Make, view: View) -> None:
    for name in ("pod-a", "pod-b"):
        view.admin.patch("Pod", name, {"metadata": {"labels": {ROLE: LEADER}}}, namespace=NAMESPACE)
    make("pod-a")
    # Whose the other one is, is not the business of who does not lead.
    await view.becomes("pod-b")


async def test_the_label_follows_the_leader(make: Make, view: View) -> None:
    first, second = make("pod-a", leads=True), make("pod-b")
    await view.becomes("pod-a")
    first.change(leads=False)
    await view.becomes()
    second.change(leads=True)
    await view.becomes("pod-b")


async def test_a_leader_keeps_the_labels_right_and_writes_only_then(make: Make, view: View) -> None:
    make("pod-a", leads=True)
    await view.becomes("pod-a")
    await view.looked()
    before = view.requests("patch")
    await view.looked(3)
    assert view.requests("patch") == before

    change = {"metadata": {"labels": {ROLE: None}}}
    view.admin.patch("Pod", "pod-a", change, namespace=NAMESPACE)
    view.admin.patch("Pod", "unrelated", {"metadata": {"labels": {ROLE: LEADER}}}, namespace=NAMESPACE)
    await view.becomes("pod-a")


async def test_a_standby_has_nothing_to_ask(make: Make, view: View) -> None:
    before = view.requests("list")
    make("pod-b")
    await eventually(lambda: view.requests("list") == before + 1, what="the look at the start")
    # One that looks as often as a leader does is the clock here.
    make("pod-a", leads=True, namespace=ELSEWHERE)
    await view.looked(5, ELSEWHERE)
    assert view.requests("list") == before + 1


@pytest.mark.parametrize(
    ("place", "told"), [(("my-laptop", NAMESPACE), "is not there"), (("pod-a", ELSEWHERE), "forbidden")]
)
async def test_what_cannot_be_labelled_is_said_once(
    make: Make, view: View, caplog: pytest.LogCaptureFixture, place: tuple[str, str], told: str
) -> None:
    """A remediator that runs in no Pod leads all the same; and so does one that may not change Pods."""
    view.admin.patch("Pod", "pod-b", {"metadata": {"labels": {ROLE: LEADER}}}, namespace=NAMESPACE)
    pod, namespace = place
    make(pod, leads=True, namespace=namespace)
    await view.looked(4, namespace)

    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert told in str(vars(warning)["error"])
    # The others are stripped, if that is allowed.
    await view.becomes(*(() if namespace == NAMESPACE else ("pod-b",)))
