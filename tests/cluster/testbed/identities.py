"""Who may talk to the test cluster's API server: static tokens for its own parts, and the key for service accounts."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from testbed.commands import run

GROUPS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "node": ("system:node:node0", "system:nodes"),
    "proxy": ("system:kube-proxy", "system:node-proxier"),
    "dns": ("testbed:dns", ""),
}
"""User and group of each static token; Kubernetes' bootstrap roles give them their rights, but for the DNS server."""


@dataclass(frozen=True)
class Identities:
    """The tokens by the name of their part, and the files that the API server and kubelet read."""

    token_file: Path
    service_account_key: Path
    kubelet_client_certificate: Path
    kubelet_client_key: Path
    tokens: dict[str, str] = field(repr=False)

    @classmethod
    def make(cls, folder: Path) -> "Identities":
        """Draw new tokens and keys, and write them to `folder`."""
        tokens = {part: secrets.token_hex(16) for part in GROUPS}
        token_file, key = folder / "tokens.csv", folder / "service-accounts.key"
        token_file.touch(mode=0o600)
        token_file.write_text(
            "".join(f'{tokens[part]},{user},{part},"{group}"\n' for part, (user, group) in GROUPS.items())
        )
        run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key])
        certificate, client_key = folder / "kubelet-client.crt", folder / "kubelet-client.key"
        # Signed by itself: kubelet takes this one certificate for the authority.
        new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365"]
        run([*new, "-subj", "/O=system:masters/CN=kube-apiserver", "-keyout", client_key, "-out", certificate])
        return cls(token_file, key, certificate, client_key, tokens)
