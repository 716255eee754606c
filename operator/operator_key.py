"""The operator's own key, from which every profile's admin token is derived."""

import base64
import secrets
from typing import Final

from paceline.operator.config import OperatorConfig
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.errors import ApiError, KubeError
from paceline.operator.kube.resources import SECRETS
from paceline.operator.writer import MANAGER

KEY: Final = "key"


async def operator_key(client: KubeClient, config: OperatorConfig) -> bytes:
    """Return the key from its Secret in the operator's namespace; the first operator makes it.

    It must outlive the operator: with another key the engines refuse the operator until their pods are made anew.
    """
    namespace, name = config.lease.namespace, config.token_secret
    found = await client.get(SECRETS, namespace, name)
    if found is None:
        try:
            found = await client.create(
                {
                    "apiVersion": SECRETS.api_version,
                    "kind": SECRETS.kind,
                    "metadata": {"name": name, "namespace": namespace},
                    "type": "Opaque",
                    "data": {KEY: base64.b64encode(secrets.token_bytes(32)).decode()},
                },
                manager=MANAGER,
            )
        except ApiError as error:
            if not error.is_conflict:
                raise
            return await operator_key(client, config)
    text = found.get("data", {}).get(KEY, "")
    key = base64.b64decode(text)
    if len(key) < 16:
        raise KubeError(f"Secret {namespace}/{name} needs a key `{KEY}` of at least 16 bytes")
    return key
