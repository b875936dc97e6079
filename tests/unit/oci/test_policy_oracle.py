# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy evaluator beside an oracle: 10,000 generated tenancies of one to four statements.

The oracle does not read text. It knows the world (also what the evaluator cannot know: tags, members of groups by OCID,
the caller's network), expands every statement to permissions, and asks for each permission in each compartment. It
never finds a need met that the oracle denies, and says ``unknown`` only where a statement is outside the table's forms.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import needs, policy, policy_text
from support.paths import ROOT

CASES = 10_000
DOCUMENT = yaml.safe_load((ROOT / "files" / "oci" / "policies.yml").read_text("utf-8"))
KNOWN = policy.Catalogue(DOCUMENT)
VERBS = ("inspect", "read", "use", "manage")
ROOT_OCID, RESEARCH, GPU, DEEP, SALES, SALES_GPU = (
    f"ocid1.{kind}.oc1..{name}"
    for kind, name in (
        ("tenancy", "root"),
        ("compartment", "research"),
        ("compartment", "gpu"),
        ("compartment", "deep"),
        ("compartment", "sales"),
        ("compartment", "salesgpu"),
    )
)
TREE = {
    ROOT_OCID: ("acme", ""),
    RESEARCH: ("Research", ROOT_OCID),
    GPU: ("GPU", RESEARCH),
    DEEP: ("Deep", GPU),
    SALES: ("Sales", ROOT_OCID),
    SALES_GPU: ("GPU", SALES),
}
KEY, OTHER_KEY = "ocid1.key.oc1..a", "ocid1.key.oc1..b"
CLUSTER, OTHER_CLUSTER = "ocid1.cluster.oc1..a", "ocid1.cluster.oc1..b"
# Families as the file has them; permissions as it has them, and invented ones for the other resource types.
FAMILIES = {name: tuple(of) for name, of in DOCUMENT["families"].items()}
KEYED = ("keys", "key-delegates")
HIDDEN_FAMILY = "platform-family"
"""Of all resource types, unknown to the evaluator."""
TYPES = sorted(
    {member for of in FAMILIES.values() for member in of} | set(DOCUMENT["permissions"]) | {"things", *KEYED}
)
PERMISSIONS = {
    kind: {
        verb: list(DOCUMENT["permissions"][kind].get(verb, ()))
        if kind in DOCUMENT["permissions"]
        else [f"{kind.replace('-', '_').upper()}_{verb.upper()}ING"]
        for verb in VERBS
    }
    for kind in TYPES
}
PERMISSIONS["hosts"] = {"inspect": [], "read": [], "use": ["HOST_GROUP_LAUNCH_INSTANCE"], "manage": ["HOST_GROUP_MAKE"]}
DYNAMIC = {
    "oke-gpu": f"ANY {{instance.compartment.id = '{GPU}'}}",
    "sales-nodes": f"instance.compartment.id = '{SALES}'",
    "pools": f"ALL {{resource.type = 'nodepool', resource.compartment.id = '{GPU}'}}",
    "wide": f"ANY {{ANY {{instance.compartment.id = '{SALES}'}}, ALL {{instance.compartment.id = '{GPU}'}}}}",
    "tagged": "tag.ops.role.value = 'worker'",
}


@dataclass(frozen=True)
class Spec:
    """A statement before it is text. ``sure``: of the table's forms."""

    deny: bool
    home: str
    subject: str
    names: tuple[str, ...]
    right: tuple[str, str] | tuple[str, ...]
    by_name: bool
    place: str
    tests: tuple[tuple[str, str, tuple[str, ...]], ...]
    kind: str
    text: str
    sure: bool


@dataclass(frozen=True)
class World:
    principal: str
    groups: frozenset[str]
    """Names of the user's groups, or of the dynamic groups with the principal."""
    hidden: dict[str, str]
    literal: bool = False
    """Whether OCI takes a variable right of an operator for its own name."""


def up(key: str) -> list[str]:
    found = []
    while key:
        found.append(key)
        key = TREE[key][1]
    return found


def types_of(resource: str) -> list[str]:
    if resource == "all-resources":
        return list(PERMISSIONS)
    if resource == HIDDEN_FAMILY:
        return TYPES
    return list(FAMILIES.get(resource, (resource,)))


def expanded(spec: Spec) -> set[str]:
    if spec.by_name:
        return set(spec.right)
    verb, resource = spec.right
    rank = VERBS.index(verb)
    verbs = VERBS[rank:] if spec.deny else VERBS[: rank + 1]
    return {name for kind in types_of(resource) for item in verbs for name in PERMISSIONS[kind][item]}


def variable(world: World, permission: str, name: str, joining: bool) -> Optional[str]:
    if name == "request.permission":
        return permission
    if name == "request.principal.type":
        return world.principal
    if name == "request.region":
        return "fra"
    if name == "target.cluster.id":
        return CLUSTER if permission == "CLUSTER_JOIN" and joining else None
    if name == "target.key.id":
        return KEY if permission.startswith("KEY") else None
    return world.hidden[name]


def is_true(world: World, spec: Spec, permission: str, joining: bool) -> bool:
    found = []

    def value_of(text: str) -> Optional[str]:
        return variable(world, permission, text, joining) if text in VARIABLES else text

    for left, operator, right in spec.tests:
        value, values = value_of(left), [item if world.literal else value_of(item) for item in right]
        inside = value is not None and value.lower() in [item.lower() for item in values if item is not None]
        found.append(value is not None and None not in values and inside is (operator in ("=", "in")))
    return (any if spec.kind == "any" else all)(found)


def applies(world: World, spec: Spec) -> bool:
    if spec.subject in ("any-user", "any-group"):
        return spec.subject == "any-user" or not world.principal.startswith("service ")
    if world.principal.startswith("service "):
        return spec.subject == "service" and world.principal[len("service ") :] in spec.names
    if spec.subject != ("group" if world.principal == "user" else "dynamic-group"):
        return False
    return bool(world.groups & set(spec.names))


def granted(world: World, wanted: set[str], target: str, specs: list[Spec], joining: bool) -> bool:
    """Every permission in every compartment of the place."""
    exempt = world.principal == "user" and "Administrators" in world.groups
    for compartment in [key for key in TREE if target in up(key)]:
        for permission in wanted:
            matching = [
                spec
                for spec in specs
                if permission in expanded(spec)
                and spec.place in up(compartment)
                and applies(world, spec)
                and is_true(world, spec, permission, joining)
            ]
            if not any(not spec.deny for spec in matching):
                return False
            if not exempt and any(spec.deny for spec in matching):
                return False
    return True


# ---- generation ------------------------------------------------------------------------------------------------------

POOL_NEEDS = [
    ("read", "instance-images"),
    ("use", "compute-capacity-reservations"),
    ("use", "key-delegates"),
]
USER_NEEDS = [
    ("use", "subnets"),
    ("manage", "cluster-family"),
    ("read", "instance-images"),
    ("manage", "compute-clusters"),
    ("use", "volume-family"),
    ("inspect", "all-resources"),
    ("inspect", "things"),
    ("manage", "compute-management-family"),
]
RIGHTS = [
    "subnets",
    "virtual-network-family",
    "cluster-family",
    "clusters",
    "instance-images",
    "instance-family",
    "compute-clusters",
    "volume-family",
    "volumes",
    "all-resources",
    "all-resources",
    "things",
    "buckets",
    "cluster-networks",
    "instance-pools",
    "instance-configurations",
    "compute-management-family",
]
NAMED = ["CLUSTER_JOIN", "CLUSTER_USE", "COMPUTE_CLUSTER_LAUNCH_INSTANCE", "COMPUTE_CLUSTER_READ", "SUBNETS_USEING"]
TESTS = [
    ("request.principal.type", "=", ("nodepool",)),
    ("request.principal.type", "in", ("instance", "nodepool")),
    ("request.principal.type", "!=", ("user",)),
    ("request.region", "=", ("FRA",)),
    ("request.region", "=", ("eu-frankfurt-1",)),
    ("request.region", "not in", ("iad", "phx")),
    ("request.permission", "!=", ("CLUSTER_DELETE",)),
    ("target.cluster.id", "=", (CLUSTER,)),
    ("target.cluster.id", "=", (OTHER_CLUSTER,)),
    ("request.networksource.name", "=", ("office",)),
    ("target.resource.tag.ops.env", "!=", ("prod",)),
    ("target.key.id", "=", (KEY,)),
    ("target.key.id", "!=", (OTHER_KEY,)),
]
HIDDEN = (
    "request.networksource.name",
    "target.resource.tag.ops.env",
    "request.principal.cluster_id",
    "target.resource.type",
    "request.instance.region",
    "request.principal.compartment.id",
    "target.compartment.id",
    "request.principal.key",
)
"""What is known only when the request is made."""
VARIABLES = {"request.permission", "request.principal.type", "request.region", "target.cluster.id", "target.key.id"}
VARIABLES |= {*HIDDEN}
SIDES = (*sorted(VARIABLES), CLUSTER, KEY, "nodepool", "FRA", "user")


def compared(luck: random.Random) -> tuple[str, str, tuple[str, ...]]:
    """Variables and values on either side of an operator, as people write them and Oracle's pages, too: a variable in
    quotes is one there. Whether OCI takes each of them for a variable is not public, so none may be a pass."""
    operator = luck.choice(("=", "!=", "in", "not in"))
    right = tuple(luck.sample(SIDES, luck.randint(1, 2) if "in" in operator else 1))
    left = luck.choice(SIDES)
    return left, operator, right if {left, *right} & VARIABLES else ("target.compartment.id",)


def say(kind: str, tests: tuple[Any, ...], luck: random.Random) -> str:
    def one(name: str, operator: str, values: tuple[str, ...]) -> str:
        name = name if name in VARIABLES else luck.choice((f"'{name}'", name))
        said = [luck.choice((f"'{value}'", f'"{value}"', value)) for value in values]
        return f"{name} {operator} " + (f"({', '.join(said)})" if "in" in operator else said[0])

    said = [one(*test) for test in tests]
    return f" where {kind} {{{', '.join(said)}}}" if kind else f" where {said[0]}" if said else ""


def statement(
    luck: random.Random,
    whole: bool,
    joining: bool,
    user: bool,
    relevant: list[str],
    service: str = "",
    keyed: bool = False,
) -> Spec:
    """``whole``: the need consists of permissions, all of which the file has. ``service``: which one it is for.
    ``keyed``: for a key."""
    deny = luck.random() < 0.25
    sure = True
    subject = luck.choice(("any-user", "any-group", *("group", "dynamic-group") * 2, "service"))
    if luck.random() < 0.5 and subject not in ("any-user", "any-group"):
        subject = "group" if user else "service" if service else "dynamic-group"
    names: tuple[str, ...] = ()
    said = ""
    if subject == "group":
        names = tuple(luck.sample(("Platform", "Network", "Corp/ml-admins", "Administrators"), luck.randint(1, 2)))
    elif subject == "dynamic-group":
        names = tuple(luck.sample((*DYNAMIC, "Corp/oke-gpu", "elsewhere"), luck.randint(1, 2)))
        sure = not {"tagged", "elsewhere"} & set(names)
    elif subject == "service":
        names = luck.choice((("oke",), ("blockstorage",), ("oke", "blockstorage")))
    by_ocid = subject in ("group", "dynamic-group") and luck.random() < 0.1
    for name in names:
        domain, _slash, short = name.rpartition("/")
        text = f"'{domain}'/'{short}'" if domain else luck.choice((short, f"Default/{short}", f"'{short}'"))
        text = short if subject == "service" else text
        if by_ocid or name == "elsewhere":
            text = f"id ocid1.group.oc1..{name.replace('/', '').lower()}"
        said += f"{', ' if said else ''}{text}"
    sure = sure and not (by_ocid and subject == "group")
    by_name = luck.random() < 0.2
    right: tuple[str, ...]
    if by_name:
        right = tuple(luck.sample(NAMED, luck.randint(1, 3)))
        sure = sure and (whole or "SUBNETS_USEING" not in right)
        what = f"{{{', '.join(right)}}}"
    else:
        resource = luck.choice(relevant) if luck.random() < 0.8 else luck.choice(RIGHTS)
        resource = HIDDEN_FAMILY if luck.random() < 0.03 else resource
        right = (luck.choice((*VERBS, "manage")), resource)
        sure = sure and resource != HIDDEN_FAMILY
        what = " ".join(right)
    home = luck.choice((ROOT_OCID, ROOT_OCID, RESEARCH, GPU, SALES))
    place = luck.choice([home, *(key for key in TREE if home in up(key))])
    path = [TREE[key][0] for key in reversed(up(place)[: up(place).index(home)])]
    forms = [f"compartment id {place}"]
    if home == place:
        forms.append("tenancy" if home == ROOT_OCID else f"compartment {TREE[home][0]}")
    else:
        forms.append(f"compartment {':'.join(path)}")
    kind, tests = "", ()
    if luck.random() < 0.35:
        kind = luck.choice(("", "all", "any", "ALL"))
        tests = tuple(luck.sample(TESTS, luck.randint(1, 3) if kind else 1))
        if luck.random() < 0.4:
            tests = (*tests[1:], compared(luck))
        for name, _operator, values in tests:
            sure = sure and name in VARIABLES and not VARIABLES & {*values}
            sure = sure and not (service and name == "request.principal.type")
            sure = sure and (name != "target.key.id" or keyed)
            hidden = name in HIDDEN
            hidden = (
                hidden or (name == "target.cluster.id" and not joining) or (name == "request.permission" and not whole)
            )
            sure = sure and not hidden
    kind_lower = kind.lower()
    who = f"{subject} {said}".strip()
    text = f"{'Deny' if deny else 'Allow'} {who} to {what} in {luck.choice(forms)}{say(kind, tests, luck)}"
    if luck.random() < 0.03:
        text, sure = f"{text} {luck.choice(('// why', '/* why */'))}", False
    text = (
        text.upper() if luck.random() < 0.02 and "ocid1" not in text and "{" not in text and "'" not in text else text
    )
    return Spec(deny, home, subject, names, right, by_name, place, tests, kind_lower, text, sure)


def case(luck: random.Random) -> tuple[str, Optional[bool], bool, list[Spec]]:
    """The evaluator's answer, the oracle's (None: it depends on what OCI takes for a variable), whether all statements
    are of the table's forms, and these."""
    principal = luck.choice(("user", "user", "instance", "nodepool", "nodepool", "service oke", "service blockstorage"))
    service = principal.partition(" ")[2]
    target = luck.choice((GPU, GPU, ROOT_OCID))
    place = f"compartment id {GPU}" if target == GPU else "tenancy"
    joining = False
    if principal == "user":
        verb, resource = luck.choice(USER_NEEDS)
        need = f"Allow group Platform to {verb} {resource} in {place}"
        relevant = [resource, *(name for name, of in FAMILIES.items() if resource in of), *FAMILIES.get(resource, ())]
    elif service or (principal == "nodepool" and luck.random() < 0.6):
        verb, resource = luck.choice((*POOL_NEEDS, ("use", "keys")) if service else POOL_NEEDS)
        asked = [] if service else ["request.principal.type = 'nodepool'"]
        asked += [f"target.key.id = '{KEY}'"] if resource in KEYED else []
        who = f"service {service}" if service else "any-user"
        where = f" where all {{{', '.join(asked)}}}" if len(asked) > 1 else f" where {asked[0]}" if asked else ""
        need = f"Allow {who} to {verb} {resource} in {place}{where}"
        relevant = [resource, resource, "key-delegate", *(name for name, of in FAMILIES.items() if resource in of)]
    else:
        verb = ""
        joining = principal == "instance"
        name = (
            "CLUSTER_JOIN"
            if joining
            else luck.choice(("COMPUTE_CLUSTER_LAUNCH_INSTANCE", "HOST_GROUP_LAUNCH_INSTANCE"))
        )
        who = "dynamic-group oke-gpu" if joining else "any-user"
        need = f"Allow {who} to {{{name}}} in {place}" + (
            "" if joining else " where request.principal.type = 'nodepool'"
        )
        relevant = ["clusters", "cluster-family"] if joining else ["compute-clusters", "all-resources"]
    wanted = policy_text.parse(need)
    assert wanted is not None
    atoms = KNOWN.atoms(wanted)
    whole = all(atom.permission and atom.resource for atom in atoms)
    keyed, count = bool(verb) and resource in KEYED, luck.randint(1, 4)
    specs = [statement(luck, whole, joining, principal == "user", relevant, service, keyed) for _number in range(count)]
    if principal == "user":
        mine = luck.choice((("Platform",), ("Platform", "Corp/ml-admins"), ("Platform", "Administrators")))
        groups = frozenset(mine)
    else:
        mine = ()
        certain = {"instance": ("oke-gpu", "wide", "Corp/oke-gpu"), "nodepool": ("pools",)}.get(principal, ())
        maybe = luck.choice(((), ("tagged",), ("elsewhere",), ("tagged", "elsewhere")))
        groups = frozenset(() if service else (*certain, *maybe))
    permissions = (
        {name}
        if not verb
        else {
            name
            for kind in types_of(resource)
            for item in VERBS[: VERBS.index(verb) + 1]
            for name in PERMISSIONS[kind][item]
        }
    )
    hidden = {name: luck.choice(SIDES[-5:]) for name in HIDDEN}
    hidden["request.networksource.name"] = luck.choice(("office", "home"))
    hidden["target.resource.tag.ops.env"] = luck.choice(("prod", "test"))
    worlds = (World(principal, groups, hidden), World(principal, groups, hidden, True))
    both = {granted(world, permissions, target, specs, joining) for world in worlds}
    met = None if len(both) > 1 else both.pop()
    context = needs.Context(
        ROOT_OCID,
        GPU,
        {key: needs.Compartment(*item) for key, item in TREE.items()},
        tuple(mine),
        "Platform" if principal == "user" else "oke-gpu",
        {"target.cluster.id": CLUSTER, "request.region": "fra"},
    )
    dynamic = [needs.DynamicGroup(key, rule, ocid=f"ocid1.group.oc1..{key}") for key, rule in DYNAMIC.items()]
    dynamic.append(needs.DynamicGroup("oke-gpu", DYNAMIC["oke-gpu"], "corp", "ocid1.group.oc1..corpoke-gpu"))
    sources = [needs.Source(spec.text, spec.home) for spec in specs]
    found = policy.review([{"statement": need, "why": ""}], sources, dynamic, context, KNOWN)[0]
    # A deny for a part of the place, or by a permission or resource type of which the file knows nothing, is unknown.
    below = any(spec.deny and spec.place != target and target in up(spec.place) for spec in specs)
    unlisted = not all(atom.resource for atom in atoms) and any(
        not spec.by_name and (spec.right[1] == "things" or spec.right[1] == "all-resources") for spec in specs
    )
    sure = all(spec.sure for spec in specs) and not below and not unlisted
    return found.status, met, sure, [*specs, need, found]  # type: ignore[list-item]


def test_ten_thousand_tenancies_beside_the_oracle() -> None:
    seen: Counter[tuple[str, Optional[bool], bool]] = Counter()
    for seed in range(CASES):
        status, met, sure, shown = case(random.Random(seed))
        seen[(status, met, sure)] += 1
        assert status != "pass" or met, ("met where the oracle denies", seed, shown)
        assert status != "fail" or met is False, ("missing where the oracle grants", seed, shown)
        assert status != "unknown" or not sure, ("unknown within the table's forms", seed, shown)
    assert min(sum(n for key, n in seen.items() if key[0] == name) for name in ("pass", "fail", "unknown")) > 400, seen


def test_variables_on_both_sides_of_every_operator() -> None:
    """Each pair of variables and values, each operator, each way of quoting, in an allow and in a deny statement: a
    pass holds in every world, a fail in none."""
    need = f"Allow dynamic-group oke-gpu to {{CLUSTER_JOIN}} in compartment id {GPU}"
    context = needs.Context(
        ROOT_OCID,
        GPU,
        {key: needs.Compartment(*item) for key, item in TREE.items()},
        who="oke-gpu",
        facts={"target.cluster.id": CLUSTER, "request.region": "fra"},
    )
    dynamic = [needs.DynamicGroup("oke-gpu", DYNAMIC["oke-gpu"])]
    values = (CLUSTER, "instance", "fra", "x")
    seen: Counter[str] = Counter()
    for left, right, operator in itertools.product(SIDES, SIDES, ("=", "!=", "in", "not in")):
        for deny, quote in itertools.product((False, True), ("", "'", '"')):
            name = left if left in VARIABLES else f"{quote}{left}{quote}"
            value = f"({quote}{right}{quote})" if "in" in operator else f"{quote}{right}{quote}"
            text = (
                f"{'Deny' if deny else 'Allow'} any-group to manage clusters in tenancy where {name} {operator} {value}"
            )
            test = ((left, operator, (right,)),)
            spec = Spec(
                deny, ROOT_OCID, "any-group", (), ("manage", "clusters"), False, ROOT_OCID, test, "", text, False
            )
            given = [text, "Allow any-user to manage clusters in tenancy"] if deny else [text]
            status = policy.review([{"statement": need, "why": ""}], given, dynamic, context, KNOWN)[0].status
            hidden = [item for item in (left, right) if item in HIDDEN]
            worlds = [
                World("instance", frozenset(), dict(zip(hidden, found)), literal)
                for found in itertools.product(values, repeat=len(hidden))
                for literal in (False, True)
            ]
            granted_in = {is_true(world, spec, "CLUSTER_JOIN", True) is not deny for world in worlds}
            assert status == "unknown" or granted_in == {status == "pass"}, (text, status)
            seen[status] += 1
    assert seen["pass"] > 10 and seen["fail"] > 10, seen
