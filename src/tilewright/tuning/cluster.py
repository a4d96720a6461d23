"""Tuning on a cluster: builders and runners are Ray actors, and one process searches and writes the database.

On every node is one builder, with a process for each of its cores. On every node of the same kind as this machine (by
`target_digest`) is one runner, which takes all of the node's cores: nothing else that Ray starts runs beside it. Its
own builder is not counted, because a batch is first built and then timed. A runner has its own copy of the program, so
a batch is as many times larger as there are runners, and each times a part of it. What it says of a candidate is the
ratio to what was compiled, on the same node in the same runs: ratios of like nodes can be held against each other.

A node that is lost costs what it was at, which another does again.
"""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from tilewright.support.artifact import Artifact
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.support.turns import Series
from tilewright.tuning.candidate import Task
from tilewright.tuning.candidates import Built, Point
from tilewright.tuning.cluster_node import NodeBuilder, NodeReport, NodeRunner, node_report, program_bytes
from tilewright.tuning.crew import Crew, Member
from tilewright.tuning.insides import InsideOutcome, site_specs
from tilewright.tuning.sites import SitedProgram
from tilewright.tuning.trial import Candidate, TrialStatus

_log = logging.getLogger("tilewright")

_START_SECONDS = 120.0  # for an actor to get ready, on a busy node
_CHUNKS = 2  # of a batch for each builder: nodes are not equally quick
_LOST = "its node was lost"


def load_ray() -> Any:
    """The module; UserError if it is not installed."""
    try:
        return import_module("ray")
    except ImportError as e:
        raise UserError(
            "tuning on a cluster needs Ray, which is not installed", hint="pip install 'tilewright[ray]'"
        ) from e


class Cluster(Closing):
    """The cluster at `address`, at RAY_ADDRESS, or else one of this machine alone. Use it as a context manager: what it
    has started ends with it.
    """

    def __init__(self, address: str | None, threads: int, seed: int = 0) -> None:
        self._ray = load_ray()
        self._address, self._threads, self._seed = address, threads, seed
        self._is_started = self._is_ours = False
        self.builders = Crew(self._ray, "build candidates")
        self.runners = Crew(self._ray, "time candidates")

    def close(self) -> None:
        if self._ray.is_initialized():
            self.runners.close()
            self.builders.close()
            if self._is_ours:
                self._ray.shutdown()
        self._is_started = self._is_ours = False

    def start(self) -> None:
        """Connect, and start the actors; once."""
        if self._is_started:
            return
        self._connect()
        self._is_started = True
        nodes = [n for n in self._ray.nodes() if n["Alive"] and _cores(n)]
        # Builders have no share of a node's cores: they are the runner's, which waits while candidates are built.
        builders = [self._member(NodeBuilder, n, 0, _cores(n)) for n in nodes]
        runners = [self._member(NodeRunner, n, _cores(n), self._threads, self._seed) for n in nodes]
        self.builders.members += builders
        self.runners.members += runners
        self._keep_like_nodes(dict(zip(builders, runners, strict=True)))
        self.runners.ask_all(lambda m: m.actor.is_ready.remote(), _START_SECONDS, "others hold its cores")
        self.runners.check()
        _log.info("cluster: %d nodes build, %d time", len(self.builders.members), len(self.runners.members))

    def put(self, artifact: Artifact) -> Any:
        """A program in the object store, from where each node takes it once."""
        return self._ray.put(program_bytes(artifact))

    def _connect(self) -> None:
        if self._ray.is_initialized():  # by whoever called us
            return
        address = self._address or os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "warning"}
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that we run
            options["include_dashboard"] = False
        try:
            self._ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as e:
            raise UserError(
                f"the Ray cluster cannot be used: {str(e).strip().splitlines()[0] if str(e) else type(e).__name__}",
                where=address,
                hint="`ray start --head` makes one, and says at which address",
            ) from e
        self._is_ours = True

    # -------------------------------------------------------------------------------------------------------- actors

    def _keep_like_nodes(self, runners: Mapping[Member, Member]) -> None:
        """Dismiss those who cannot do their part. `runners`: by the builder of the same node."""
        mine = node_report()
        reports: dict[Member, NodeReport] = self.builders.ask_all(
            lambda m: m.actor.report.remote(), _START_SECONDS
        )
        for builder, runner in runners.items():
            report = reports.get(builder)
            if report is None:  # it is lost
                self.runners.dismiss(runner)
            elif not report.has_same_rules(mine):
                self.builders.dismiss(builder)
                self.runners.dismiss(runner)
                _log.warning(
                    "%s is left out: its Tilewright %s is not the one of this machine",
                    *(builder.node, report.version),
                )
            elif not report.is_like(mine):
                self.runners.dismiss(runner)
                _log.warning(
                    "%s is another kind of machine: it builds candidates, and times none; to tune for such machines,"
                    " run `tilewright tune` on one of them",
                    builder.node,
                )
            elif builder.cores < self._threads:
                self.runners.dismiss(runner)
                _log.warning(
                    "%s has %d cores: it times no candidates on %d threads",
                    *(builder.node, builder.cores, self._threads),
                )
        if not self.runners.members:
            raise UserError(
                f"no node of the cluster can time candidates for this machine, on {self._threads}"
                f" thread{'s' if self._threads > 1 else ''}",
                hint="run `tilewright tune` on a node of the kind that you want to tune for",
            )

    def _member(self, kind: type[Any], node: Any, cpus: int, *arguments: Any) -> Member:
        strategies: Any = import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        actor = self._ray.remote(kind).options(num_cpus=cpus, scheduling_strategy=there).remote(*arguments)
        name = f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"
        is_here = node["NodeID"] == self._ray.get_runtime_context().get_node_id()
        return Member(actor, name, _cores(node), is_here)


def _cores(node: Any) -> int:
    return int(node["Resources"].get("CPU", 0))


class ClusterBuilder:
    """A batch goes to builders in chunks."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._packets: dict[str, bytes] = {}

    def start(self) -> None:
        self._cluster.start()
        self._cluster.builders.ask_all(lambda m: m.actor.start.remote())

    def close(self) -> None:
        """The cluster ends what it has started."""

    def wait_until_ready(self) -> None:
        """`start` has waited for its nodes."""

    def build_all(self, wanted: Sequence[tuple[Task, Point]]) -> list[Built]:
        self._cluster.start()
        crew = self._cluster.builders
        crew.check()
        for task, _ in wanted:
            if task.key not in self._packets:
                self._packets[task.key] = task.packet()
        most = max(m.cores for m in crew.members)
        size = max(most, math.ceil(len(wanted) / (_CHUNKS * len(crew.members))))
        points = [(task.key, (rule, dict(decisions))) for task, (rule, decisions) in wanted]
        chunks = [points[n : n + size] for n in range(0, len(points), size)]
        answers = crew.spread(chunks, self._ask)
        if len(answers) < len(chunks):
            crew.check()
        lost = Built(TrialStatus.KILLED, message=_LOST)
        return [b for n, chunk in enumerate(chunks) for b in answers.get(n, [lost] * len(chunk))]

    def _ask(self, member: Member, chunk: Sequence[tuple[str, Point]]) -> Any:
        """Tasks are told to a builder once."""
        new = {key for key, _ in chunk} - member.seen
        member.seen.update(new)
        return member.actor.build.remote(chunk, {key: self._packets[key] for key in new})


class ClusterRunner:
    """Parts of a batch run in copies of the program, one on each node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.seconds: Sequence[float] = ()

    @property
    def copies(self) -> int:
        return max(1, len(self._cluster.runners.members))

    def close(self) -> None:
        """The cluster ends what it has started."""

    def prepare(self, program: SitedProgram, runs: int) -> None:
        self._cluster.start()
        crew = self._cluster.runners
        crew.check()
        shared, specs = self._cluster.put(program.artifact), site_specs(program)
        times: dict[Member, list[float]] = crew.ask_all(lambda m: m.actor.prepare.remote(shared, specs, runs))
        crew.check()
        # Nodes are alike, and what disturbs a run makes it longer, never shorter.
        self.seconds = [min(of_site) for of_site in zip(*times.values(), strict=True)]

    def run(self, placed: Sequence[tuple[int, Candidate]], runs: int) -> list[InsideOutcome]:
        """If all runners are lost meanwhile, what they have found; the next request is refused then."""
        crew = self._cluster.runners
        crew.check()
        parts = batch_parts([site for site, _ in placed], len(crew.members))
        answers = crew.spread(
            [[placed[n] for n in part] for part in parts], lambda m, part: m.actor.run.remote(part, runs)
        )
        # Where somebody is left, a candidate without an outcome has cost several nodes: that is recorded.
        outcome = InsideOutcome(TrialStatus.KILLED, message=_LOST, is_lost=not crew.members)
        found = [outcome] * len(placed)
        for n, answer in answers.items():
            for at, one in zip(parts[n], answer, strict=True):
                found[at] = one
        return found

    def compare(
        self, programs: Sequence[Artifact], *, rounds: int, seconds: float, tolerance: float
    ) -> list[Series] | str:
        """On this machine's node if it is there, else on one like it."""
        crew = self._cluster.runners
        crew.check()
        shared = [self._cluster.put(p) for p in programs]
        crew.members.sort(key=lambda m: not m.is_here)  # requests go to the first that is free
        answers = crew.spread([shared], lambda m, s: m.actor.compare.remote(rounds, seconds, tolerance, *s))
        if not answers:
            crew.check()
            return _LOST
        return answers[0]


def batch_parts(sites: Sequence[int], count: int) -> list[list[int]]:
    """Candidates (by number; `sites` says where each stands) in about equal parts, in each of which a site has one:
    `count` parts, or fewer if there are fewer candidates, or more if a site has more.
    """
    parts: list[list[int]] = [[] for _ in range(min(count, len(sites)))]
    taken: list[set[int]] = [set() for _ in parts]
    for n, site in enumerate(sites):
        free = [p for p in range(len(parts)) if site not in taken[p]]
        if not free:
            parts.append([])
            taken.append(set())
            free = [len(parts) - 1]
        at = min(free, key=lambda p: len(parts[p]))
        parts[at].append(n)
        taken[at].add(site)
    return parts
