"""What the Neuron UltraServer Operator and its chart do to a cluster, for tests without it."""

import http.client
from collections.abc import Sequence

from tests.stack import crds
from tests.stack.client import WAIT_SECONDS, Client
from tests.stack.http import HTTPError
from tests.stack.process import wait_until
from tests.stack.shapes import Object


class UltraServers(Client):
    """A client that stands in for the operator: nothing keeps the objects up to date but the test."""

    def serve_ultraservers(self, version: crds.Version = "v1") -> None:
        """Serve NeuronUltraServers in this version alone, and wait until that is so. Those that are there stay."""
        self.apply(crds.ultraserver_definition(version))
        self._wait_ultraservers(version)

    def stop_serving_ultraservers(self) -> None:
        """Take NeuronUltraServers and their definition away, and wait until they are no longer served."""
        self.delete("CustomResourceDefinition", crds.NAME)
        self._wait_ultraservers(None)

    def ultraserver(
        self,
        name: str,
        members: Sequence[str],
        *,
        state: str = "Ready",
        instance_type: str = "trn2u.48xlarge",
        namespace: str = "default",
    ) -> Object:
        """Make a NeuronUltraServer of the nodes with these names, or give one that is there these members."""
        self.apply(crds.ultraserver(name, members, instance_type), namespace=namespace)
        status = {"status": {"state": state}}
        return self.patch(crds.KIND, name, status, namespace=namespace, subresource="status")

    def _wait_ultraservers(self, version: crds.Version | None) -> None:
        # Discovery and the resource itself follow a change each on its own.
        def settled() -> bool:
            return all(
                self.serves(f"{crds.GROUP}/{one}", crds.PLURAL) == self._answers(one) == (one == version)
                for one in crds.VERSIONS
            )

        wait_until(settled, timeout=WAIT_SECONDS, what=f"NeuronUltraServers to be served as {version}")

    def _answers(self, version: crds.Version) -> bool | None:
        """Tell whether a version can be asked for; ``None`` while the server makes up its mind."""
        try:
            self._send("GET", f"/apis/{crds.GROUP}/{version}/{crds.PLURAL}")
        except HTTPError as error:
            match error.status:
                case http.client.NOT_FOUND:
                    return False
                case http.client.TOO_MANY_REQUESTS:  # "storage is (re)initializing"
                    return None
            raise
        return True
