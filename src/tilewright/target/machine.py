"""What differs between CPUs, as figures: ports, latencies, the clock, caches, bandwidths, and what it costs to meet.

Costs (`cost/`, `families/*/cost.py`) are formulas over these figures and have none of their own, so that another CPU is
another value. Figures come from one of:

    peak        `python -m benchmarks.peak`, in docs/results/peak.md
    barrier     `python -m benchmarks.barrier`, in docs/results/barrier.md
    manual      as AMD's optimization guide for Zen 3 is remembered; not checked against it
    calibrated  `tilewright doctor --calibrate` on this host (`cli/calibrate.py`), in place of the figure shipped

They rank schedules; they do not predict clocks. How wide vectors are, and how many registers there are, follows from
the features of the target (`Target.lanes`, `Target.vector_registers`).
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Machine:
    """Figures are of one core unless they say otherwise."""

    name: str  # whose figures these are, for people and for the keys of caches
    # Sizes: of the host, from the kernel (`target/target.py`).
    l1_bytes: int  # data cache, of each core
    l2_bytes: int  # of each core
    l3_bytes: int  # shared by the cores of a cluster
    # Clock and ports.
    hertz: float = 3.3e9  # cycles a second while multiply-adds keep the core busy; peak, calibrated
    fma_per_cycle: float = 2.0  # vectors that are multiplied and added; manual, calibrated
    loads_per_cycle: float = 2.0  # vectors; manual, calibrated
    uops_per_cycle: float = 5.5  # of the 6 that are dispatched (manual), as tiles of many loads reach them
    fma_latency: float = 4.0  # cycles; manual, calibrated
    operations_in_flight: int = 256  # that are begun before the oldest of them has ended; manual
    # Bytes a second that are read in order; peak, calibrated.
    l2_rate: float = 97.5e9  # every core has its own
    l3_rates: tuple[float, ...] = (75e9, 137e9)  # of one core, two cores, … together; more cores get as much
    memory_rates: tuple[float, ...] = (25e9, 36e9)  # likewise
    # A team.
    meeting_seconds: float = (
        0.3e-6  # what a kernel that a team shares costs more than one without; barrier, calibrated
    )
    part_seconds: float = 0.03e-6  # to claim a part, and until its operands stream; barrier
    # How many cores work at the same kernel. 1: programs that run with any number are made by one core's time.
    threads: int = 1

    @property
    def l3_rate(self) -> float:
        """What one of `threads` cores gets of it, if all of them read."""
        return _share(self.l3_rates, self.threads)

    @property
    def memory_rate(self) -> float:
        """Likewise."""
        return _share(self.memory_rates, self.threads)

    def for_threads(self, threads: int) -> "Machine":
        return replace(self, threads=threads)

    def __str__(self) -> str:
        return f"{self.name}; for {'any number of' if self.threads == 1 else self.threads} threads"


def _share(rates: tuple[float, ...], threads: int) -> float:
    return rates[min(threads, len(rates)) - 1] / threads


def zen3(l1: int, l2: int, l3: int, name: str = "Zen 3") -> Machine:
    """With the figures that are shipped, and these sizes of caches in KiB. Cores of other makers that multiply two
    vectors of 32 bytes in a cycle are near enough for a ranking.
    """
    return Machine(name, l1 << 10, l2 << 10, l3 << 10)


def shipped_machine(cpu: str, features: frozenset[str], l1: int, l2: int, l3: int) -> Machine:
    """The figures that are shipped for a processor, as `cpu_model` has it, for programs with these features."""
    machine = zen3(l1, l2, l3)
    if cpu.startswith("AuthenticAMD 25 ") and "avx512f" in features:
        # Vectors of 64 bytes go through in two halves: as many bytes as a Zen 3 in a cycle. Measured: 118 GFLOP/s.
        return replace(machine, name="Zen 4", hertz=3.7e9, fma_per_cycle=1.0, loads_per_cycle=1.0)
    return machine


# By which recipes decide what is no knob: a trace, which has knobs alone, is the same program on every host. Caches in
# KiB; given, those of a Zen 3.
SHIPPED = zen3(32, 512, 16384)
