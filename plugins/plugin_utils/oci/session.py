# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only file that talks to OCI: authentication, clients, retries, pages and error text. PRIVATE to the collection.

Thin on purpose: calls and models are those of the `oci` SDK. The SDK takes a second to import, so it is imported when
a session is created, and not at all if no OCI plugin runs.
"""

from __future__ import annotations

import configparser
import importlib
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    InputError,
    NotFound,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import answers

_OCI = specs.fragment("oci")
AUTH_TYPES = tuple(_OCI["auth_type"]["choices"])
OPTIONS = tuple(_OCI)
CLIENTS = {
    "compute": ("core", "ComputeClient"),
    "management": ("core", "ComputeManagementClient"),
    "network": ("core", "VirtualNetworkClient"),
    "identity": ("identity", "IdentityClient"),
    "domains": ("identity_domains", "IdentityDomainsClient"),
    "oke": ("container_engine", "ContainerEngineClient"),
    "limits": ("limits", "LimitsClient"),
    "work": ("work_requests", "WorkRequestClient"),
    "storage": ("object_storage", "ObjectStorageClient"),
    "resource_manager": ("resource_manager", "ResourceManagerClient"),
}
ENVIRONMENT = {
    "tenancy": "OCI_CLI_TENANCY",
    "user": "OCI_CLI_USER",
    "fingerprint": "OCI_CLI_FINGERPRINT",
    "key_file": "OCI_CLI_KEY_FILE",
    "key_content": "OCI_CLI_KEY_CONTENT",
    "pass_phrase": "OCI_CLI_PASSPHRASE",
    "region": "OCI_CLI_REGION",
}
"""The OCI CLI's environment variables."""
CLI_AUTH = {"oke_workload_identity": "workload_identity"}
"""Values of OCI_CLI_AUTH with another name in this collection; for api_key see ``auth_of_environment``."""
PAGE = 1000
SKEW = 240
"""Seconds of clock skew that are reported as the cause of a 401; the service accepts 300."""


def sdk() -> Any:
    """The module ``oci``, imported. InputError if it is not installed."""
    try:
        return importlib.import_module("oci")
    except ImportError:
        raise InputError(
            "The OCI plugins need the Python package oci (2.179 or newer) on the control node: "
            "pip install oci. See docs/oci.md."
        ) from None


class Session:
    """``options``: those of OPTIONS, missing or None = default. Raises InputError if it cannot authenticate."""

    def __init__(self, options: Mapping[str, Any], retries: Optional[Any] = None) -> None:
        self.auth_type = options.get("auth_type") or auth_of_environment()
        if self.auth_type not in AUTH_TYPES:
            raise InputError(f"Unknown auth_type {self.auth_type!r}. Known: {', '.join(AUTH_TYPES)}.")
        self.oci = sdk()
        self._tripped = importlib.import_module("circuitbreaker").CircuitBreakerError
        """Raised by the SDK instead of a call after many failures."""
        self.endpoint = options.get("service_endpoint") or ""
        self.requests = 0
        self.answered: set[str] = set()
        """Methods that OCI has answered: what the user may certainly do."""
        self._counting = threading.Lock()
        self._options = options
        self._clients: dict[str, Any] = {}
        self._retries = retries or answers.Retries()
        self.config, self.signer = self._authenticate()
        if self.config.get("region"):
            self.config["region"] = self.region_name(self.config["region"])
        self.region = self.config.get("region") or getattr(self.signer, "region", "") or ""
        self.tenancy = self.config.get("tenancy") or getattr(self.signer, "tenancy_id", "") or self._claimed() or ""
        if not self.endpoint:
            self._check_region()

    def elsewhere(self, region: str) -> Session:
        """A session of the same user in another region."""
        return Session({**self._options, "region": region}, self._retries)

    # ---- authentication

    def _authenticate(self) -> tuple[dict[str, Any], Any]:
        region = self._options.get("region")
        try:
            config, signer = getattr(self, f"_by_{self.auth_type}")()
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"Cannot authenticate to OCI by {self.auth_type}: {self._reason(error)}.") from None
        return {**config, **({"region": region} if region else {})}, signer

    def _by_config(self) -> tuple[dict[str, Any], Any]:
        config = self._config()
        if config.get("security_token_file") and not config.get("user"):  # as oci session authenticate writes it
            self.auth_type = "security_token"
            return self._by_security_token()
        return self._with_key(config)

    def _by_environment(self) -> tuple[dict[str, Any], Any]:
        config = {key: os.environ[name] for key, name in ENVIRONMENT.items() if os.environ.get(name)}
        if self._options.get("region"):
            config["region"] = self._options["region"]
        missing = [ENVIRONMENT[key] for key in ("tenancy", "user", "fingerprint", "region") if key not in config]
        if not {"key_file", "key_content"} & set(config):
            missing.append("OCI_CLI_KEY_FILE or OCI_CLI_KEY_CONTENT")
        if missing:
            raise InputError(f"Cannot authenticate to OCI by environment: {', '.join(missing)} not set.")
        return self._with_key(config)

    def _with_key(self, config: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """One signer for all clients: otherwise each reads and checks the key itself, 0.1 s per client."""
        self.oci.config.validate_config(config)
        signer = self.oci.signer.Signer(
            config["tenancy"],
            config["user"],
            config["fingerprint"],
            config.get("key_file"),
            pass_phrase=self.oci.config.get_config_value_or_default(config, "pass_phrase"),
            private_key_content=config.get("key_content"),
        )
        if not hasattr(signer.private_key, "private_numbers") or not hasattr(signer.private_key, "key_size"):
            kind = type(signer.private_key).__name__.lstrip("_").replace("PrivateKey", "")
            raise InputError(f"Cannot authenticate to OCI: the key is {kind}; API keys of OCI are RSA, in PEM format.")
        return config, signer

    def _by_security_token(self) -> tuple[dict[str, Any], Any]:
        config = self._config()
        if not config.get("security_token_file"):
            raise InputError(
                f"Cannot authenticate to OCI by security_token: profile {self._profile()} has no security_token_file. "
                "Run oci session authenticate."
            )
        token = Path(config["security_token_file"]).expanduser().read_text(encoding="utf-8").strip()
        key_file = str(Path(config["key_file"]).expanduser())
        key = self.oci.signer.load_private_key_from_file(key_file, config.get("pass_phrase"))
        return config, self.oci.auth.signers.SecurityTokenSigner(token, key)

    def _by_instance_obo_user(self) -> tuple[dict[str, Any], Any]:
        """Cloud Shell: the instance acts for the user whose delegation token its config names."""
        config = self._config()
        if not config.get("delegation_token_file"):
            raise InputError(
                f"Cannot authenticate to OCI by instance_obo_user: profile {self._profile()} has no "
                "delegation_token_file. Cloud Shell has it in /etc/oci/config; elsewhere use another auth_type."
            )
        token = Path(config["delegation_token_file"]).expanduser().read_text(encoding="utf-8").strip()
        return config, self.oci.auth.signers.InstancePrincipalsDelegationTokenSigner(delegation_token=token)

    def _by_instance_principal(self) -> tuple[dict[str, Any], Any]:
        return {}, self.oci.auth.signers.InstancePrincipalsSecurityTokenSigner()

    def _by_resource_principal(self) -> tuple[dict[str, Any], Any]:
        return {}, self.oci.auth.signers.get_resource_principals_signer()

    def _by_workload_identity(self) -> tuple[dict[str, Any], Any]:
        return {}, self.oci.auth.signers.get_oke_workload_identity_resource_principal_signer()

    def _claimed(self) -> str:
        """The tenancy in a workload's token: its signer does not expose it."""
        token: Any = getattr(self.signer, "security_token", None)
        claims = token.get_jwt() if hasattr(token, "get_jwt") else {}
        return str(claims.get("res_tenant") or claims.get("tenant") or os.environ.get(ENVIRONMENT["tenancy"]) or "")

    def _profile(self) -> str:
        return str(self._options.get("profile") or os.environ.get("OCI_CLI_PROFILE") or "DEFAULT")

    def _config(self) -> dict[str, Any]:
        path = self._options.get("config_file") or os.environ.get("OCI_CLI_CONFIG_FILE") or "~/.oci/config"
        file, profile = Path(path).expanduser(), self._profile()
        if not file.is_file():
            raise InputError(f"Cannot authenticate to OCI: the config file {path} does not exist.")
        try:
            config = dict(self.oci.config.from_file(str(file), profile))
        except self.oci.exceptions.ProfileNotFound:
            reader = configparser.ConfigParser(interpolation=None)
            reader.read(file)
            known = ", ".join([*(["DEFAULT"] if reader.defaults() else []), *reader.sections()]) or "none"
            raise InputError(f"{path} has no profile {profile!r}. Known: {known}.") from None
        return {**config, **({"region": self._options["region"]} if self._options.get("region") else {})}

    def _reason(self, error: Exception) -> str:
        """Reason of an error of the SDK, without keys or tokens."""
        kinds = self.oci.exceptions
        if isinstance(error, kinds.InvalidConfig):
            return f"the config is not valid ({', '.join(f'{key}: {why}' for key, why in error.errors.items())})"
        known = {
            "InvalidKeyFilePath": "the key_file does not exist",
            "InvalidPrivateKey": "the key_file contains no private key, or the pass_phrase is wrong",
            "MissingPrivateKeyPassphrase": "the key needs a pass_phrase",
            "MissingPEMHeaders": "the key_file contains no private key",
        }
        name = type(error).__name__
        return known.get(name, f"{name}: {answers.shortened(str(answers.innermost(error))) or 'no reason given'}")

    def region_name(self, region: str) -> str:
        """The name of a region that may be given by its three-letter key."""
        return str(self.oci.regions.REGIONS_SHORT_NAMES.get(region.lower(), region))

    def _check_region(self) -> None:
        if not self.region:
            raise InputError("No OCI region. Set rdma_oci_region, or region in the profile.")
        if not self.oci.regions.is_region(self.region):
            raise InputError(
                f"Unknown OCI region {self.region!r}: a name like eu-frankfurt-1 is expected. Set "
                "OCI_REGION_METADATA for a region that the SDK does not know yet."
            )

    # ---- calls

    def client(self, name: str) -> Any:
        """The client of CLIENTS, created once. ``name@URL`` uses that address: each identity domain has its own."""
        if name not in self._clients:
            service, _at, url = name.partition("@")
            module, kind = CLIENTS[service]
            made = getattr(importlib.import_module(f"oci.{module}"), kind)
            more = {"signer": self.signer} if self.signer else {}
            more.update({"service_endpoint": url or self.endpoint} if url or self.endpoint else {})
            try:
                self._clients[name] = answers.checked(made(self.config, retry_strategy=self._retries, **more))
            except Exception as error:
                raise InputError(f"Cannot connect to OCI: {self._reason(error)}.") from None
        return self._clients[name]

    def call(self, what: str, client: str, method: str, *args: Any, **more: Any) -> Any:
        """One call; ``what`` completes "Cannot ...". Returns the SDK's response; raises ClusterError, Unreachable."""
        call: Callable[..., Any] = getattr(self.client(client), method)
        with self._counting:
            self.requests += 1
        base, started = self.client(client).base_client, time.monotonic()
        host = urllib.parse.urlparse(base.endpoint).netloc
        try:
            answer = call(*args, **more)
        except self.oci.exceptions.ServiceError as error:
            other = answers.foreign(
                error.headers, error.status, getattr(error, "original_request", None), with_id=False
            )
            if other:
                raise self._not_oci(what, host, f"{error.status}, {other}") from None
            raise self._refused(what, error) from None
        except answers.NotOci as error:
            raise self._not_oci(what, host, str(error)) from None
        except (self.oci.exceptions.RequestException, self.oci.exceptions.ConnectTimeout, self._tripped) as error:
            passed = time.monotonic() - started
            raise Unreachable(
                f"Cannot {what}: no answer from {self.endpoint or f'OCI in {self.region}'} after {passed:.0f} s "
                f"({hidden(answers.shortened(str(answers.innermost(error))))})."
            ) from None
        other = answers.foreign(answer.headers, answer.status, answer.request, with_id=not client.startswith("domains"))
        if other:
            raise self._not_oci(what, host, other)
        self.answered.add(method)
        return answer

    def start(self, what: str, client: str, method: str, *args: Any, **more: Any) -> str:
        """As ``call``, for what OCI carries out as a work request: its OCID, "" where OCI names none."""
        return self.call(what, client, method, *args, **more).headers.get("opc-work-request-id") or ""

    def body(self, what: str, client: str, method: str, *args: Any, **more: Any) -> Any:
        """The answer as OCI's own JSON; of a list the entries of all pages."""
        if method.startswith("list_"):
            return plain(self.all(what, client, method, *args, **more))
        return plain(self.call(what, client, method, *args, **more).data)

    def find(self, what: str, client: str, method: str, key: str) -> Optional[dict[str, Any]]:
        """The object as OCI's own JSON; None where OCI answers 404."""
        try:
            return dict(self.body(what, client, method, key))
        except NotFound:
            return None

    @staticmethod
    def _not_oci(what: str, host: str, found: str) -> Unreachable:
        return Unreachable(
            f"Cannot {what}: {host} answered {found}, which is not JSON from OCI (a proxy?). The state of the "
            "object is unknown. Check HTTPS_PROXY and NO_PROXY, then run again."
        )

    def all(self, what: str, client: str, method: str, *args: Any, **more: Any) -> list[Any]:
        """All entries of all pages, of a plain list or a collection. ClusterError if a page token repeats."""
        found: list[Any] = []
        seen: set[str] = set()
        page = None
        while True:
            paged: dict[str, Any] = {"page": page} if page else {}
            answer = self.call(what, client, method, *args, **more, **paged)
            found += answer.data if isinstance(answer.data, list) else answer.data.items
            page = answer.headers.get("opc-next-page")
            if not page:
                return found
            if page in seen:
                raise ClusterError(f"Cannot {what}: OCI returned the same page twice.")
            seen.add(page)

    def _refused(self, what: str, error: Any) -> ClusterError:
        """The error to raise; a 404 may also mean 403, OCI does not distinguish them."""
        answer = (
            f"OCI answered {error.status} {error.code}: {answers.shortened(hidden(str(error.message))).rstrip('.')}"
        )
        request = f" (request {error.request_id})" if error.request_id else ""
        if error.status == 401:
            return Forbidden(f"Cannot {what}: {answer}. {self._why_not_authenticated(error)}{request}", 401, error.code)
        if error.status == 404:
            return NotFound(
                f"Cannot {what}: {answer}. It does not exist, or this user may not see it; OCI does not say which. "
                f"Check the OCID, the region (rdma_oci_region: {self.region or 'of the endpoint'}) and the policies, "
                f"see docs/oci_policies.md{request}.",
                404,
                error.code,
            )
        kind = Conflict if error.status in (409, 412) else ClusterError
        remedy = answers.remedy(error.status, f"{error.code}: {error.message}")
        return kind(f"Cannot {what}: {answer}. {remedy}".rstrip() + request, error.status, error.code)

    def _why_not_authenticated(self, error: Any) -> str:
        try:
            skew = time.time() - parsedate_to_datetime(error.headers.get("date")).timestamp()
        except (TypeError, ValueError, AttributeError):
            skew = 0.0
        if abs(skew) > SKEW:
            return f"This machine's clock is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}; OCI accepts 300 s."
        if self.auth_type not in ("config", "environment"):
            renew = {
                "security_token": f"Renew it: oci session refresh --profile {self._profile()}, or oci session "
                "authenticate.",
                "instance_obo_user": "Open Cloud Shell again.",
            }.get(self.auth_type, "Run again: a new one is fetched.")
            return f"The token has expired or belongs to another region or tenancy. {renew}"
        return "Check user, tenancy, fingerprint and key of the profile: they do not match."


def auth_of_environment() -> str:
    """The auth_type for OCI_CLI_AUTH. The CLI, which kubeconfigs of OKE run, has no `environment`: with `api_key` it
    reads the key from the environment if it is there, else from the config file."""
    chosen = os.environ.get("OCI_CLI_AUTH") or "config"
    if chosen == "api_key":
        keys = ("OCI_CLI_KEY_CONTENT", "OCI_CLI_KEY_FILE")
        return "environment" if any(os.environ.get(name) for name in keys) else "config"
    return CLI_AUTH.get(chosen, chosen)


def plain(found: Any) -> Any:
    """A model of the SDK as OCI's own JSON, without what is not set. The SDK's conversion refuses unexpected types."""
    if isinstance(found, (list, tuple)):
        return [plain(item) for item in found]
    if isinstance(found, dict):
        return {key: plain(of) for key, of in found.items()}
    names = getattr(found, "attribute_map", None)
    if names is None:
        return found if isinstance(found, (str, int, float, bool, type(None))) else str(found)
    return {names[key]: plain(of) for key in found.swagger_types if (of := getattr(found, key)) is not None}


def of_kind(ocid: str, kind: str, option: str) -> str:
    """The OCID unchanged. InputError if it is not of this kind; a tenancy counts as a compartment, the root."""
    parts = ocid.split(".")
    accepted = (kind, "tenancy") if kind == "compartment" else (kind,)
    if len(parts) < 5 or parts[0] != "ocid1":
        raise InputError(f"{option} must be an OCID (ocid1.{kind}...), not {ocid!r}.")
    if parts[1] not in accepted:
        raise InputError(f"{option} must be the OCID of {_a(kind)}, not of {_a(parts[1])}: {ocid}.")
    return ocid


def of_kinds(options: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """InputError for the first option with the OCID of something else than ``kinds`` says; an empty one is accepted."""
    for option, kind in kinds.items():
        if options[option]:
            of_kind(options[option], kind, option)


def _a(kind: str) -> str:
    return f"{'an' if kind[:1] in 'aeio' else 'a'} {kind}"
