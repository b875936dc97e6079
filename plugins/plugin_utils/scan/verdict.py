# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scan's conclusion: who is convicted, on how many runs, against which median; who was slow and is not. PRIVATE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Pf
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import stats
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.model import MOST_ROUNDS, Conclusion, Conviction
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.stats import FAILED, OK, UNKNOWN, Norm, PlacedRun, Score
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.view import Edge, ScanView

CROWD_RUNS = 8
"""Slow runs under load that convict a block in one round, when no round is left."""
UNSEEN = 5.0
"""Probability in per cent from which the verdict states what the scan misses."""
CHANGES = "changes from round to round"
CONFIG = "check image, NCCL variables, driver and cabling plan first"


def odds(runs: int) -> str:
    """What so many runs of each node say about a node that is slow in 40 % of its runs."""
    seen = 1 - (1 - stats.FLAKY) ** runs
    often = f"a node or rail that is slow in 40 % of its runs is found with a probability of {100 * seen:.0f} %"
    return f"{counted(runs, 'run')} of each node with a partner; {often}"


@dataclass(frozen=True)
class ScanVerdict:
    """What the finished rounds of a scan say. ``extra``: results of the round that is not finished."""

    view: ScanView
    nodes: Sequence[str]
    absent: Mapping[str, str]
    rails: Sequence[Pf]
    complete: bool
    extra: Sequence[Json]

    def conclusion(self) -> Conclusion:
        """The scan's conclusion."""
        stopped = self._stopped()
        convicted = () if stopped else tuple(self._convictions())
        named = {item.node for item in convicted} | {one for item in convicted for one in item.between}
        good = tuple(name for name in self.nodes if self.view.passed(name) and name not in {*named, *self.absent})
        unresolved = {**self.absent, **({} if stopped else self._unresolved(set(good), named))}
        notes = {} if stopped else self._notes(named)
        verdict, reason = self._verdict(stopped, convicted, unresolved, len(good))
        return Conclusion(
            verdict,
            reason,
            self.complete,
            stopped,
            convicted,
            unresolved,
            notes,
            good,
            self._gate_row(self.view.of("gate")),
            self._counts(),
            self._norms(),
            self._seen(),
        )

    # ---- stopped

    def _stopped(self) -> str:
        runs = self.view.systemic("single")
        if runs:
            bad = [item for item in runs if item["verdict"] != OK]
            many = len({item["nodes"][0] for item in bad})
            share = f"{many} of {len({item['nodes'][0] for item in runs})} nodes fail even alone"
            return f"{share}, so the configuration is the likely cause: {CONFIG} ({_why(bad[0])})"
        runs = self.view.systemic("pair")
        if runs:
            bad = [item for item in runs if item["verdict"] != OK]
            if len(self.view.blocks) == 2:
                names = " and ".join(runs[0]["nodes"])
                return (
                    f"{names} are bad together, and there is no third node to find out which one is faulty: "
                    f"{_why(bad[0])}"
                )
            return (
                f"{len(bad)} of {len(runs)} pairs are bad, so the configuration is the likely cause: {CONFIG} "
                f"({_why(bad[0])})"
            )
        return ""

    # ---- convictions

    def _convictions(self) -> list[Conviction]:
        view = self.view
        found = [
            Conviction("node", name, f"its worker ended with {why}", evidence=(f"worker: {why}",))
            for name, why in view.dead.items()
            if name not in self.absent
        ]
        found += [self._of_single(name) for name in view.alone if name not in view.dead]
        guilty = {name: score for name, score in view.pairs.convicted.items() if name not in {*view.dead, *view.alone}}
        blocks = self._whole_blocks(list(guilty))
        found += [self._of_block(block, names) for block, names in blocks.items()]
        covered = {name for names in blocks.values() for name in names}
        for name in sorted(guilty, key=self.nodes.index):
            if name not in covered:
                found += self._of_node(name, guilty[name])
        found += [*self._of_links(), *self._of_edges(), *self._of_load(), *self._of_parts()]
        return found or self._of_low_blocks()

    def _of_single(self, name: str) -> Conviction:
        score, norm = self.view.singles[name], self.view.norms.get("single")
        return Conviction(
            "node",
            name,
            f"slow alone, over NVLink, {_measured(score, norm)}",
            evidence=tuple(f"alone: {_result_text(run.result)}" for run in score.runs),
            **_numbers(score.runs, norm),
        )

    def _of_node(self, name: str, score: Score) -> list[Conviction]:
        bad = self.view.bad_rails(name)
        scores = self.view.rail_scores.get(name, {})
        evidence = self._evidence(name, score)
        if bad and len(bad) < len(scores):
            return [self._of_rail(name, rail, scores[rail], evidence) for rail in bad]
        more = ""
        if scores and any(score.runs for score in scores.values()):
            slow = [run for one in scores.values() for run in one.runs if run.result["verdict"] != OK]
            alike = name in self.view.alike or 2 * len(slow) > sum(len(one.runs) for one in scores.values())
            more = "; all its rails are equally slow" if alike else "; each rail alone is healthy"
        word = "slow" if any(run.lost is not None for run in score.slow) else "fails"
        flaky = f"intermittent: {word}" if self.view.is_flaky(name) else word
        found = f"{flaky} {_measured(score, self.view.norms.get('near'))}{more}"
        return [Conviction("node", name, found, evidence=evidence, **_numbers(score.slow, self.view.norms.get("near")))]

    def _of_rail(self, name: str, rail: int, score: Score, evidence: tuple[str, ...]) -> Conviction:
        port, item = self.rails[rail], score.slow[0].result
        speeds = [run.result["busbw"] for run in score.slow if run.lost is not None]
        expected = item.get("expected") or item.get("threshold")
        measured = f"{median(speeds):.1f} of {expected:.0f} GB/s" if speeds and expected else _why(item)
        return Conviction(
            "rail",
            name,
            f"{port.netdev} ({port.hca}): {measured}, {len(score.slow)} of {counted(len(score.runs), 'run')} slow",
            rail=rail,
            netdev=port.netdev,
            hca=port.hca,
            measured=round(median(speeds), 1) if speeds else None,
            expected=expected,
            threshold=item.get("threshold"),
            evidence=(
                *(f"rail {rail} with {_partner(run.result, name)}: {_result_text(run.result)}" for run in score.runs),
                *evidence,
            ),
        )

    def _whole_blocks(self, guilty: Sequence[str]) -> dict[str, list[str]]:
        """Blocks of at least four nodes of which every tested node is bad: their switch is suspect, not each node."""
        tested: dict[str, list[str]] = {}
        for name in [*self.view.pairs.scores, *self.view.pairs.convicted]:
            tested.setdefault(self.view.blocks[name], []).append(name)
        wrong = set(guilty)
        return {block: names for block, names in sorted(tested.items()) if len(names) > 3 and wrong.issuperset(names)}

    def _of_block(self, block: str, names: Sequence[str]) -> Conviction:
        runs = [run for name in names for run in self.view.pairs.convicted[name].slow]
        share = f"{len(names)} of {len(names)} nodes of block {block} are bad, with each other and with other blocks"
        return Conviction(
            "fabric",
            "",
            f"{share}: look at the block's switches first",
            between=(block,),
            evidence=self._evidence(names[0], self.view.pairs.convicted[names[0]]),
            **_numbers(runs, self.view.norms.get("near")),
        )

    def _of_links(self) -> list[Conviction]:
        """Pairs of nodes that are good with others but not with each other; many of one block are its fabric."""
        by_block: dict[Edge, dict[Edge, list[PlacedRun]]] = {}
        for ends, runs in sorted(self.view.broken.items()):
            by_block.setdefault(self.view.edge(ends), {})[ends] = runs
        found = []
        for edge, links in by_block.items():
            if len(links) > 2:
                together = [run for runs in links.values() for run in runs]
                found.append(self._of_fabric(tuple(dict.fromkeys(edge)), together, f"inside block {edge[0]}", "near"))
            else:
                for ends, runs in links.items():
                    found.append(self._of_fabric(ends, runs, f"between {' and '.join(ends)}", "near"))
        return found

    def _of_edges(self) -> list[Conviction]:
        """Pairs of blocks; a block whose pairs are all bad is reported alone."""
        view = self.view
        if view.most_across and any(len(runs) > 1 for runs in view.edges.values()):
            runs = [run for own in view.edges.values() for run in own if run.weight > 0]
            return [self._of_fabric(("all blocks",), runs, f"across {len(runs)} pairs of blocks", "far")]
        bad, found = dict(view.cut), []
        for block in sorted({block for edge in bad for block in edge}):
            mine = [edge for edge in view.edges if block in edge]
            if len(mine) > 1 and all(edge in bad for edge in mine):
                runs = [run for edge in mine for run in bad.pop(edge)]
                found.append(self._of_fabric((block,), runs, f"between block {block} and all others", "far"))
        for edge, runs in sorted(bad.items()):
            found.append(self._of_fabric(edge, runs, f"between blocks {' and '.join(edge)}", "far"))
        return found

    def _of_load(self) -> list[Conviction]:
        """What is slow only while many pairs run at once: an oversubscribed block, link or spine."""
        view = self.view
        blocks, edges, all_of_it = view.loaded
        if len({view.at[run.result["id"]] for run in view.load}) < 2:
            if len(view.finished) < MOST_ROUNDS:
                return []
            blocks, edges = [block for block in blocks if view.under_load(block) >= CROWD_RUNS], []
        if all_of_it:
            slow = [run for run in view.load if run.weight > 0]
            return [self._of_fabric(("all blocks",), slow, "across all blocks under load", "far")]
        found = []
        for block in blocks:
            own = [run for run in view.load if block in view.edge(run.ends)]
            found.append(self._of_fabric((block,), own, f"between block {block} and all others under load", "far"))
        for edge in edges:
            own = [run for run in view.load if view.edge(run.ends) == edge]
            if sum(run.weight > 0 for run in own) < 3:
                continue
            found.append(self._of_fabric(edge, own, f"between blocks {' and '.join(edge)} under load", "far"))
        return found

    def _of_parts(self) -> list[Conviction]:
        """Blocks that are slow as a whole although their pairs are good, unless most blocks are."""
        view, found = self.view, []
        if view.changing or 2 * sum(view.parts.values()) > len(view.parts):
            return []
        for nodes, bad in view.parts.items():
            block = {view.blocks[name] for name in nodes}
            whole = sum(1 for name in self.view.good if view.blocks[name] in block)
            if any(score.clear for name, score in view.pairs.scores.items() if name in nodes):
                continue  # an intermittent node among them is as likely
            if not bad or len(block) > 1 or len(set(view.blocks.values())) == 1 or whole > len(nodes):
                continue
            halves = view.halves(nodes)
            together = view.only_together(nodes) and view.rounds_of(nodes) > 1
            if not together and (len(halves) < 2 or not all(view.parts[half] for half in halves)):
                continue  # it may be one node of it, or that round
            items = [item for item in view.of("group") if tuple(item["nodes"]) == nodes]
            runs = [PlacedRun(item, (), None if item.get("busbw") is None else 0.0, 1.0) for item in items]
            if self._as_slowest(nodes, [float(item["busbw"]) for item in items if item.get("busbw") is not None]):
                continue  # a node of it is as slow with others
            where = f"inside block {next(iter(block))} when its {len(nodes)} nodes run together"
            found.append(self._of_fabric(tuple(block), runs, where, ""))
        return found

    def _as_slowest(self, nodes: Sequence[str], speeds: Sequence[float]) -> str:
        """Which of these nodes is in its pairs nearly as slow as all of them together; "" when none is."""
        norm = self.view.norms.get("near")
        name, speed, _runs = self.view.slowest(nodes)
        return name if norm and speeds and median(speeds) > speed * (1 - norm.loss / 4) else ""

    def _of_low_blocks(self) -> list[Conviction]:
        """Blocks that are slower than others as a whole, when all nodes together are slow and nothing else is found."""
        view, found = self.view, []
        for block, items in sorted(view.low.items()) if view.gate[0] == "slow" else ():
            numbers = _numbers([PlacedRun(item, (), 0.0, 1.0) for item in items], view.norms.get("near"))
            evidence = tuple(f"{_names(item)}: {_result_text(item)}" for item in items[:12])
            found.append(Conviction("fabric", "", self._low_text(block), (block,), evidence=evidence, **numbers))
        return found

    def _low_text(self, block: str) -> str:
        norm = self.view.norms["near"].middle
        speeds = [float(item["busbw"]) for item in self.view.low[block]]
        pairs = counted(len(speeds), "pair")
        return f"block {block} is slow as a whole: {pairs} with a median of {median(speeds):.1f} of {norm:.0f} GB/s"

    def _of_fabric(self, ends: tuple[str, ...], runs: Sequence[PlacedRun], where: str, norm: str) -> Conviction:
        known = self.view.norms.get(norm)
        slow = [run for run in runs if run.weight > 0] or list(runs)
        numbers = _numbers(slow, known)
        if numbers["measured"] is not None:
            limit = known.middle if known else numbers["threshold"]
            measured = f"{numbers['measured']:.1f} of {limit:.0f} GB/s" if limit else f"{numbers['measured']:.1f} GB/s"
        else:
            measured = _why(slow[-1].result)
        against = "the median of " if known else ""
        often = f"{len(slow)} of {counted(len(runs), 'run')} slow"
        found = f"slow {where}, whose nodes are good with others: {measured}, {often}"
        return Conviction(
            "fabric",
            "",
            found.replace(" GB/s", f" GB/s ({against}healthy pairs)" if known else " GB/s", 1),
            between=ends,
            evidence=tuple(f"{_names(run.result)}: {_result_text(run.result)}" for run in runs[:12]),
            **numbers,
        )

    def _evidence(self, name: str, score: Score) -> tuple[str, ...]:
        partners = [(run, _partner(run.result, name)) for run in score.runs]
        return tuple(
            f"with {partner}{'' if partner in self.view.good else ' (itself not cleared)'}: {_result_text(run.result)}"
            for run, partner in partners
        )

    # ---- what is left open

    def _unresolved(self, good: set[str], named: set[str]) -> dict[str, str]:
        """Nodes and pairs of blocks that were neither cleared nor convicted, with the reason."""
        view, found = self.view, {}
        by_node: dict[str, list[Json]] = {}
        for item in view.of("pair"):
            for name in item["nodes"]:
                by_node.setdefault(name, []).append(item)
        for name in self.nodes:
            if name in good or name in named or name in self.absent or view.blocks[name] in named:
                continue
            runs = by_node.get(name, [])
            bad = [item for item in runs if item["verdict"] != OK]
            if name in view.silent:
                last = [item for item in view.of("single") if item["nodes"][0] == name][-1]
                found[name] = f"no test of it ran: {_why(last)}"
            elif not runs:
                found[name] = "it has not been tested with another node"
            elif all(item["verdict"] == UNKNOWN for item in runs):
                found[name] = f"no test with it ran: {_why(runs[-1])}"
            elif bad and not any(_partner(item, name) in good for item in runs):
                found[name] = (
                    f"bad with {_partner(bad[-1], name)}, and no known-good node was available to find out which "
                    "of them is faulty"
                )
            else:
                slow = view.pairs.scores[name].slow if name in view.pairs.scores else []
                found[name] = (
                    f"slow in {len(slow)} of {counted(len(runs), 'run')}, too few for a verdict: "
                    f"{_result_text(runs[-1])}"
                )
        for block in self.view.low if self.view.gate[0] != "ok" else ():
            if block not in named:
                found[f"block {block}"] = self._low_text(block)
        for block in view.changing:
            if block not in named:
                found[f"block {block}"] = self._change_text(block)
        for edge, items in view.across.items():
            if (
                edge not in view.cut
                and not view.changing.keys() & set(edge)
                and not named.intersection([*edge, "all blocks"])
            ):
                why = self._open_edge(view.edges.get(edge, []), items)
                found.update({f"blocks {' and '.join(edge)}": why} if why else {})
        return found

    @staticmethod
    def _open_edge(runs: Sequence[PlacedRun], items: Sequence[Json]) -> str:
        """Why a pair of blocks is neither good nor bad; "" when it is good."""
        if not runs:
            return f"no two tests between them ran: {_why(items[-1])}"
        slow = sum(run.weight > 0 for run in runs)
        told = f"slow in {slow} of {counted(len(runs), 'run')}, too few for a verdict: {_result_text(runs[-1].result)}"
        return told if stats.total(runs) > stats.WATCHED else ""

    def _notes(self, named: set[str]) -> dict[str, str]:
        """Nodes that were slow beyond noise in some run that no conviction explains."""
        view, found = self.view, {}
        runs = [*view.pairs.runs, *(run for own in view.edges.values() for run in own)]
        beyond = NormalDist().inv_cdf(1 - 1 / (4 * len(runs) + 4))
        for name, score in view.singles.items():
            odd = [run for run in score.runs if _odd(run, view.norms.get("single"), beyond)]
            if odd and name not in named:
                found[name] = (
                    f"slow alone in {len(odd)} of {counted(len(score.runs), 'run')}: {_result_text(odd[0].result)}"
                )
        for name, score in view.pairs.scores.items():
            odd = [run for run in score.runs if _odd(run, view.norms.get("near"), beyond)]
            odd = [run for run in odd if not named.issuperset(run.ends)]
            if not odd or name in named or named.intersection(view.edge(odd[0].ends)):
                continue
            found[name] = (
                f"slow in {len(odd)} of {counted(len(score.runs), 'run')}, good in the others: "
                f"with {_partner(odd[0].result, name)} {_result_text(odd[0].result)}{_against(view.norms.get('near'))}"
            )
        for block in view.low if view.gate[0] == "ok" else ():
            if block not in named:
                found[f"block {block}"] = f"{self._low_text(block)}; all nodes together are fast enough"
        return found

    # ---- verdict

    def _verdict(
        self, stopped: str, convicted: Sequence[Conviction], unresolved: Mapping[str, str], good: int
    ) -> tuple[str, str]:
        state, speed = self.view.gate
        if stopped:
            return "fail", f"{stopped}; {self._gate_text()}"
        if convicted:
            first = convicted[0]
            who = f"{first.node}: " if first.node else ""
            more = f"; and {len(convicted) - 1} more" if len(convicted) > 1 else ""
            return "fail", f"{who}{first.found}{more}; {self._gate_text()}"
        if not self.complete:
            return "incomplete", "the scan did not finish"
        if self._changes():
            word = "fail" if state == "slow" else "incomplete"
            return word, f"{CHANGES}: {self._changes()}; {self._gate_text()}"
        gates = self.view.of("gate")
        if state in ("slow", "unknown", "open"):
            count = len(gates[0]["nodes"])
            seen = f"; {'; '.join(self._looked())}" if self._looked() else ""
            word = "fail" if state == "slow" else "incomplete"
            often = f" in {len(gates)} runs" if len(gates) > 1 else ""
            return (
                word,
                f"every pair is healthy, but all {count} nodes together are not{often}: {_why(gates[-1])}"
                f"{self._limited(gates[0]['nodes'], speed) if speed is not None else ''}{seen}",
            )
        if unresolved:
            name, why = next(iter(unresolved.items()))
            some = f"{counted(len(unresolved), 'node')} could not be judged, such as {name}: {why}"
            return "incomplete", f"{some}; {self._gate_text()}"
        if good < 2:
            return "incomplete", "there were no two nodes to test together"
        together = f"; all together {speed:.1f} GB/s" if speed is not None else ""
        last = (gates or self.view.of("pair"))[-1]
        if last.get("unjudged"):
            return "unjudged", f"{good} nodes are as fast as each other alone and in pairs{together}; {_why(last)}"
        return "pass", f"{good} nodes are healthy alone and in pairs{together}{self._unseen()}"

    def _gate_text(self) -> str:
        """What all good nodes together have shown."""
        state, speed = self.view.gate
        gates = self.view.of("gate")
        if state == "none":
            return "all good nodes together were not tested"
        who = f"all {len(gates[0]['nodes'])} good nodes together"
        often = f" in {len(gates)} runs" if len(gates) > 1 else ""
        if state == "ok":
            return f"{who}: {speed:.1f} GB/s, fast enough" if speed is not None else f"{who}: good"
        limit = next((item["threshold"] for item in gates if item.get("threshold")), None)
        if state == "slow" and speed is not None and limit:
            return f"{who} are slow: {speed:.1f} of {limit:.0f} GB/s{often}{self._limited(gates[0]['nodes'], speed)}"
        return f"{who} {'fail' if state == 'slow' else 'have no result'}{often}: {_why(gates[-1])}"

    def _limited(self, nodes: Sequence[str], speed: float) -> str:
        """Which node is as slow in its pairs as all of them together, if there is one with several runs."""
        name, alone, runs = self.view.slowest(nodes)
        if runs < 3 or not self._as_slowest(nodes, [speed]):
            return ""
        return f", as {name} is in its pairs ({alone:.1f} GB/s), the slowest of them"

    def _changes(self) -> str:
        """What is slow as a whole in some rounds and good in others; "" without any."""
        view = self.view
        blocks = [f"block {block} is {self._when(block)}" for block in view.changing]
        more = f"; and {len(blocks) - 3} more blocks" if len(blocks) > 3 else ""
        if blocks:
            return "; ".join(blocks[:3]) + more
        norm, at = view.norms.get("near"), max(view.levels, key=lambda at: view.levels[at], default=0)
        if norm is None or view.gate[0] == "ok" or view.levels.get(at, 0.0) < norm.loss / 4:
            return ""
        return f"pairs of good nodes inside blocks are {100 * view.levels[at]:.0f} % slower in round {at} than at first"

    def _change_text(self, block: str) -> str:
        return f"{CHANGES}: {self._when(block)}"

    def _when(self, block: str) -> str:
        slow, good = (", ".join(map(str, rounds)) for rounds in self.view.changing[block])
        return f"slow as a whole in round {slow}, good in round {good}"

    def _looked(self) -> list[str]:
        """What was found after a failed gate that named nobody."""
        view, found = self.view, []
        if view.load:
            rounds = len({view.at[run.result["id"]] for run in view.load})
            slow = sum(run.weight > 0 for run in view.load)
            found.append(f"{len(view.load)} pairs across blocks at once, in {counted(rounds, 'round')}: {slow} slow")
        parts = view.parts
        for nodes, bad in parts.items():
            if bad:
                blocks = {view.blocks[name] for name in nodes}
                where = f"{len(nodes)} nodes ({listed(nodes)})"
                found.append(f"slow together: {where} of {counted(len(blocks), 'block')}")
        if parts and not any(parts.values()):
            found.append(f"{counted(len(parts), 'part')} of the cluster, each together: good")
        return [*found, "not reproducible with fewer nodes"] if found and not any(parts.values()) else found

    def _seen(self) -> tuple[str, ...]:
        runs = self._usual_runs()
        return (*self._looked(), *([odds(runs)] if runs else []))

    def _usual_runs(self) -> int:
        """The median of the nodes' runs with others."""
        runs = sorted(len(score.runs) for score in self.view.pairs.scores.values())
        return runs[len(runs) // 2] if runs else 0

    def _unseen(self) -> str:
        """What a scan with so few runs misses."""
        missed = 100 * (1 - stats.FLAKY) ** self._usual_runs()
        seldom = f"a node or rail that is slow in 40 % of its runs is missed with a probability of {missed:.0f} %"
        return f"; {seldom}" if missed > UNSEEN else ""

    def _gate_row(self, gates: Sequence[Json]) -> Optional[Json]:
        """The run of all nodes whose bandwidth is the middle one; None without any."""
        known = [item for item in gates if item.get("busbw") is not None]
        if not known or len(gates) == 1:
            return gates[-1] if gates else None
        row = sorted(known, key=lambda item: float(item["busbw"]))[len(known) // 2]
        state, _speed = self.view.gate
        if state == "ok" and row["verdict"] != OK:
            return {**row, "verdict": OK}
        return row

    def _counts(self) -> dict[str, int]:
        view = self.view
        items = [*view.items, *self.extra]
        kinds = [item["kind"] for item in items]
        rounds = len(view.finished) + bool(self.extra)
        return {
            "rounds": rounds,
            "pair_rounds": len({view.at.get(item["id"], rounds) for item in items if item["kind"] == "pair"}),
            **{f"{kind}_runs": kinds.count(kind) for kind in ("single", "pair", "across", "rail", "gate")},
            **{f"{kind}_runs": kinds.count(kind) for kind in ("load", "group") if kind in kinds},
        }

    def _norms(self) -> Json:
        return {
            name: {"median": round(norm.middle, 1), "spread": round(norm.spread, 4)}
            for name, norm in self.view.norms.items()
        }


# ---- words ---------------------------------------------------------------------------------------------------------


def _odd(run: PlacedRun, norm: Optional[Norm], beyond: float) -> bool:
    """Whether noise would make a run so slow less than once in two scans."""
    if run.lost is None or norm is None:
        return run.weight > 0
    return run.weight > 0 and run.lost > beyond * norm.spread


def _numbers(runs: Sequence[PlacedRun], norm: Optional[Norm]) -> dict[str, Any]:
    speeds = [float(run.result["busbw"]) for run in runs if run.result.get("busbw") is not None]
    speeds = speeds if any(run.lost is not None for run in runs) else []
    limit = next((run.result["threshold"] for run in runs if run.result.get("threshold")), None)
    return {
        "measured": round(median(speeds), 1) if speeds else None,
        "expected": round(norm.middle, 1) if norm else None,
        "threshold": limit,
    }


def _measured(score: Score, norm: Optional[Norm]) -> str:
    speeds = [float(run.result["busbw"]) for run in score.slow if run.lost is not None]
    partners = {end for run in score.slow for end in run.result["nodes"]}
    others = f" with {counted(len(partners) - 1, 'partner')}" if len(partners) > 1 else ""
    runs = f"in {len(score.slow)} of {counted(len(score.runs), 'run')}{others}"
    if not speeds:
        return f"{runs}: {_why(score.slow[-1].result)}"
    limit = norm.middle if norm else score.slow[-1].result.get("threshold") or 0
    return f"{runs}: {median(speeds):.1f} of {limit:.0f} GB/s, the median of healthy runs"


def _against(norm: Optional[Norm]) -> str:
    return f", median {norm.middle:.0f}" if norm else ""


def _partner(result: Json, name: str) -> str:
    return next((str(other) for other in result["nodes"] if other != name), "")


def _names(result: Json) -> str:
    nodes = result["nodes"]
    return " with ".join(nodes) if len(nodes) < 3 else f"{len(nodes)} nodes"


def _why(result: Json) -> str:
    return str(result.get("why") or result["verdict"])


def _result_text(result: Json) -> str:
    value: Any = result.get("busbw")
    if value is None or result["verdict"] in (FAILED, UNKNOWN):
        return _why(result)
    limit = result.get("threshold")
    return f"{value:.1f} GB/s" + (f" (threshold {limit:.4g})" if limit else "")
