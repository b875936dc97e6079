# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line: ``sandbox up|down|status|exec|logs|fault|env|account|build``."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import account, build, faults, openshift, real
from .cluster import COMPONENTS, CONTROLLERS, Sandbox, SandboxError, Spec, home, names
from .context import Fault, load_shapes, machines
from .kubelets import gpus, images, programs
from .kubelets.realnodes import RealError
from .nodes import CPU_NODES, GPU_NODES, profiles

DEFAULT_NAME, DEFAULT_SHAPE = "default", "BM.GPU.H100.8"
PLATFORMS = ("oke", "kubernetes", "openshift")
POOL_HELP = "one more pool; :TYPE is what another provider calls the machine, as its nodes then say (repeatable)"

ABOUT = f"""\
A real Kubernetes control plane with simulated GPU nodes, on 127.0.0.1.

Real: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, Helm. Simulated: the nodes and all that runs in
pods (kwok), and the operators (GPU Operator, Network Operator, nv-ipam, multus, NFD, Volcano, MPI Operator), each of
which can be left out so that a real one can take its place.

  sandbox up --gpu-nodes 8                            8 x {DEFAULT_SHAPE} and one CPU node, ready in seconds
  sandbox up --platform kubernetes --pool BM.GPU.H100.8/InfiniBand:DGX_H100=2   (or /EFA: no mlx5 NIC)
  sandbox up --name mixed --pool BM.GPU.H100.8=4 --pool BM.GPU4.8=4
  sandbox up --name bad --fault vf-missing:2 --fault image-pull:10.140.0.1
  sandbox exec NAME -- kubectl get nodes              with the sandbox's kubeconfig, kubectl and helm
  eval "$(sandbox env NAME)"                          the same for your shell
  sandbox account NAME --rules site.yml               a kubeconfig with exactly these rights
  sandbox fault add reboot:1                          while it runs
  sandbox down NAME                                   ends its processes, removes its folder

The first 'up' builds the binaries (3 minutes on 2 cores); later ones take seconds."""

FAULTS_HELP = f"""\
faults (NODE is a node's name or its index over the GPU nodes, from 0):
{faults.table()}"""

FILES_HELP = """\
files: each sandbox is one folder, .cache/sandbox/NAME in the repository (GPUOPS_SANDBOX_HOME/NAME when that is set);
binaries are in ~/.cache/gpuops-rdma/bin-HASH (XDG_CACHE_HOME is honoured)."""


def say(line: str) -> None:
    """One line of progress, at once."""
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 done, 1 refused or failed, 2 wrong usage; ``exec`` becomes the command."""
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        ours, command = _split(given) if given[:1] == ["exec"] else (given, [])
        options = parser().parse_args(ours)
        options.command = command
        return int(options.run(options) or 0)
    except (SandboxError, build.BuildError, RealError) as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def _split(given: list[str]) -> tuple[list[str], list[str]]:
    """``exec``: what follows the first ``--`` belongs to the command, options and all."""
    place = given.index("--") if "--" in given else len(given)
    return given[:place], given[place + 1 :]


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="sandbox", description=ABOUT, epilog=f"{FAULTS_HELP}\n\n{FILES_HELP}", formatter_class=raw
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    up = commands.add_parser("up", help="make a sandbox, or repair one", epilog=FAULTS_HELP, formatter_class=raw)
    _add_up_options(up)

    down = commands.add_parser("down", help="end a sandbox and remove all of it")
    _add_name(down)
    down.add_argument("--all", action="store_true", help="every sandbox")
    down.set_defaults(run=_down)

    status = commands.add_parser("status", help="what runs, nodes, faults; exit 1 when something is wrong")
    _add_name(status)
    status.set_defaults(run=_status)

    execute = commands.add_parser(
        "exec", usage="sandbox exec [NAME] -- CMD [ARGUMENT...]", help="run a command on a sandbox, after --"
    )
    _add_name(execute)
    execute.set_defaults(run=_exec)

    logs = commands.add_parser("logs", help="a component's log")
    logs.add_argument("component", nargs="?", default=CONTROLLERS, choices=(*COMPONENTS, CONTROLLERS, *real.PROGRAMS))
    logs.add_argument("--name", help="the sandbox (default: the only one there is)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as the log grows")
    logs.set_defaults(run=_logs)

    environment = commands.add_parser("env", help="print export lines: KUBECONFIG, PATH, ...")
    _add_name(environment)
    environment.set_defaults(run=_env)

    narrow = commands.add_parser(
        "account", help="a kubeconfig with the rights of a manifest: one ServiceAccount, roles, bindings"
    )
    _add_name(narrow)
    narrow.add_argument("--rules", required=True, type=Path, metavar="FILE", help="as `--tags plan` writes it")
    narrow.add_argument("--output", type=Path, metavar="PATH", help="where to write it (default: the sandbox's folder)")
    narrow.set_defaults(run=_account)

    binaries = commands.add_parser("build", help="build the binaries and print their folder")
    binaries.add_argument("--kubelets", action="store_true", help="programs and images of real nodes, too")
    binaries.set_defaults(run=_build)

    _add_fault_commands(
        commands.add_parser("fault", help="faults while it runs", epilog=FAULTS_HELP, formatter_class=raw)
    )
    return top


def _add_up_options(up: argparse.ArgumentParser) -> None:
    up.add_argument("--name", default=DEFAULT_NAME, help="several may run side by side (default: %(default)s)")
    up.add_argument("--gpu-nodes", type=_count, metavar="N", help="GPU nodes of --shape (default: 4; 0 with --pool)")
    up.add_argument("--cpu-nodes", type=_count, default=1, metavar="M", help="nodes without GPU (default: %(default)s)")
    up.add_argument(
        "--shape", default=DEFAULT_SHAPE, metavar="S", help="a shape of files/topology (default: %(default)s)"
    )
    up.add_argument("--pool", action="append", default=[], metavar="SHAPE[:TYPE]=N", help=POOL_HELP)
    up.add_argument(
        "--profile", default="current", choices=profiles(), help="what the node image is (default: %(default)s)"
    )
    up.add_argument(
        "--platform",
        default="oke",
        choices=PLATFORMS,
        help="whose nodes these look like; kubernetes: not OCI's, and images without a driver (default: %(default)s)",
    )
    up.add_argument(
        "--ocp",
        default="",
        choices=openshift.VERSIONS,
        help=f"with --platform openshift: its version (default: {openshift.DEFAULT})",
    )
    up.add_argument(
        "--region", default="phx", metavar="R", help="region as the node label says it (default: %(default)s)"
    )
    up.add_argument(
        "--without", action="append", default=[], metavar="A,B", help="simulated controllers to leave out, or all"
    )
    up.add_argument(
        "--real",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"a program of your own in place of a simulated one ({', '.join(real.PROGRAMS)}); PATH-VERSION, if it "
        "exists, in pods of that version (Linux, repeatable)",
    )
    up.add_argument(
        "--kubelets",
        type=_count,
        metavar="N",
        help="the first N GPU nodes are real: kubelet, containerd, runc, in namespaces (root, Linux; builds more once)",
    )
    up.add_argument(
        "--machine",
        default="",
        metavar="IMAGES",
        help="real nodes with this machine's own GPUs, parted among them, and images of this folder (tests/gpu)",
    )
    up.add_argument("--fault", action="append", default=[], metavar="KIND[:NODE]", help="see below (repeatable)")
    up.add_argument(
        "--kubeconfig", default="", metavar="PATH", help="write the kubeconfig there too; 'down' removes it"
    )
    up.add_argument(
        "--node-names",
        default="",
        metavar="PATTERN",
        help="names instead of addresses, with {} for a number: gpu-{}.train.example.com",
    )
    up.add_argument("--small-nodes", action="store_true", help="nodes of 6 KB, not 31 KB as in life")
    up.add_argument(
        "--download",
        action="store_true",
        help="kwokctl downloads the control plane's release binaries (internet); kwokctl, kubectl and helm are built",
    )
    up.set_defaults(run=_up)


def _add_fault_commands(fault: argparse.ArgumentParser) -> None:
    actions = fault.add_subparsers(metavar="add|clear|list", required=True)
    add = actions.add_parser("add", help="let faults hold from now on")
    add.add_argument("faults", nargs="+", metavar="KIND[:NODE]")
    add.set_defaults(run=_fault_add)
    clear = actions.add_parser("clear", help="let faults hold no longer; all when none is named")
    clear.add_argument("faults", nargs="*", metavar="KIND[:NODE]")
    clear.set_defaults(run=_fault_clear)
    show = actions.add_parser("list", help="the faults that hold")
    show.add_argument("--kinds", action="store_true", help="the kinds that there are")
    show.set_defaults(run=_fault_list)
    for command in (add, clear, show):
        command.add_argument("--name", help="the sandbox (default: the only one there is)")


def _add_name(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", nargs="?", metavar="NAME", help="default: the only one there is")
    command.add_argument("--name", dest="name_option", metavar="NAME", help="the same as an option")


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes")
    return int(text)


def _sandbox(options: argparse.Namespace) -> Sandbox:
    """The sandbox that was named, or the only one there is. A name is checked: it becomes a folder's."""
    name = getattr(options, "name_option", None) or options.name or _only()
    if not name.replace("-", "").isalnum() or not name[0].isalnum() or name != name.lower() or len(name) > 40:
        raise SandboxError(f"{name!r} cannot be a sandbox's name: use lower-case letters, digits and '-', at most 40")
    return Sandbox(name)


def _only() -> str:
    """The name of the only sandbox; the default name where there is none."""
    there = names()
    if len(there) > 1:
        raise SandboxError(f"which sandbox? There are {', '.join(there)}")
    return there[0] if there else DEFAULT_NAME


# up


def _up(options: argparse.Namespace) -> int:
    start, sandbox, spec = time.monotonic(), _sandbox(options), _spec(options)
    wanted = faults.parse_all(options.fault, spec.fleet().gpu_names())
    faults.check_real(spec.fleet(), wanted)
    with build.locked(home() / f".{sandbox.name}.lock"):
        if sandbox.exists():
            return _up_again(sandbox, spec, wanted)
        if sandbox.state.exists():
            say(f"sandbox {sandbox.name}: removing what an interrupted 'up' left in {sandbox.state}")
            sandbox.delete()
        sandbox.create(spec, wanted, say, options.download)
        sandbox.wait_ready(spec, 600 + spec.fleet().gpu_nodes / 5)
        faults.begin(sandbox, wanted)
    say(f"sandbox {sandbox.name} is ready after {time.monotonic() - start:.1f} s: {_nodes_line(spec)}")
    if wanted:
        say(f"faults: {', '.join(map(str, wanted))}")
    say(f"kubeconfig: {spec.kubeconfig or sandbox.kubeconfig}")
    say(f"try: tests/sandbox/sandbox exec {sandbox.name} -- kubectl get nodes")
    return 0


def _up_again(sandbox: Sandbox, spec: Spec, wanted: Sequence[Fault]) -> int:
    """A healthy one is left alone, a damaged one repaired; one that is not what is asked for now is refused."""
    held = sandbox.spec()
    if held != spec:
        old, new = vars(held), vars(spec)
        differences = "; ".join(f"{key}: {old[key]!r}, asked {new[key]!r}" for key in new if old[key] != new[key])
        raise SandboxError(
            f"sandbox {sandbox.name} is there with other options ({differences}); 'sandbox down' it first"
        )
    lacking = [fault for fault in wanted if fault not in sandbox.faults() and faults.KINDS[fault.kind].by != "action"]
    if not sandbox.dead() and sandbox.api().ready():
        say(f"sandbox {sandbox.name} is up already: {_nodes_line(held)}")
    else:
        sandbox.repair(say)
        sandbox.wait_ready(held, 600 + held.fleet().gpu_nodes / 5)
        say(f"sandbox {sandbox.name} is up again: {_nodes_line(held)}")
    if lacking:
        faults.add(sandbox, lacking)
        say(f"faults added: {', '.join(map(str, lacking))}")
    return 0


def _spec(options: argparse.Namespace) -> Spec:
    on_openshift = options.platform == "openshift"
    if options.ocp and not on_openshift:
        raise SandboxError(f"--ocp {options.ocp} goes with --platform openshift, not {options.platform}")
    spec = Spec(
        pools=_pools(options),
        cpu_nodes=options.cpu_nodes,
        profile=options.profile,
        platform=options.platform,
        ocp=(options.ocp or openshift.DEFAULT) if on_openshift else "",
        region=options.region,
        without=_without(options.without),
        small=options.small_nodes,
        names=_names(options.node_names, options.kubelets),
        kubeconfig=str(Path(options.kubeconfig).absolute()) if options.kubeconfig else "",
        kubelets=options.kubelets or 0,
        machine=str(Path(options.machine).resolve()) if options.machine else "",
        real=_real(options.real),
    )
    _check_kubelets(options.kubelets, spec)
    if spec.fleet().gpu_nodes > GPU_NODES[1] - GPU_NODES[0] or spec.cpu_nodes > CPU_NODES[1] - CPU_NODES[0]:
        raise SandboxError(
            f"at most {GPU_NODES[1]} GPU nodes and {CPU_NODES[1] - CPU_NODES[0]} CPU nodes fit 10.140.0.0/16"
        )
    target = Path(spec.kubeconfig)
    if (
        spec.kubeconfig
        and target.exists()
        and f"name: sandbox-{options.name}" not in target.read_text(errors="replace")
    ):
        raise SandboxError(f"--kubeconfig {target} exists and is not this sandbox's; it is left as it is")
    return spec


def _names(pattern: str, kubelets: int | None) -> str:
    """As the API server takes them: RFC 1123 subdomains of at most 253 characters."""
    if not pattern:
        return ""
    longest = pattern.replace("{}", str(CPU_NODES[1]))
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    if "{}" not in pattern or not re.fullmatch(rf"(?=.{{1,253}}$){label}(\.{label})*", longest):
        raise SandboxError(
            f"--node-names {pattern}: it needs {{}}, and names of small letters, digits, - and dots, at most 253 long"
        )
    if kubelets:
        raise SandboxError("--node-names: real nodes are named by their addresses")
    return pattern


def _check_kubelets(asked: int | None, spec: Spec) -> None:
    if asked == 0:
        raise SandboxError("--kubelets 0: leave the option out for a sandbox without real nodes")
    if spec.kubelets > spec.fleet().gpu_nodes:
        raise SandboxError(f"--kubelets {asked}: there are {spec.fleet().gpu_nodes} GPU nodes; more cannot be real")
    if spec.machine:
        if not spec.kubelets:
            raise SandboxError("--machine is for real nodes: --kubelets says how many of them have its GPUs")
        try:
            gpus.parts(gpus.found(), spec.kubelets)
        except ValueError as error:
            raise SandboxError(f"--machine: {error}") from None
        if not (Path(spec.machine) / "machine" / "manifest.json").exists():
            raise SandboxError(f"--machine {spec.machine}: no image is there; tests/gpu/run makes it")


def _pools(options: argparse.Namespace) -> list[list[object]]:
    count = options.gpu_nodes if options.gpu_nodes is not None else (0 if options.pool else 4)
    pools: list[list[object]] = [[options.shape, count]] if count else []
    for text in options.pool:
        name, equals, number = text.partition("=")
        shape, colon, kind = name.partition(":")
        if not equals or not number.isdigit() or bool(colon) != bool(kind):
            raise SandboxError(
                f"--pool {text!r}: write SHAPE=N or SHAPE:TYPE=N, e.g. {DEFAULT_SHAPE}=4 or BM.GPU.H100.8:p5.48xlarge=4"
            )
        if "/" in shape and not kind:
            raise SandboxError(f"--pool {text!r}: say what such a machine is called: {shape}:TYPE=N")
        pools.append([shape, int(number), *([kind] if kind else [])])
    shapes = machines(load_shapes())
    for shape in dict.fromkeys([options.shape, *(str(pool[0]) for pool in pools)]):
        if shape not in shapes:
            near = difflib.get_close_matches(shape, shapes, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise SandboxError(
                f"unknown shape {shape!r}{hint}; known: {', '.join(name for name in shapes if '/' not in name)}"
            )
    return pools


def _without(given: Sequence[str]) -> list[str]:
    wanted = sorted({name for text in given for name in text.split(",") if name})
    if wanted and wanted != ["all"]:
        from .controllers import modules

        known = modules()
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise SandboxError(
                f"--without {', '.join(unknown)}: no such controller; known: {', '.join(sorted(known))}, all"
            )
    return wanted


def _real(given: Sequence[str]) -> dict[str, str]:
    """The programs of --real by name; refused by name are those that cannot run."""
    found: dict[str, str] = {}
    for text in given:
        name, _equals, path = text.partition("=")
        if name not in real.PROGRAMS or not path:
            raise SandboxError(f"--real {text}: write NAME=PATH, with one of the names {', '.join(real.PROGRAMS)}")
        found[name] = str(Path(path).absolute())
        if against := real.problem(Path(found[name])):
            raise SandboxError(f"--real {name}: {against}; it is the executable file that runs in the pods of {name}")
    if found:
        launcher = [sys.executable, str(Path(__file__).with_name("pod_process.py")), "--check"]
        done = subprocess.run(launcher, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SandboxError(f"--real {', '.join(found)}: no namespaces for programs on this machine ({why})")
    return found


def _nodes_line(spec: Spec) -> str:
    pools = " + ".join(f"{pool[1]} x {':'.join([pool[0], *pool[2:]])}" for pool in spec.pools) or "no GPU node"
    without = f", without {', '.join(spec.without)}" if spec.without else ""
    without += f", own programs: {', '.join(spec.real)}" if spec.real else ""
    real = f"{spec.kubelets} with real kubelets, all others simulated" if spec.kubelets else "all nodes simulated"
    return f"{pools}, {spec.cpu_nodes} without GPU, profile {spec.profile}{without} ({real})"


# the other commands


def _build(options: argparse.Namespace) -> int:
    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    folders = [build.ensure(tell)]
    if options.kubelets:
        folders += [programs.ensure(tell), images.ensure(tell)]
    print(*folders, sep="\n")
    return 0


def _down(options: argparse.Namespace) -> int:
    if options.all:
        for name in names():
            Sandbox(name).delete()
            say(f"sandbox {name} is gone")
        return 0
    sandbox = _sandbox(options)
    there = sandbox.state.exists() or sandbox.failed.exists() or sandbox.real.there()
    sandbox.delete()
    shutil.rmtree(sandbox.failed, ignore_errors=True)
    say(f"sandbox {sandbox.name} is gone" if there else f"no sandbox is called {sandbox.name!r}: nothing to do")
    return 0


def _status(options: argparse.Namespace) -> int:
    sandbox = _sandbox(options)
    spec, dead = sandbox.spec(), sandbox.dead()
    say(f"sandbox {sandbox.name}: {_nodes_line(spec)}")
    for component in (*COMPONENTS, CONTROLLERS):
        process = sandbox.process(component)
        memory = f"{process.memory_info().rss / 1e6:.0f} MB" if process else ""
        say(f"  {component:<24} {f'pid {process.pid}' if process else 'DEAD':<12} {memory}")
    others = [name for name in names() if name != sandbox.name]
    answers = not dead and sandbox.api().ready()
    if answers:
        states = sandbox.api().node_states()
        ready = sum(state.startswith("Ready") for state in states.values())
        say(f"  API server {sandbox.api().host} is ready; nodes Ready: {ready} of {len(states)}")
    say(f"  faults: {', '.join(map(str, sandbox.faults())) or 'none'}")
    say(f"  folder: {sandbox.state}")
    if others:
        say(f"  other sandboxes: {', '.join(others)}")
    if not answers:
        cause = ", ".join(dead) or "the API server does not answer"
        say(f"not healthy ({cause}); 'sandbox up' with the same options repairs it")
    return 0 if answers else 1


def _exec(options: argparse.Namespace) -> int:
    if not options.command:
        raise SandboxError("no command given; write: sandbox exec NAME -- CMD [ARGUMENT...]")
    sandbox = _sandbox(options)
    sandbox.spec()
    os.environ.update(sandbox.environment())
    # The lines after Next are of the environment's Ansible.
    os.environ["PATH"] += f"{os.pathsep}{Path(sys.executable).parent}"
    try:
        os.execvp(options.command[0], options.command)
    except OSError as error:
        raise SandboxError(f"cannot run {options.command[0]!r}: {error.strerror}") from error


def _logs(options: argparse.Namespace) -> int:
    sandbox = _sandbox(options)
    sandbox.spec()
    path = sandbox.log_file(options.component)
    if not path.exists():
        raise SandboxError(f"sandbox {sandbox.name} has no log of {options.component} yet ({path})")
    with path.open(errors="replace") as handle, contextlib.suppress(KeyboardInterrupt):
        while True:
            for line in handle:
                sys.stdout.write(line)
            sys.stdout.flush()
            if not options.follow or sandbox.process(options.component) is None:
                return 0
            time.sleep(0.3)
    return 0


def _env(options: argparse.Namespace) -> int:
    sandbox = _sandbox(options)
    sandbox.spec()
    for name, value in sandbox.environment().items():
        text = f"{shlex.quote(str(build.folder()))}:$PATH" if name == "PATH" else shlex.quote(value)
        print(f"export {name}={text}")
    return 0


def _account(options: argparse.Namespace) -> int:
    """Prints the kubeconfig's path, and nothing else."""
    sandbox = _sandbox(options)
    sandbox.spec()
    target = options.output or sandbox.state / f"{options.rules.stem}.kubeconfig"
    account.give(sandbox, account.read(options.rules), target)
    say(str(target))
    return 0


def _fault_add(options: argparse.Namespace) -> int:
    sandbox = _sandbox(options)
    new = faults.parse_all(options.faults, sandbox.spec().fleet().gpu_names())
    faults.check_real(sandbox.spec().fleet(), new)
    faults.add(sandbox, new)
    say(f"sandbox {sandbox.name}: {', '.join(map(str, new))}")
    return 0


def _fault_clear(options: argparse.Namespace) -> int:
    sandbox = _sandbox(options)
    sandbox.spec()
    gone = faults.matching(sandbox, options.faults)
    faults.clear(sandbox, gone)
    say(f"sandbox {sandbox.name}: cleared {', '.join(map(str, gone)) or 'nothing'}")
    return 0


def _fault_list(options: argparse.Namespace) -> int:
    if options.kinds:
        print(faults.table())
        return 0
    sandbox = _sandbox(options)
    sandbox.spec()
    for fault in sandbox.faults():
        print(fault)
    return 0
